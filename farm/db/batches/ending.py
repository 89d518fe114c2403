"""How a batch ends: what failed is noted, what was not measured waits again, and the batch says what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.db.devices import SHUT_OUT
from farm.db.states import BatchState, FailureKind
from farm.devices import Backend


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt at a job gave no measurement. `kind`: see `FailureKind`.

    What neither Postgres nor a log can take of a message, zero bytes and surrogates that stand for broken bytes, is
    escaped.
    """

    kind: FailureKind
    message: str

    def __post_init__(self) -> None:
        message = self.message.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
        object.__setattr__(self, "message", message)


PRESENT_SECONDS = 120.0
"""A device that was not heard of for longer is not waited for by a configuration that all others of its pool refused."""

EXPECTED_SECONDS = 300.0
"""A device that fell silent, or whose worker stopped, is waited for this long by jobs that failed on one device alone: a
host may start again meanwhile."""

RETRY_SECONDS = 1.0
"""Pause after the first failure of a job; it doubles with each attempt, up to `MAX_DOUBLINGS` times."""

MAX_DOUBLINGS = 6

BY_TRAITS = [backend.value for backend in Backend if backend.refuses_by_traits]


def alike(one: str, other: str) -> str:
    """SQL: whether what one device refuses, the other must refuse as well: equal devices, with workers of one version."""
    return (
        f"({one}.id = {other}.id OR ({one}.backend = ANY(:by_traits) AND {one}.backend = {other}.backend"
        f" AND {one}.type = {other}.type AND {one}.traits = {other}.traits"
        f" AND {one}.worker_version_id IS NOT DISTINCT FROM {other}.worker_version_id))"
    )


PRESENT = f"""
NOT {SHUT_OUT} AND d.vanished_at IS NULL
    AND d.last_seen_at > clock_timestamp() - make_interval(secs => :present)
"""
"""SQL: whether a device (d) is here, or fell silent so lately that it may be back."""


EXPECTED = """
d.state = 'active' AND d.vanished_at IS NULL
    AND greatest(d.last_seen_at, d.left_at) > clock_timestamp() - make_interval(secs => :expected)
"""
"""SQL: whether a device (d) takes work, or may be back soon: it fell silent lately, or its worker is being restarted."""


def may_try(job_id: str, device: str) -> str:
    """SQL: whether the job neither failed on the device, nor must be refused by it or by the version of its worker."""
    return f"""NOT EXISTS (
        SELECT 1 FROM failures x JOIN devices tried ON tried.id = x.device_id
        WHERE x.job_id = {job_id} AND CASE x.kind
            WHEN 'invalid' THEN {alike("tried", device)}
            WHEN 'unsupported' THEN coalesce(x.worker_version_id = {device}.worker_version_id, tried.id = {device}.id)
            ELSE tried.id = {device}.id
        END
    )"""


def refused_by_all(job_id: str, devices: str) -> str:
    """SQL: whether each device of that table refused the job, or is alike to one that did."""
    return f"""NOT EXISTS (
        SELECT 1 FROM {devices} o WHERE NOT EXISTS (
            SELECT 1 FROM failures x JOIN devices r ON r.id = x.device_id
            WHERE x.job_id = {job_id} AND x.kind = 'invalid' AND {alike("r", "o")}
        )
    )"""


def refused_by(job_id: str, *, also: str = "NULL") -> str:
    """SQL: who refused the job, in ascending order, with `also` where that is not NULL.

    A device is named by its id. A version of the worker that cannot read the job is named by its id below zero: that
    refusal ends when the device's worker announces another version.
    """
    return f"""ARRAY(
        SELECT CASE WHEN r.kind = 'unsupported' THEN coalesce(-r.worker_version_id, r.device_id) ELSE r.device_id END
        FROM failures r
        WHERE r.job_id = {job_id} AND r.kind IN ('invalid', 'unsupported') AND r.device_id IS NOT NULL
        UNION SELECT a.id FROM (SELECT CAST({also} AS bigint)) a(id) WHERE a.id IS NOT NULL
        ORDER BY 1
    )"""


