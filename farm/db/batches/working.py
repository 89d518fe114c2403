"""Transitions of workers: claiming a batch, marking each job, renewing, landing, releasing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.errors import UniqueViolation
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from farm.db import definitions, device_sessions, measurements, worker_versions
from farm.db.batches import ending
from farm.db.batches.ending import Failure
from farm.db.states import FailureKind
from farm.errors import BadKernelParameter, LeaseHeld, LeaseLost, UnknownFamily, first_line
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.definition import Definition
from farm.kernels.toolchains import BUILT_WITH, Versions
from farm.measurement import Measurement, MeasuringRules


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    id: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a worker to a batch, until its token no longer matches."""

    batch_id: int
    token: uuid.UUID
    campaign_id: int
    device_id: int
    rules: MeasuringRules
    # What is to be measured.
    jobs: tuple[ClaimedJob, ...]
    # By job id: jobs that this version cannot read. Landing the batch refuses them.
    refused: Mapping[int, Failure] = field(default_factory=dict)
    # Of users' kernels among the jobs: they are known to this process as long as the lease is held.
    definitions: tuple[Definition, ...] = ()


_CLAIM = text("SELECT * FROM worker_claim(:batch_id, :device_id, :session, :lease_seconds, :busy_seconds)")
_ONE_LEASE = "uq_batches_device_id"
_CLAIM_JOBS = text("""
SELECT j.id AS job_id, c.* FROM jobs j JOIN configurations c ON c.id = j.configuration_id
WHERE j.id = ANY(:ids) AND j.state = 'open' ORDER BY c.id
""")


def claim(
    connection: Connection,
    batch_id: int,
    *,
    device_id: int,
    lease_seconds: float,
    busy_seconds: float = 60.0,
    session: int | None = None,
) -> Lease | None:
    """queued → leased, in one atomic statement; None if there is nothing to claim.

    A repeated or late message, a cancelled or paused campaign, and a drained device claim nothing.
    Jobs that only a newer version can read are claimed with the rest, and refused when the batch lands.
    Before the first job is marked, heartbeats may renew the lease for `busy_seconds`.

    Raises `LeaseHeld` if the device holds another batch, and `SessionLost` if `session` is no longer the epoch of the device.
    Then the batch stays queued, and is sent again.
    """
    parameters = {
        "batch_id": batch_id,
        "device_id": device_id,
        "lease_seconds": lease_seconds,
        "busy_seconds": max(busy_seconds, lease_seconds),
        "session": session,
    }
    try:
        row = connection.execute(_CLAIM, parameters).one_or_none()
    except IntegrityError as error:
        if isinstance(error.orig, UniqueViolation) and error.orig.diag.constraint_name == _ONE_LEASE:
            raise LeaseHeld(batch=batch_id, device=device_id) from None
        raise
    if row is None:
        if session is not None:
            device_sessions.check(connection, device_id, session)
        return None
    token, campaign_id, rules, job_ids = row
    understood, why = _rules(rules)
    jobs, refused = list[ClaimedJob](), dict[int, Failure]()
    for job in connection.execute(_CLAIM_JOBS, {"ids": job_ids}).mappings():
        found = why or _configuration(dict(job))
        if isinstance(found, Configuration):
            jobs.append(ClaimedJob(job["job_id"], found))
        else:
            refused[job["job_id"]] = Failure(FailureKind.UNSUPPORTED, f"{worker_versions.own()} of this worker {found}")
    held = definitions.of_configurations(connection, (job.configuration for job in jobs))
    return Lease(batch_id, token, campaign_id, device_id, understood, tuple(jobs), refused, held)


def _rules(document: Any) -> tuple[MeasuringRules, str | None]:
    """The measuring rules, or the usual ones and why this version cannot read them."""
    try:
        return MeasuringRules.model_validate(document), None
    except Exception as error:  # whatever a newer version wrote: its jobs are refused, and no batch stays unclaimed
        return MeasuringRules(), f"cannot read the measuring rules: {' '.join(str(error).split())}"


