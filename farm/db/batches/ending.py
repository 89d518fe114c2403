"""How a batch ends: what failed is noted, what was not measured waits again, and the batch says what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.db.devices import SHUT_OUT
from farm.db.states import FailureKind
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
"""Pause after the first failure of a job; it doubles with each attempt, up to six times."""

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


_RELEASE = text("SELECT release_batch(:batch_id, :reason, :suspect, :pause)")


def release(connection: Connection, batch_id: int, *, reason: str, suspect: bool) -> None:
    """queued, leased → released, where it is still one of these. Its jobs wait again.

    With `suspect`, the job that was being measured counts an attempt, and is measured alone from now on.

    A job is invalid where every device of its pool that is here must refuse it: this one, and those that refused it before.
    One that the worker's version cannot read waits for a worker of another version, and counts no attempt.
    A job is dead when it used up its attempts, on two devices at least where another device may try it. Until then it waits
    for that device, `exhausted`. The function `fail_jobs` of the database decides that.
    """
    parameters = {"batch_id": batch_id, "reason": reason, "suspect": suspect, "pause": RETRY_SECONDS}
    connection.execute(_RELEASE, parameters)
