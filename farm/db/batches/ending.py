"""The end of a batch: failures are recorded, unmeasured jobs wait again, and the batch gets its counts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.db.devices import SHUT_OUT
from farm.db.states import FailureKind
from farm.devices import Backend


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt at a job gave no measurement. `kind`: see `FailureKind`.

    Zero bytes and surrogates in a message, which Postgres and logs refuse, are escaped.
    """

    kind: FailureKind
    message: str

    def __post_init__(self) -> None:
        message = self.message.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
        object.__setattr__(self, "message", message)


PRESENT_SECONDS = 120.0
"""A job that all other devices of its pool refused does not wait for a device without a heartbeat for this time."""

EXPECTED_SECONDS = 300.0
"""Jobs that failed on one device only wait this long for a device that fell silent or stopped: its host may restart."""

RETRY_SECONDS = 1.0
"""Pause after the first failure of a job; it doubles with each attempt, up to six times."""

BY_TRAITS = [backend.value for backend in Backend if backend.refuses_by_traits]


def alike(one: str, other: str) -> str:
    """SQL: whether two devices refuse the same jobs: equal devices with workers of one version."""
    return (
        f"({one}.id = {other}.id OR ({one}.backend = ANY(:by_traits) AND {one}.backend = {other}.backend"
        f" AND {one}.type = {other}.type AND {one}.traits = {other}.traits"
        f" AND {one}.worker_version_id IS NOT DISTINCT FROM {other}.worker_version_id))"
    )


PRESENT = f"""
NOT {SHUT_OUT} AND d.vanished_at IS NULL
    AND d.last_seen_at > clock_timestamp() - make_interval(secs => :present)
"""
"""SQL: whether a device (d) is live, or fell silent recently."""


EXPECTED = """
d.state = 'active' AND d.vanished_at IS NULL
    AND greatest(d.last_seen_at, d.left_at) > clock_timestamp() - make_interval(secs => :expected)
"""
"""SQL: whether a device (d) takes work, or may take work again soon because it fell silent recently or restarts."""


def may_try(job_id: str, device: str) -> str:
    """SQL: whether the job has not failed on the device, and neither the device nor its worker's version must refuse it."""
    return f"""NOT EXISTS (
        SELECT 1 FROM failures x JOIN devices tried ON tried.id = x.device_id
        WHERE x.job_id = {job_id} AND CASE x.kind
            WHEN 'invalid' THEN {alike("tried", device)}
            WHEN 'unsupported' THEN coalesce(x.worker_version_id = {device}.worker_version_id, tried.id = {device}.id)
            ELSE tried.id = {device}.id
        END
    )"""


def refused_by_all(job_id: str, devices: str) -> str:
    """SQL: whether each device of that table refused the job, or equals one that did."""
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


_RELEASE = text("SELECT release_batch(:batch_id, :reason, :suspect, :pause)")


def release(connection: Connection, batch_id: int, *, reason: str, suspect: bool) -> None:
    """queued, leased → released, if it is in one of these states. Its jobs wait again.

    With `suspect`, the job in hand counts an attempt, and is measured alone from now on.

    A job is invalid where every device of its pool that is here must refuse it: this one, and those that refused it before.
    One that the worker's version cannot read waits for a worker of another version, and counts no attempt.
    A job is dead when it used up its attempts, on two devices at least where another device may try it. Until then it waits
    for that device, `exhausted`. The function `fail_jobs` of the database decides that.
    """
    parameters = {"batch_id": batch_id, "reason": reason, "suspect": suspect, "pause": RETRY_SECONDS}
    connection.execute(_RELEASE, parameters)