_VERSION = "(SELECT worker_version_id FROM devices WHERE id = :device_id)"
_REFUSER = f"""CASE
    WHEN m.kind = 'invalid' OR m.exhausted THEN :device_id
    WHEN m.kind = 'unsupported' THEN coalesce(-{_VERSION}, :device_id)
END"""

# `others` is the pool of the batch without the devices that must refuse what this one does: nobody, where a thousand equal cards
# are in it. A refusal that some of them may not share counts no attempt. What used up its attempts on one device is `exhausted`, and not
# dead, while another device is `expected` that may try it.
_FAIL = text(f"""
WITH failed AS (
    SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:kinds AS text[]), CAST(:messages AS text[]))
        AS f(job_id, kind, message)
), others AS MATERIALIZED (
    SELECT d.id, d.type, d.traits, d.backend, d.worker_version_id
    FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN pools p ON p.id = l.pool_id
    JOIN devices d ON d.type = ANY(p.device_types) OR d.uuid = p.device_uuid
    JOIN devices refuser ON refuser.id = :device_id
    WHERE b.id = :batch_id AND 'invalid' = ANY(:kinds) AND {PRESENT} AND NOT {alike("refuser", "d")}
), expected AS MATERIALIZED (
    SELECT d.id, d.type, d.traits, d.backend, d.worker_version_id
    FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN pools p ON p.id = l.pool_id
    JOIN devices d ON d.type = ANY(p.device_types) OR d.uuid = p.device_uuid
    WHERE b.id = :batch_id AND d.id <> :device_id AND {EXPECTED}
), judged AS (
    SELECT f.*, j.attempts + 1 AS attempts, (coalesce(l.rules, c.rules) ->> 'max_attempts')::int AS max_attempts,
        f.kind = 'unsupported' OR (f.kind = 'invalid' AND NOT {refused_by_all("f.job_id", "others")}) AS elsewhere
    FROM failed f JOIN jobs j ON j.id = f.job_id JOIN lanes l ON l.id = j.lane_id JOIN campaigns c ON c.id = l.campaign_id
), decided AS (
    SELECT u.*, u.kind IN ('failed', 'killed') AND u.attempts >= u.max_attempts AND NOT EXISTS (
        SELECT 1 FROM failures x
        WHERE x.job_id = u.job_id AND x.kind IN ('failed', 'killed') AND x.device_id <> :device_id
    ) AND EXISTS (SELECT 1 FROM expected e WHERE {may_try("u.job_id", "e")}) AS exhausted
    FROM judged u
), moved AS (
    UPDATE jobs j SET
        attempts = j.attempts + CASE WHEN f.elsewhere THEN 0 ELSE 1 END,
        solo = j.solo OR f.kind = 'killed',
        state = CASE
            WHEN f.elsewhere OR f.exhausted THEN 'open'
            WHEN f.kind = 'invalid' THEN 'invalid'
            WHEN f.attempts >= f.max_attempts THEN 'dead'
            ELSE 'open'
        END
    FROM decided f WHERE j.id = f.job_id AND j.state = 'open'
    RETURNING j.id, j.lane_id, j.state, j.solo, j.attempts, f.kind, f.message, f.exhausted
), noted AS (
    INSERT INTO failures (job_id, lane_id, batch_id, device_id, worker_version_id, kind, message)
    SELECT id, lane_id, :batch_id, :device_id, {_VERSION}, kind, message FROM moved ORDER BY id
), again AS (
    INSERT INTO returned_jobs (job_id, lane_id, solo, avoid_device_id, refused_by, exhausted, not_before)
    SELECT m.id, m.lane_id, m.solo, :device_id, CASE
        WHEN m.solo OR CAST(:device_id AS bigint) IS NOT NULL
        THEN {refused_by("m.id", also=_REFUSER)} ELSE '{{}}'
    END, m.exhausted, CASE
        WHEN m.kind IN ('failed', 'killed') AND NOT m.exhausted
        THEN clock_timestamp() + make_interval(secs => :pause * 2 ^ least(m.attempts - 1, :max_doublings))
    END
    FROM moved m WHERE m.state = 'open'
)
SELECT count(*) FILTER (WHERE state = 'invalid') AS invalid, count(*) FILTER (WHERE state = 'dead') AS dead FROM moved
""")