def _configuration(row: Mapping[str, Any]) -> Configuration | str:
    """The configuration of a job, or why this version cannot read it."""
    try:
        return Configuration.from_columns(row)
    except UnknownFamily:
        return f"does not know the kernel family {row['family']!r}"
    except BadKernelParameter as error:
        return f"cannot read the kernel: {first_line(error)}"
    except Exception as error:  # as above
        return f"cannot read the job: {type(error).__name__}: {first_line(error)}"


_MARK = text("SELECT worker_mark(:batch_id, :token, :job_id, :lease_seconds, :busy_seconds)")


def mark(
    connection: Connection, lease: Lease, job: ClaimedJob, *, lease_seconds: float, busy_seconds: float | None = None
) -> bool:
    """Renews the lease and stores the job that is measured next. Raises `LeaseLost`.

    Returns False if the campaign is cancelled or paused, or the device is quarantined. Then the job must not start.
    Heartbeats may renew the lease for `busy_seconds`, the maximum time of the job and the landing.
    """
    parameters = {
        "job_id": job.id,
        "batch_id": lease.batch_id,
        "token": lease.token,
        "lease_seconds": lease_seconds,
        "busy_seconds": max(busy_seconds or 0.0, lease_seconds),
    }
    go_on: bool | None = connection.execute(_MARK, parameters).scalar_one_or_none()
    if go_on is None:
        raise LeaseLost(batch=lease.batch_id)
    return go_on


_RENEW = text("SELECT worker_renew(:batch_id, :device_id, :lease_seconds)")


def renew(connection: Connection, batch_id: int, *, device_id: int, lease_seconds: float) -> float | None:
    """Renews the lease of the batch in hand, within the maximum time of its job.

    Returns for how many more seconds it can be renewed; None if the device does not hold the batch.
    """
    parameters = {"batch_id": batch_id, "device_id": device_id, "lease_seconds": lease_seconds}
    left_s: float | None = connection.execute(_RENEW, parameters).scalar_one_or_none()
    return left_s


_HELD_BY = text("SELECT id FROM batches WHERE device_id = :device_id AND state = 'leased' AND NOT abandoned")


def held_by(connection: Connection, device_id: int) -> int | None:
    """The id of the batch that the device holds, also with an expired lease; None if there is none."""
    found: int | None = connection.execute(_HELD_BY, {"device_id": device_id}).scalar_one_or_none()
    return found


_ABANDON = text("SELECT worker_abandon(:batch_id, :device_id, :reason)")


def abandon(connection: Connection, batch_id: int, *, device_id: int, reason: str) -> bool:
    """Lets the device continue with another batch. No job counts an attempt. The coordinator takes this batch back.

    Locks only the batch's row, so locks on its job group or jobs do not block the device. Returns whether the device held it.
    """
    parameters = {"batch_id": batch_id, "device_id": device_id, "reason": reason}
    held: bool = connection.execute(_ABANDON, parameters).scalar_one()
    return held


# One statement: until its rows are with the server, no row is locked, the batch's neither.
_LAND = text("""
SELECT worker_land(
    :batch_id, :token, CAST(:ids AS bigint[]), CAST(:rows AS jsonb), CAST(:contents AS text[]),
    CAST(:failed AS bigint[]), CAST(:kinds AS text[]), CAST(:messages AS text[]), :pause,
    CAST(:missing AS bigint[]), CAST(:hashes AS text[]), CAST(:descriptions AS jsonb[]), CAST(:toolchains AS text[])
)
""")


def _row(lease: Lease, job: ClaimedJob, row: Measurement) -> measurements.Row:
    return job.id, lease.campaign_id, job.configuration.id, lease.device_id, row


