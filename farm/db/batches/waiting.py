"""Transitions of waiting jobs: for kernels, or for another device of their pool than those that refused them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, TextClause, text

from farm.db import kernels
from farm.db.batches.ending import (
    BY_TRAITS,
    EXPECTED,
    EXPECTED_SECONDS,
    PRESENT,
    PRESENT_SECONDS,
    alike,
    may_try,
    refused_by,
    refused_by_all,
)
from farm.db.batches.forming import BEFORE_ALL, LOCK_GROUPS

MAX_AT_ONCE = 20_000
"""Maximum jobs to move in one transaction, which limits how long a job group is locked."""

_OVER = text(f"""
WITH RECURSIVE {kernels.WAITED_FOR}
SELECT DISTINCT k.id FROM waited_for w JOIN kernels k ON k.id = w.kernel_id WHERE k.state IN ('built', 'failed')
""")
_MAY_GO = text("""
SELECT w.job_id, w.lane_id, min(k.error) AS error,
    CASE WHEN bool_or(k.state = 'built') THEN 'open' WHEN bool_and(k.final) THEN 'invalid' ELSE 'dead' END AS state
FROM waiting_jobs w JOIN kernels k ON k.id = w.kernel_id
WHERE w.job_id IN (SELECT job_id FROM waiting_jobs WHERE kernel_id = ANY(:over)) AND w.lane_id <> ALL(:held)
GROUP BY w.job_id, w.lane_id HAVING bool_and(k.state IN ('built', 'failed'))
ORDER BY w.job_id LIMIT :most
""")
_MOVE = text(f"""
WITH chosen AS MATERIALIZED (
    SELECT j.id, j.lane_id, j.solo, o.state, o.error, j.configuration_id > coalesce(l.cursor, :before_all) AS ahead
    FROM unnest(CAST(:ids AS bigint[]), CAST(:states AS text[]), CAST(:errors AS text[])) AS o(id, state, error)
    JOIN jobs j ON j.id = o.id JOIN lanes l ON l.id = j.lane_id
    WHERE j.state = 'waiting' ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM waiting_jobs w USING chosen c WHERE w.job_id = c.id
), moved AS (
    UPDATE jobs j SET state = c.state FROM chosen c WHERE j.id = c.id
), again AS (
    INSERT INTO returned_jobs (job_id, lane_id, solo, refused_by)
    SELECT c.id, c.lane_id, c.solo, CASE WHEN c.solo THEN {refused_by("c.id")} ELSE '{{}}' END
    FROM chosen c WHERE c.state = 'open' AND NOT c.ahead
), noted AS (
    INSERT INTO failures (job_id, lane_id, kind, message)
    SELECT id, lane_id, CASE state WHEN 'invalid' THEN 'invalid' ELSE 'failed' END, error
    FROM chosen WHERE state <> 'open' ORDER BY id
), counted AS (
    UPDATE lanes l SET invalid = l.invalid + s.invalid, dead = l.dead + s.dead, fresh = l.fresh OR s.ahead
    FROM (
        SELECT lane_id, count(*) FILTER (WHERE state = 'invalid') AS invalid,
            count(*) FILTER (WHERE state = 'dead') AS dead, bool_or(state = 'open' AND ahead) AS ahead
        FROM chosen GROUP BY lane_id
    ) s
    WHERE l.id = s.lane_id
)
SELECT count(*) FROM chosen
""")


def _of_free_groups(connection: Connection, statement: TextClause, parameters: Mapping[str, Any]) -> list[Row[Any]]:
    """Jobs of job groups that no other session holds, with these job groups locked. The statement leaves out those in `held`."""
    held = set[int]()
    while True:
        found = connection.execute(statement, {**parameters, "held": list(held)}).all()
        groups = {row.lane_id for row in found}
        taken = set(connection.execute(LOCK_GROUPS, {"ids": list(groups)}).scalars()) if groups else set()
        if taken == groups:
            return list(found)
        held |= groups - taken


def _change(
    connection: Connection, statement: TextClause, jobs: Sequence[Row[Any]], parameters: Mapping[str, Any]
) -> int:
    """Runs a statement on these jobs, if there are any. Returns the number of jobs that it changed."""
    if not jobs:
        return 0
    changed: int = connection.execute(statement, {**parameters, "ids": [row.job_id for row in jobs]}).scalar_one()
    return changed


def release_waiting(connection: Connection) -> int:
    """waiting → open, if all kernels of a job are finished and one is built. If none is: → invalid if none compiles, else → dead.

    Returns the number of changed jobs.

    Jobs of job groups that another session holds are left for another turn.
    """
    over = list(connection.execute(_OVER).scalars())
    may_go = _of_free_groups(connection, _MAY_GO, {"over": over, "most": MAX_AT_ONCE}) if over else []
    parameters = {
        "states": [row.state for row in may_go],
        "errors": [row.error or "The kernel could not be built" for row in may_go],
        "before_all": BEFORE_ALL,
    }
    return _change(connection, _MOVE, may_go, parameters)


# A device refused them, and not only a version of its worker: the ids of devices come last. What a version cannot read waits,
# whoever is here. Retry groups, as in `forming`, of all job groups: those that wait for a device that may come hold up no others.
_REFUSED = text(f"""
WITH RECURSIVE groups AS (
    (
        SELECT lane_id, solo, coalesce(avoid_device_id, 0) AS avoid, refused_by FROM returned_jobs
        ORDER BY lane_id, solo, coalesce(avoid_device_id, 0), refused_by LIMIT 1
    )
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT r.lane_id, r.solo, coalesce(r.avoid_device_id, 0) AS avoid, r.refused_by FROM returned_jobs r
        WHERE (r.lane_id, r.solo, coalesce(r.avoid_device_id, 0), r.refused_by) > (g.lane_id, g.solo, g.avoid, g.refused_by)
        ORDER BY r.lane_id, r.solo, coalesce(r.avoid_device_id, 0), r.refused_by LIMIT 1
    ) n
), hopeless AS MATERIALIZED (
    SELECT g.* FROM groups g JOIN lanes l ON l.id = g.lane_id JOIN pools p ON p.id = l.pool_id
    WHERE g.refused_by[cardinality(g.refused_by)] > 0 AND g.lane_id <> ALL(:held) AND NOT EXISTS (
        SELECT 1 FROM devices d WHERE (d.type = ANY(p.device_types) OR d.uuid = p.device_uuid) AND {PRESENT} AND NOT EXISTS (
            SELECT 1 FROM devices r WHERE r.id = ANY(g.refused_by) AND {alike("r", "d")}
        )
    )
)
SELECT r.job_id, r.lane_id FROM hopeless h
JOIN returned_jobs r ON (r.lane_id, r.solo, coalesce(r.avoid_device_id, 0), r.refused_by)
    = (h.lane_id, h.solo, h.avoid, h.refused_by)
