"""The state machine of jobs and batches: forming, claiming, marking, landing, releasing, reaping.

Each function is one transition of docs/states.md, and is the only place that makes it. The caller owns the
transaction. All times are Postgres's; a token that Postgres made fences every write of a worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from farm.db import measurements
from farm.errors import LeaseLost
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules


@dataclass(frozen=True, slots=True)
class Work:
    """Pending jobs that a queue could serve next."""

    campaign_id: int
    pool_id: int
    solo: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to a batch, until its token no longer matches."""

    batch_id: int
    token: uuid.UUID
    campaign_id: int
    device_id: int
    rules: MeasuringRules
    jobs: tuple[ClaimedJob, ...]


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    id: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job has no measurement. `kind`: invalid (final), failed (tried again), killed (tried again, alone)."""

    kind: str
    message: str


# --- coordinator -----------------------------------------------------------------------------------

_NEXT_WORK = text("""
WITH served AS (
    SELECT id FROM pools WHERE device_types @> ARRAY[CAST(:device_type AS text)] OR device_uuid = :device_uuid
)
SELECT c.id AS campaign_id, p.id AS pool_id, w.solo
FROM campaigns c
CROSS JOIN served p
CROSS JOIN LATERAL (
    SELECT solo FROM jobs j WHERE j.campaign_id = c.id AND j.pool_id = p.id AND j.state = 'pending'
    ORDER BY solo, configuration_id LIMIT 1
) w
WHERE c.state = 'active'
ORDER BY
    c.priority DESC,
    (   -- the owner with the least in flight comes first, then the one served longest ago
        SELECT count(*) FROM batches b JOIN campaigns o ON o.id = b.campaign_id
        WHERE o.owner = c.owner AND b.state IN ('queued', 'leased')
    ),
    (   SELECT max(newest.id) FROM campaigns o CROSS JOIN LATERAL (
            SELECT b.id FROM batches b WHERE b.campaign_id = o.id ORDER BY b.id DESC LIMIT 1
        ) newest
        WHERE o.owner = c.owner
    ) NULLS FIRST,
    c.submitted_at,
    w.solo
LIMIT 1
""")


def next_work(connection: Connection, *, device_type: str | None, device_uuid: str | None) -> Work | None:
    """What a queue should be given next: by priority, then by fair share between owners, then by age."""
    row = connection.execute(_NEXT_WORK, {"device_type": device_type, "device_uuid": device_uuid}).one_or_none()
    return None if row is None else Work(*row)


_FORM = text("""
WITH active AS (   -- locked, so that a cancellation either sees the batch or prevents it
    SELECT id FROM campaigns WHERE id = :campaign_id AND state = 'active' FOR SHARE
), taken AS (
    SELECT id FROM jobs
    WHERE campaign_id = (SELECT id FROM active) AND pool_id = :pool_id AND state = 'pending' AND solo = :solo
    ORDER BY configuration_id LIMIT :jobs FOR UPDATE SKIP LOCKED
), batch AS (
    INSERT INTO batches (campaign_id, queue, jobs)
    SELECT :campaign_id, :queue, count(*) FROM taken HAVING count(*) > 0
    RETURNING id
), moved AS (
    UPDATE jobs SET state = 'queued', batch_id = batch.id FROM taken, batch WHERE jobs.id = taken.id
)
SELECT id FROM batch
""")


def form(connection: Connection, work: Work, *, queue: str, jobs: int) -> int | None:
    """pending → queued: puts up to `jobs` jobs (one, for suspects) in a new batch and returns its id."""
    parameters = {
        "campaign_id": work.campaign_id,
        "pool_id": work.pool_id,
        "solo": work.solo,
        "queue": queue,
        "jobs": 1 if work.solo else jobs,
    }
    found: int | None = connection.execute(_FORM, parameters).scalar_one_or_none()
    return found


_SECONDS_PER_JOB = text("""
SELECT sum(extract(epoch FROM finished_at - claimed_at))::float8 / nullif(sum(jobs), 0)
FROM (
    SELECT finished_at, claimed_at, jobs FROM batches
    WHERE campaign_id = :campaign_id AND queue = :queue AND state = 'done'
    ORDER BY finished_at DESC LIMIT 5
) recent
""")


def seconds_per_job(connection: Connection, *, campaign_id: int, queue: str) -> float | None:
    """Device time that a job of this campaign took on this queue lately; None before its first batch landed."""
    found: float | None = connection.execute(
        _SECONDS_PER_JOB, {"campaign_id": campaign_id, "queue": queue}
    ).scalar_one()
    return found


_OUTSTANDING = text("SELECT queue, count(*) AS n FROM batches WHERE state IN ('queued', 'leased') GROUP BY queue")


def outstanding(connection: Connection) -> dict[str, int]:
    """Batches that are queued or leased, by queue."""
    return {row.queue: row.n for row in connection.execute(_OUTSTANDING)}


_UNSENT = text("""
SELECT id, queue FROM batches
WHERE state = 'queued'
  AND (sent_at IS NULL OR sent_at < clock_timestamp() - make_interval(secs => :resend_after))