def land(
    connection: Connection,
    lease: Lease,
    results: Sequence[tuple[ClaimedJob, Measurement]],
    failures: Mapping[int, Failure],
    missing: Mapping[int, Binary] | None = None,
    versions: Versions = BUILT_WITH,
) -> None:
    """leased → done: rows, job states and the batch's end in the caller's one transaction. Raises `LeaseLost`.

    Raises one of `measurements.UNSTORABLE` if a row cannot be stored: `refusals` finds which.

    Jobs in `missing` (by job id) wait for those kernels, built with these versions. Jobs in none of the three wait again.
    Jobs that the lease refused fail.
    """
    if not connection.execute(
        _LAND, _landing(lease, results, {**lease.refused, **failures}, missing or {}, versions)
    ).scalar_one():
        raise LeaseLost(batch=lease.batch_id)


def _landing(
    lease: Lease,
    results: Sequence[tuple[ClaimedJob, Measurement]],
    failures: Mapping[int, Failure],
    missing: Mapping[int, Binary],
    versions: Versions,
) -> dict[str, Any]:
    """The parameters of a landing. Raises one of `measurements.UNSTORABLE` for a row that cannot be sent."""
    rows = measurements.parameters_of(_row(lease, job, row) for job, row in results)
    return {
        "batch_id": lease.batch_id,
        "token": lease.token,
        "ids": [job.id for job, _ in results],
        "rows": rows["rows"],
        "contents": rows["contents"],
        "failed": list(failures),
        "kinds": [failure.kind.value for failure in failures.values()],
        "messages": [failure.message for failure in failures.values()],
        "pause": ending.RETRY_SECONDS,
        "missing": list(missing),
        "hashes": [binary.hash(versions) for binary in missing.values()],
        "descriptions": [json.dumps(binary.to_json()) for binary in missing.values()],
        "toolchains": [binary.toolchain(versions) for binary in missing.values()],
    }


def refusals(
    connection: Connection, lease: Lease, results: Sequence[tuple[ClaimedJob, Measurement]]
) -> dict[int, Failure]:
    """By job id, the failure of each job whose row cannot be stored. Nothing is written."""
    whys = measurements.refusals(connection, lambda result: _land_alone(connection, lease, result), results)
    return {
        job.id: Failure(FailureKind.FAILED, f"its row cannot be stored: {why}")
        for (job, _), why in zip(results, whys, strict=True)
        if why is not None
    }


def _land_alone(connection: Connection, lease: Lease, result: tuple[ClaimedJob, Measurement]) -> None:
    connection.execute(_LAND, _landing(lease, [result], {}, {}, BUILT_WITH))


_RELEASE = text("SELECT worker_release(:batch_id, :device_id, :reason, :suspect, :pause)")
_RELEASE_ALL = text("SELECT worker_release_all(:device_id, :reason, :pause)")


def release(connection: Connection, batch_id: int, *, device_id: int, reason: str, suspect: bool) -> bool:
    """leased → released, by the device that holds it. Its remaining jobs wait again.

    With `suspect`, the job in hand counts an attempt and is measured alone from now on.
    Returns whether the device still held the batch.
    """
    parameters = {"batch_id": batch_id, "device_id": device_id, "reason": reason, "suspect": suspect}
    held: bool = connection.execute(_RELEASE, {**parameters, "pause": ending.RETRY_SECONDS}).scalar_one()
    return held


_CLAIMED = text("SELECT count(*) FROM batches WHERE id = :batch_id AND device_id = :device_id")


def was_claimed(connection: Connection, batch_id: int, *, device_id: int) -> bool:
    """Whether the device holds that batch or held it last."""
    return bool(connection.execute(_CLAIMED, {"batch_id": batch_id, "device_id": device_id}).scalar_one())


def release_all(connection: Connection, *, device_id: int, reason: str) -> list[int]:
    """leased → released, for batches of an earlier worker of this device. Returns their ids."""
    parameters = {"device_id": device_id, "reason": reason, "pause": ending.RETRY_SECONDS}
    return list(connection.execute(_RELEASE_ALL, parameters).scalars())