WHERE NOT r.exhausted
ORDER BY r.job_id LIMIT :most
""")
_GIVE_UP = text(f"""
WITH given_up AS MATERIALIZED (
    SELECT j.id, j.lane_id
    FROM unnest(CAST(:ids AS bigint[])) AS u(job_id)
    JOIN returned_jobs r ON r.job_id = u.job_id JOIN jobs j ON j.id = r.job_id JOIN lanes l ON l.id = j.lane_id
    JOIN pools p ON p.id = l.pool_id
    WHERE j.state = 'open'
      AND EXISTS (SELECT 1 FROM failures f WHERE f.job_id = j.id AND f.kind = 'invalid' AND f.device_id IS NOT NULL) AND {
    refused_by_all(
        "j.id",
        f"(SELECT * FROM devices d WHERE (d.type = ANY(p.device_types) OR d.uuid = p.device_uuid) AND {PRESENT})",
    )
}
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM returned_jobs r USING given_up g WHERE r.job_id = g.id
), moved AS (
    UPDATE jobs j SET state = 'invalid' FROM given_up g WHERE j.id = g.id
), counted AS (
    UPDATE lanes l SET invalid = l.invalid + s.invalid
    FROM (SELECT lane_id, count(*) AS invalid FROM given_up GROUP BY lane_id) s WHERE l.id = s.lane_id
)
SELECT count(*) FROM given_up
""")
MAX_REFUSED = 2000
"""Maximum jobs to give up in one turn."""


def give_up(connection: Connection) -> int:
    """pending → invalid, if every live device of the pool refused the job, and one did. Returns the number of changed jobs.

    Jobs of job groups that another session holds are left for another turn.
    """
    here = {"by_traits": BY_TRAITS, "present": PRESENT_SECONDS}
    waiting = _of_free_groups(connection, _REFUSED, {**here, "most": MAX_REFUSED})
    return _change(connection, _GIVE_UP, waiting, here)


_NO_OTHER = f"""NOT EXISTS (
    SELECT 1 FROM devices d
    WHERE (d.type = ANY(p.device_types) OR d.uuid = p.device_uuid) AND {EXPECTED} AND {may_try("r.job_id", "d")}
)"""
_EXHAUSTED = text(f"""
SELECT r.job_id, r.lane_id FROM returned_jobs r JOIN lanes l ON l.id = r.lane_id JOIN pools p ON p.id = l.pool_id
WHERE r.exhausted AND r.lane_id <> ALL(:held) AND {_NO_OTHER}
ORDER BY r.job_id LIMIT :most
""")
_END_EXHAUSTED = text("""
WITH ended AS MATERIALIZED (
    SELECT j.id, j.lane_id FROM unnest(CAST(:ids AS bigint[])) AS u(job_id)
    JOIN returned_jobs r ON r.job_id = u.job_id AND r.exhausted JOIN jobs j ON j.id = r.job_id
    WHERE j.state = 'open' ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM returned_jobs r USING ended e WHERE r.job_id = e.id
), moved AS (
    UPDATE jobs j SET state = 'dead' FROM ended e WHERE j.id = e.id
), counted AS (
    UPDATE lanes l SET dead = l.dead + s.dead
    FROM (SELECT lane_id, count(*) AS dead FROM ended GROUP BY lane_id) s WHERE l.id = s.lane_id
)
SELECT count(*) FROM ended
""")


def end_exhausted(connection: Connection) -> int:
    """pending → dead, for jobs that used up their attempts on one device, if no other is expected. Returns the number.

    Jobs of job groups that another session holds are left for another turn.
    """
    parameters = {"by_traits": BY_TRAITS, "expected": EXPECTED_SECONDS, "most": MAX_REFUSED}
    exhausted = _of_free_groups(connection, _EXHAUSTED, parameters)
    return _change(connection, _END_EXHAUSTED, exhausted, {})