ORDER BY id
""")
_SENT = text("UPDATE batches SET sent_at = clock_timestamp(), sends = sends + 1 WHERE id = ANY(:ids)")


def unsent(connection: Connection, *, resend_after: float) -> list[tuple[int, str]]:
    """Batches (id, queue) whose message was never sent, or was sent so long ago that it may be lost."""
    return [(i, queue) for i, queue in connection.execute(_UNSENT, {"resend_after": resend_after})]


def mark_sent(connection: Connection, ids: Sequence[int]) -> None:
    """Notes that the messages of these batches are with the broker."""
    connection.execute(_SENT, {"ids": list(ids)})


_EXPIRED = text("""
SELECT id FROM batches WHERE state = 'leased' AND lease_expires_at < clock_timestamp()
ORDER BY id FOR UPDATE SKIP LOCKED
""")


def reap(connection: Connection) -> list[int]:
    """leased → released, for every lease that has passed. Returns the ids of those batches."""
    expired = list(connection.execute(_EXPIRED).scalars())
    for batch_id in expired:
        _release(connection, batch_id, reason="the lease passed without being renewed", suspect=True)
    return expired


# --- worker ----------------------------------------------------------------------------------------

_CLAIM = text("""
UPDATE batches b
SET state = 'leased', device_id = d.id, claimed_at = clock_timestamp(),
    lease_token = gen_random_uuid(), lease_expires_at = clock_timestamp() + make_interval(secs => :lease_seconds)
FROM campaigns c, devices d
WHERE b.id = :batch_id AND b.state = 'queued' AND c.id = b.campaign_id AND c.state = 'active'
  AND d.id = :device_id AND d.state = 'active' AND b.queue IN ('gpu.' || d.type, 'device.' || d.uuid)
RETURNING b.lease_token, c.id, c.rules
""")
_CLAIM_JOBS = text("""
WITH claimed AS (
    UPDATE jobs SET state = 'running' WHERE batch_id = :batch_id AND state = 'queued' RETURNING id, configuration_id
)
SELECT claimed.id AS job_id, c.* FROM claimed JOIN configurations c ON c.id = claimed.configuration_id ORDER BY c.id
""")


def claim(connection: Connection, batch_id: int, *, device_id: int, lease_seconds: float) -> Lease | None:
    """queued → leased, in one atomic statement; None where there is nothing (more) to claim.

    A message that comes twice or late, for a cancelled campaign, or to a drained device, claims nothing.
    """
    row = connection.execute(
        _CLAIM, {"batch_id": batch_id, "device_id": device_id, "lease_seconds": lease_seconds}
    ).one_or_none()
    if row is None:
        return None
    token, campaign_id, rules = row
    jobs = tuple(
        ClaimedJob(job["job_id"], Configuration.from_columns(dict(job)))
        for job in connection.execute(_CLAIM_JOBS, {"batch_id": batch_id}).mappings()
    )
    return Lease(batch_id, token, campaign_id, device_id, MeasuringRules.model_validate(rules), jobs)


_MARK = text("""
UPDATE batches SET current_job_id = :job_id,
    lease_expires_at = clock_timestamp() + make_interval(secs => :lease_seconds)
WHERE id = :batch_id AND state = 'leased' AND lease_token = :token AND lease_expires_at > clock_timestamp()
""")


def mark(connection: Connection, lease: Lease, job: ClaimedJob, *, lease_seconds: float) -> None:
    """Renews the lease and names the job that is measured from now on. Raises `LeaseLost`."""
    parameters = {
        "job_id": job.id,
        "batch_id": lease.batch_id,
        "token": lease.token,
        "lease_seconds": lease_seconds,
    }
    if connection.execute(_MARK, parameters).rowcount != 1:
        raise LeaseLost(batch=lease.batch_id)


_FENCE = text("""
SELECT id FROM batches
WHERE id = :batch_id AND state = 'leased' AND lease_token = :token AND lease_expires_at > clock_timestamp()
FOR UPDATE
""")
_FINISH = text("""
UPDATE batches SET state = 'done', finished_at = clock_timestamp(), lease_token = NULL, lease_expires_at = NULL,
    current_job_id = NULL