def fail(
    connection: Connection, failures: Mapping[int, Failure], *, batch_id: int, device_id: int | None
) -> tuple[int, int]:
    """open → invalid, dead, or waiting again elsewhere, by job id. Returns how many became invalid and dead.

    A job is invalid where every device of its pool that is here must refuse it: this one, and those that refused it before.
    One that the worker's version cannot read waits for a worker of another version, and counts no attempt.
    A job is dead when it used up its attempts, on two devices at least where another device may try it. Until then it waits
    for that device, `exhausted`.
    """
    if not failures:
        return 0, 0
    parameters = {
        "ids": list(failures),
        "kinds": [f.kind.value for f in failures.values()],
        "messages": [f.message for f in failures.values()],
        "batch_id": batch_id,
        "device_id": device_id,
        "by_traits": BY_TRAITS,
        "present": PRESENT_SECONDS,
        "expected": EXPECTED_SECONDS,
        "pause": RETRY_SECONDS,
        "max_doublings": MAX_DOUBLINGS,
    }
    row = connection.execute(_FAIL, parameters).one()
    return row.invalid, row.dead


_RETURN_REST = text(f"""
INSERT INTO returned_jobs (job_id, lane_id, solo, refused_by)
SELECT j.id, j.lane_id, j.solo, CASE WHEN j.solo THEN {refused_by("j.id")} ELSE '{{}}' END
FROM batches b CROSS JOIN unnest(b.job_ids) AS u(job_id) JOIN jobs j ON j.id = u.job_id
WHERE b.id = :batch_id AND j.state = 'open'
ON CONFLICT DO NOTHING
""")


def return_rest(connection: Connection, batch_id: int) -> None:
    """The batch's jobs that are open, and do not wait already, wait again."""
    connection.execute(_RETURN_REST, {"batch_id": batch_id})


_END = text("""
UPDATE batches SET state = :state, finished_at = clock_timestamp(), end_reason = coalesce(end_reason, :reason), lease_token = NULL,
    lease_expires_at = NULL, busy_until = NULL, current_job_id = NULL, done = :done, invalid = :invalid, dead = :dead
WHERE id = :batch_id
""")


def end(
    connection: Connection,
    batch_id: int,
    state: BatchState,
    *,
    reason: str | None = None,
    done: int = 0,
    invalid: int = 0,
    dead: int = 0,
) -> None:
    """The end of a batch that the caller has locked."""
    parameters = {"batch_id": batch_id, "state": state.value, "reason": reason}
    connection.execute(_END, {**parameters, "done": done, "invalid": invalid, "dead": dead})


_LOCK = text("""
SELECT current_job_id, device_id FROM batches WHERE id = :batch_id AND state IN ('queued', 'leased') FOR NO KEY UPDATE
""")


def release(connection: Connection, batch_id: int, *, reason: str, suspect: bool) -> None:
    """queued, leased → released, where it is still one of these. Its jobs wait again.

    With `suspect`, the job that was being measured counts an attempt, and is measured alone from now on.
    """
    row = connection.execute(_LOCK, {"batch_id": batch_id}).one_or_none()
    if row is None:
        return
    invalid = dead = 0
    if suspect and row.current_job_id is not None:
        killed = Failure(FailureKind.KILLED, f"it was being measured when {reason}")
        invalid, dead = fail(connection, {row.current_job_id: killed}, batch_id=batch_id, device_id=row.device_id)
    return_rest(connection, batch_id)
    end(connection, batch_id, BatchState.RELEASED, reason=reason, invalid=invalid, dead=dead)
