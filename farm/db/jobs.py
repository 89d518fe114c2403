"""Lists of jobs by state, with their failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from farm.db.problem_sql import PROBLEM
from farm.db.states import FailureKind, JobState

# An open job is in an open batch, or waits (perhaps for its kernels).
_SEEN = f"""
SELECT j.id AS job_id, j.attempts, j.solo, j.configuration_id, p.name AS pool, l.round,
    coalesce(l.rules, g.rules) AS rules,
    CASE
        WHEN j.state NOT IN ('open', 'waiting') THEN j.state
        WHEN b.state = 'leased' THEN 'running'
        WHEN b.state = 'queued' THEN 'queued'
        WHEN g.state = 'cancelled' THEN 'cancelled'
        ELSE 'pending'
    END AS state,
    b.id AS batch_id, b.current_job_id = j.id AS measuring, h.uuid AS device_uuid,
    f.kind AS error_class, f.message AS error, f.at AS failed_at, fd.uuid AS failed_on,
    {PROBLEM}, c.family, c.parameters
FROM campaigns g
JOIN lanes l ON l.campaign_id = g.id
JOIN pools p ON p.id = l.pool_id
JOIN jobs j ON j.lane_id = l.id
JOIN configurations c ON c.id = j.configuration_id
LEFT JOIN (
    SELECT unnest(job_ids) AS job_id, id, state, device_id, current_job_id
    FROM batches WHERE NOT folded AND state IN ('queued', 'leased')
) b ON b.job_id = j.id
LEFT JOIN devices h ON h.id = b.device_id
LEFT JOIN LATERAL (
    SELECT kind, message, at, device_id FROM failures WHERE job_id = j.id ORDER BY id DESC LIMIT 1
) f ON true
LEFT JOIN devices fd ON fd.id = f.device_id
WHERE g.id = :campaign_id
"""
_WANTED = f"""
SELECT * FROM ({_SEEN}) seen
WHERE (CAST(:states AS text[]) IS NULL OR state = ANY(:states))
  AND (CAST(:kinds AS text[]) IS NULL OR error_class = ANY(:kinds))
  AND (CAST(:ids AS bigint[]) IS NULL OR job_id = ANY(:ids))
"""
_IN_ORDER = " ORDER BY job_id LIMIT :limit"
_LIST = text(_WANTED + _IN_ORDER)
# Few jobs of a large campaign fail: they are found by their ids. An array, as a join would be made after all others.
_LIST_FAILED = text(f"""{_WANTED} AND job_id = ANY(ARRAY(
    SELECT f.job_id FROM lanes l JOIN failures f ON f.lane_id = l.id
    WHERE l.campaign_id = :campaign_id AND f.kind = ANY(:failed_as)
)) {_IN_ORDER}""")
_ENDS_AS = {
    JobState.INVALID: (FailureKind.INVALID,),
    JobState.DEAD: (FailureKind.FAILED, FailureKind.KILLED, FailureKind.CORRUPTED, FailureKind.REFUSED),
}
"""Kinds of the last failure of a job in that state."""


def listed(
    connection: Connection,
    campaign_id: int,
    *,
    states: Sequence[JobState] | None = None,
    kinds: Sequence[FailureKind] | None = None,
    job_ids: Sequence[int] | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Jobs of a campaign with their configuration, measuring rules, state, attempts and last failure, in the order of their ids."""
    parameters = {
        "campaign_id": campaign_id,
        "states": None if states is None else [state.value for state in states],
        "kinds": None if kinds is None else [kind.value for kind in kinds],
        "ids": None if job_ids is None else list(job_ids),
        "limit": limit,
    }
    failed_as = kinds
    if failed_as is None and states is not None and set(states) <= _ENDS_AS.keys():
        failed_as = [kind for state in states for kind in _ENDS_AS[state]]
    if failed_as is None:
        rows = connection.execute(_LIST, parameters)
    else:
        rows = connection.execute(_LIST_FAILED, {**parameters, "failed_as": [kind.value for kind in failed_as]})
    return [dict(row) for row in rows.mappings()]


# From the last failures back, so that it costs the same at any size.
_PROBLEMS = text(f"""
SELECT j.id AS job_id, CASE WHEN j.state IN ('open', 'waiting') THEN 'pending' ELSE j.state END AS state, j.attempts, p.name AS pool,
    f.kind AS error_class, f.message AS error, f.at AS failed_at, d.uuid AS failed_on,
    {PROBLEM}, c.family, c.parameters
FROM (
    SELECT DISTINCT ON (job_id) * FROM (
        SELECT f.* FROM lanes l JOIN failures f ON f.lane_id = l.id
        WHERE l.campaign_id = :campaign_id ORDER BY f.id DESC LIMIT :looked_at
    ) last ORDER BY job_id, id DESC
) f
JOIN jobs j ON j.id = f.job_id
JOIN lanes l ON l.id = j.lane_id
JOIN pools p ON p.id = l.pool_id
JOIN configurations c ON c.id = j.configuration_id
LEFT JOIN devices d ON d.id = f.device_id
WHERE j.state <> 'done'
ORDER BY j.state, j.id LIMIT :limit
""")


def problems(connection: Connection, campaign_id: int, *, limit: int = 20) -> list[dict[str, Any]]:
    """Recently failed or invalid jobs without a result, each with its last failure."""
    parameters = {"campaign_id": campaign_id, "limit": limit, "looked_at": 20 * limit}
    return [dict(row) for row in connection.execute(_PROBLEMS, parameters).mappings()]


_FAILURES = text("""
SELECT kind, count(*) AS n FROM failures WHERE lane_id IN (SELECT id FROM lanes WHERE campaign_id = :campaign_id)
GROUP BY kind ORDER BY kind
""")


def failures_by_kind(connection: Connection, campaign_id: int) -> dict[str, int]:
    """Number of failed attempts of a campaign, by kind."""
    return {row.kind: row.n for row in connection.execute(_FAILURES, {"campaign_id": campaign_id})}
