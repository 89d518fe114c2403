"""Devices on probation: devices that fail jobs that other devices of their type measure.

A device that fails several jobs in a row gets a *trial* before its failures count: a job that another device of its type
measured, or its canary. If it fails that too, the device is at fault. It takes no jobs until it passes a trial.
The coordinator sends it a trial after a pause that doubles each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy import Connection, text

from farm.errors import FarmError
from farm.kernels import Configuration

TRIAL_SECONDS = 5.0
"""Pause before the first trial of a device on probation; it doubles with each trial that it fails, six times at most."""

RELAPSE_SECONDS = 3600.0
"""A device that is on probation again within this time continues with its former pause."""

DEATHS_IN_A_ROW = 3
"""A device whose process dies in this many jobs, with no measurement between them, is on probation."""

_BEGIN = text("SELECT worker_begin_probation(:device_id, :reason, :tried, :pause, :relapse)")
_FAIL = text("SELECT worker_fail_trial(:device_id, :reason, :pause)")
_PASS = text("SELECT worker_pass_trial(:device_id)")


def begin(connection: Connection, device_id: int, reason: str, *, tried: bool) -> bool:
    """active → probation. Returns whether it changed: a user may have drained it.

    `tried`: whether it already failed a trial. Otherwise it gets one at once, since its jobs may be at fault.
    """
    parameters = {"device_id": device_id, "reason": reason, "tried": int(tried)}
    pauses = {"pause": TRIAL_SECONDS, "relapse": RELAPSE_SECONDS}
    changed: bool = connection.execute(_BEGIN, {**parameters, **pauses}).scalar_one()
    return changed


def failed_trial(connection: Connection, device_id: int, reason: str) -> None:
    """Keeps the device on probation, and doubles the pause before the next trial."""
    parameters = {"device_id": device_id, "reason": reason, "pause": TRIAL_SECONDS}
    connection.execute(_FAIL, parameters)


def passed_trial(connection: Connection, device_id: int) -> bool:
    """probation → active. Returns whether it changed."""
    changed: bool = connection.execute(_PASS, {"device_id": device_id}).scalar_one()
    return changed


_ON_PROBATION = text("SELECT state = 'probation' FROM devices WHERE id = :device_id")


def is_on_probation(connection: Connection, device_id: int) -> bool:
    """Whether the device may have a trial."""
    return bool(connection.execute(_ON_PROBATION, {"device_id": device_id}).scalar_one_or_none())


_DUE = text("""
SELECT id, uuid FROM devices
WHERE state = 'probation' AND next_trial_at <= clock_timestamp() AND vanished_at IS NULL
  AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
ORDER BY id
""")
_SENT = text("""
UPDATE devices SET next_trial_at = clock_timestamp() + make_interval(secs => :resend_after) WHERE id = ANY(:ids)
""")


def due(connection: Connection, *, silent_after: float) -> list[tuple[int, str]]:
    """(id, uuid) of each live device whose next trial is due. Follow it with `sent`."""
    rows = connection.execute(_DUE, {"silent_after": silent_after})
    return [(row.id, row.uuid) for row in rows]


def sent(connection: Connection, ids: Sequence[int], *, resend_after: float) -> None:
    """Records that trials were sent. A trial without an answer is sent again after `resend_after` seconds."""
    connection.execute(_SENT, {"ids": list(ids), "resend_after": resend_after})


_DEATHS = text("""
SELECT count(*) FILTER (WHERE kind = 'killed' AND at > coalesce(
    (SELECT measured_at FROM measurements WHERE device_id = :device_id ORDER BY id DESC LIMIT 1), '-infinity'
)) AS deaths
FROM (SELECT kind, at FROM failures WHERE device_id = :device_id ORDER BY at DESC LIMIT :most) f
""")


def dies_in_a_row(connection: Connection, device_id: int) -> bool:
    """Whether the process of the device died in each of its last `DEATHS_IN_A_ROW` jobs."""
    found: int = connection.execute(_DEATHS, {"device_id": device_id, "most": DEATHS_IN_A_ROW}).scalar_one()
    return found >= DEATHS_IN_A_ROW


_KNOWN_GOOD = text("""
SELECT c.* FROM (
    SELECT o.id FROM devices d JOIN devices o ON o.type = d.type AND o.id <> d.id
    WHERE d.id = :device_id ORDER BY o.last_seen_at DESC LIMIT 16
) o
CROSS JOIN LATERAL (
    SELECT m.configuration_id FROM measurements m
    WHERE m.device_id = o.id AND m.job_id IS NOT NULL AND m.source IN ('measured', 'recorded')
    ORDER BY m.id DESC LIMIT 16
) r
JOIN configurations c ON c.id = r.configuration_id
ORDER BY (c.family = CAST(:family AS text)) IS NOT TRUE,
    abs(ln(2 * c.batch::float8 * c.m * c.n * c.k) - coalesce(CAST(:size AS float8), 0)), c.id
LIMIT 1
""")


def known_good(connection: Connection, device_id: int, like: Configuration | None = None) -> Configuration | None:
    """A configuration that another device of the type measured recently; None if there is none that this version can read.

    Args:
        like: the job that failed: the same family and a similar size are preferred, else the smallest.
    """
    size = None if like is None else math.log(like.problem.flops)
    parameters = {"device_id": device_id, "family": None if like is None else like.kernel.family, "size": size}
    row = connection.execute(_KNOWN_GOOD, parameters).mappings().one_or_none()
    try:
        return None if row is None else Configuration.from_columns(dict(row))
    except FarmError:
        return None