WHERE id = :batch_id
""")
_DONE = text("UPDATE jobs SET state = 'done', error_class = NULL, error = NULL WHERE id = ANY(:ids)")
_FAIL = text("""
UPDATE jobs j SET
    attempts = j.attempts + 1,
    error_class = f.kind,
    error = f.message,
    solo = j.solo OR f.kind = 'killed',
    state = CASE
        WHEN f.kind = 'invalid' THEN 'invalid'
        WHEN j.attempts + 1 >= (c.rules ->> 'max_attempts')::int THEN 'dead'
        ELSE 'pending'
    END
FROM unnest(CAST(:ids AS bigint[]), CAST(:kinds AS text[]), CAST(:messages AS text[])) AS f(id, kind, message),
    campaigns c
WHERE j.id = f.id AND c.id = j.campaign_id
""")
_RETURN_REST = text("UPDATE jobs SET state = 'pending' WHERE batch_id = :batch_id AND state IN ('queued', 'running')")


def land(
    connection: Connection,
    lease: Lease,
    results: Sequence[tuple[ClaimedJob, Measurement]],
    failures: Mapping[int, Failure],
) -> None:
    """leased → done: rows, job states and the batch's end in the caller's one transaction. Raises `LeaseLost`.

    Jobs of the batch that are in neither `results` nor `failures` (by job id) go back to pending.
    """
    fence = {"batch_id": lease.batch_id, "token": lease.token}
    if connection.execute(_FENCE, fence).one_or_none() is None:
        raise LeaseLost(batch=lease.batch_id)
    measurements.insert(
        connection, ((job.id, lease.campaign_id, job.configuration.id, lease.device_id, row) for job, row in results)
    )
    if results:
        connection.execute(_DONE, {"ids": [job.id for job, _ in results]})
    _fail(connection, failures)
    connection.execute(_RETURN_REST, {"batch_id": lease.batch_id})
    connection.execute(_FINISH, {"batch_id": lease.batch_id})


def _fail(connection: Connection, failures: Mapping[int, Failure]) -> None:
    if failures:
        parameters: dict[str, Any] = {
            "ids": list(failures),
            "kinds": [f.kind for f in failures.values()],
            "messages": [f.message for f in failures.values()],
        }
        connection.execute(_FAIL, parameters)


_RELEASE = text("""
UPDATE batches b SET state = 'released', finished_at = clock_timestamp(), end_reason = :reason,
    lease_token = NULL, lease_expires_at = NULL, current_job_id = NULL
FROM (SELECT id, current_job_id FROM batches WHERE id = :batch_id FOR UPDATE) before
WHERE b.id = before.id AND b.state IN ('queued', 'leased')
RETURNING before.current_job_id
""")


def _release(connection: Connection, batch_id: int, *, reason: str, suspect: bool) -> None:
    row = connection.execute(_RELEASE, {"batch_id": batch_id, "reason": reason}).one_or_none()
    if row is None:
        return
    if suspect and row.current_job_id is not None:
        _fail(connection, {row.current_job_id: Failure("killed", f"it was being measured when {reason}")})
    connection.execute(_RETURN_REST, {"batch_id": batch_id})


_HELD = text("SELECT id FROM batches WHERE id = :batch_id AND state = 'leased' AND device_id = :device_id FOR UPDATE")


def release(connection: Connection, batch_id: int, *, device_id: int, reason: str, suspect: bool) -> bool:
    """leased → released, by the device that holds it. The rest of its jobs wait again.

    With `suspect`, the job that was being measured counts an attempt and is measured alone from now on.
    Returns whether the device still held the batch.
    """
    if connection.execute(_HELD, {"batch_id": batch_id, "device_id": device_id}).one_or_none() is None:
        return False
    _release(connection, batch_id, reason=reason, suspect=suspect)
    return True


_OPEN_BATCHES = text("""
SELECT id FROM batches WHERE campaign_id = :campaign_id AND state IN ('queued', 'leased') ORDER BY id FOR UPDATE
""")
_CANCEL_JOBS = text("""
UPDATE jobs SET state = 'cancelled' WHERE campaign_id = :campaign_id AND state IN ('pending', 'queued', 'running')
""")


def cancel_open(connection: Connection, campaign_id: int) -> int:
    """pending, queued, running → cancelled. Leases end at once, so nothing of the campaign can land after this."""
    for batch_id in list(connection.execute(_OPEN_BATCHES, {"campaign_id": campaign_id}).scalars()):
        _release(connection, batch_id, reason="the campaign was cancelled", suspect=False)
    return connection.execute(_CANCEL_JOBS, {"campaign_id": campaign_id}).rowcount
