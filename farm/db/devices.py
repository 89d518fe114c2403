"""Hosts and devices: announcing them, hearing from them, and who lives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from farm.db.states import DeviceState
from farm.devices import Backend, DeviceIdentity, DeviceTraits
from farm.errors import SessionLost

_REGISTER = text("""
SELECT worker_register(
    :host, CAST(:host_facts AS jsonb), :uuid, :type, :name, :backend, CAST(:traits AS jsonb), CAST(:facts AS jsonb)
)
""")


def register(connection: Connection, *, host: str, host_facts: dict[str, Any], device: DeviceIdentity) -> int:
    """Stores a device and its host, or what changed of them, and returns the device's id.

    Its state stays, but a device that could not be opened gets another try when its host announces it again, and one on
    probation its next trial.
    """
    parameters = registration(host, host_facts, device)
    found: int = connection.execute(_REGISTER, parameters).scalar_one()
    return found


def registration(host: str, host_facts: dict[str, Any], device: DeviceIdentity) -> dict[str, Any]:
    """A device and its host as parameters of a statement."""
    return {
        "host": host,
        "host_facts": json.dumps(host_facts),
        "uuid": device.uuid,
        "type": device.type,
        "name": device.name,
        "backend": device.backend.value,
        "traits": json.dumps(device.traits.to_json()),
        "facts": json.dumps(device.facts),
    }


UNFIT_SECONDS = 300.0
"""After this long a device that could not be opened, or failed its canary, is tried again."""

_HEARTBEAT = text("SELECT * FROM worker_heartbeat(:device_id, :session, :unfit)")


def heartbeat(connection: Connection, device_id: int, *, session: int | None = None) -> DeviceState:
    """Says that the device's worker lives. One that was unfit for `UNFIT_SECONDS` gets another try.

    Returns the device's state: whether it should ask for work. Raises `SessionLost`, and says nothing, where `session` is not
    the epoch of the device (any more).
    """
    parameters = {"device_id": device_id, "unfit": UNFIT_SECONDS, "session": session}
    row = connection.execute(_HEARTBEAT, parameters).one()
    if session is not None and row.session_epoch != session:
        raise SessionLost(epoch=session, device=device_id, holder=f"process {row.session_pid} on {row.session_host}")
    return DeviceState(row.state)


_LEAVE = text("SELECT worker_leave(:device_id, :session)")


def leave(connection: Connection, device_id: int, *, session: int | None = None) -> None:
    """Says that the device's worker has stopped in good order: it is silent at once, and may start again.

    Says nothing for a worker whose session is lost.
    """
    connection.execute(_LEAVE, {"device_id": device_id, "session": session})


_UNFIT = text("SELECT worker_unfit(:device_id, :reason)")


def unfit(connection: Connection, device_id: int, reason: str) -> None:
    """active → quarantined: it could not be opened, or failed its canary. Another try when it is announced again."""
    connection.execute(_UNFIT, {"device_id": device_id, "reason": reason})


_CLAIM_ERROR = text("SELECT worker_note_claim_error(:device_id, :error)")


def note_claim_error(connection: Connection, device_id: int, error: str) -> None:
    """Why the device's worker could not claim a batch that was sent to it."""
    connection.execute(_CLAIM_ERROR, {"device_id": device_id, "error": error})


_SET_STATE = text("""
UPDATE devices SET state = :state, state_reason = :reason, state_changed_at = clock_timestamp(), unopened = false,
    failed_trials = 0, next_trial_at = CASE WHEN :state = 'probation' THEN clock_timestamp() END
WHERE id = :device_id AND (state <> :state OR state_reason IS DISTINCT FROM :reason)
""")


def set_state(connection: Connection, device_id: int, state: DeviceState, reason: str | None) -> bool:
    """Drains, quarantines or resumes a device, until somebody says otherwise. Returns whether anything changed.

    A drained device finishes the batch that it holds; a quarantined one finishes the job in hand.
    """
    parameters = {"device_id": device_id, "state": state.value, "reason": reason}
    return bool(connection.execute(_SET_STATE, parameters).rowcount)


_VANISH = text("SELECT worker_vanish(:host, CAST(:uuids AS text[]))")


def vanish(connection: Connection, *, host: str, uuids: Sequence[str]) -> list[str]:
    """Says that the host no longer shows these devices, until it announces them again. Returns those that are new."""
    return list(connection.execute(_VANISH, {"host": host, "uuids": list(uuids)}).scalars())


_OF_HOST = text("""
SELECT d.uuid, d.backend FROM devices d JOIN hosts h ON h.id = d.host_id WHERE h.name = worker_host(:host) ORDER BY d.id
""")


def of_host(connection: Connection, host: str) -> list[tuple[str, str]]:
    """(uuid, backend) of each device that the host ever announced and no other host has announced since."""
    return [(row.uuid, row.backend) for row in connection.execute(_OF_HOST, {"host": host})]


_LIVE = text("""
SELECT id, uuid, type FROM devices
WHERE state = 'active' AND vanished_at IS NULL AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
ORDER BY id
""")


def live(connection: Connection, *, silent_after: float) -> list[tuple[int, str, str]]:
    """(id, uuid, type) of each device that takes work now."""
    return [(i, uuid, kind) for i, uuid, kind in connection.execute(_LIVE, {"silent_after": silent_after})]


_REFUTED = text("""
WITH lately AS (   -- since when a device's failures count: an hour, or since its state was last changed
    SELECT id, greatest(state_changed_at, clock_timestamp() - make_interval(secs => :window)) AS since
    FROM devices WHERE state = 'active'
), refuted AS (    -- jobs that failed here and that another device then measured
    SELECT f.device_id, count(DISTINCT f.job_id) AS jobs, (array_agg(f.message ORDER BY f.id DESC))[1] AS message
    FROM lately d JOIN failures f ON f.device_id = d.id AND f.at > d.since AND f.kind IN ('failed', 'killed')
    JOIN jobs j ON j.id = f.job_id AND j.state = 'done'
    JOIN measurements r ON r.job_id = j.id AND r.device_id <> f.device_id
    GROUP BY f.device_id HAVING count(DISTINCT f.job_id) >= :jobs
)
SELECT r.device_id, r.jobs, r.message FROM refuted r JOIN lately d ON d.id = r.device_id
WHERE r.jobs >= :share * (r.jobs + (
    SELECT coalesce(sum(b.done), 0) FROM batches b WHERE b.device_id = d.id AND b.finished_at > d.since
))
""")


def refuted(
    connection: Connection, *, jobs: int, share: float, window_seconds: float = 3600.0
) -> list[tuple[int, int, str]]:
    """(device id, jobs, last error) of each active device that failed at least that many jobs which others measured.

    And at least that `share` of what it was lately asked for, so that a rare error of a busy device is no reason.
    """
    parameters = {"jobs": jobs, "share": share, "window": window_seconds}
    return [(row.device_id, row.jobs, row.message) for row in connection.execute(_REFUTED, parameters)]


_RECORDINGS = text("""
SELECT uuid, facts ->> 'recording' AS file, facts ->> 'recorded_device' AS device FROM devices
WHERE backend = 'recorded' AND state = 'active' AND vanished_at IS NULL
  AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
""")


def live_recordings(connection: Connection, *, silent_after: float) -> dict[tuple[str, str | None], str]:
    """The UUID of each recorded device that takes work now, by its file and the one device of it that it answers for."""
    rows = connection.execute(_RECORDINGS, {"silent_after": silent_after})
    return {(row.file, row.device): row.uuid for row in rows}


_LIVE_HOSTS = text("""
SELECT DISTINCT h.name FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE d.state = 'active' AND d.vanished_at IS NULL
  AND d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
""")


def live_hosts(connection: Connection, *, silent_after: float) -> set[str]:
    """The names of the hosts that have a device which takes work now."""
    return set(connection.execute(_LIVE_HOSTS, {"silent_after": silent_after}).scalars())


HOPELESS_TRIALS = 3
"""A device that failed this many trials counts as out of work until it passes one, as a quarantined one does."""

SHUT_OUT = f"(d.state = 'quarantined' OR (d.state = 'probation' AND d.failed_trials >= {HOPELESS_TRIALS}))"
"""SQL: whether nothing waits for a device (d) that is here."""

_SHUT_OUT = text(f"""
SELECT d.name, d.state_reason FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE h.name = :host AND {SHUT_OUT}
    AND d.last_seen_at > clock_timestamp() - make_interval(secs => 60)
""")


def shut_out_on(connection: Connection, host: str) -> dict[str, str]:
    """Name and reason of each device of a host that was heard of lately, and is quarantined or failed trial after trial."""
    return {row.name: row.state_reason for row in connection.execute(_SHUT_OUT, {"host": host})}


_LIST = text("""
SELECT d.id AS device_id, d.uuid, d.type, d.name, d.backend, h.name AS host, d.state, d.state_reason,
    d.state_changed_at, d.vanished_at, d.traits, d.facts, nullif(d.last_seen_at, '-infinity') AS last_seen_at,
    extract(epoch FROM clock_timestamp() - nullif(d.last_seen_at, '-infinity'))::float8 AS silent_s,
    d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) AS live,
    v.version AS worker_version, v.revision AS worker_revision,
    d.measured + coalesce(w.done, 0) AS measurements,
    b.id AS batch_id, b.jobs AS batch_jobs, b.current_job_id AS job_id, g.name AS campaign,
    extract(epoch FROM clock_timestamp() - b.claimed_at)::float8 AS busy_s
FROM devices d
JOIN hosts h ON h.id = d.host_id
LEFT JOIN worker_versions v ON v.id = d.worker_version_id
LEFT JOIN batches b ON b.device_id = d.id AND b.state = 'leased' AND NOT b.folded
LEFT JOIN lanes l ON l.id = b.lane_id
LEFT JOIN campaigns g ON g.id = l.campaign_id
LEFT JOIN (
    SELECT device_id, sum(done)::bigint AS done FROM batches WHERE NOT folded GROUP BY device_id
) w ON w.device_id = d.id
ORDER BY h.name, d.uuid
""")


def overview(connection: Connection, *, silent_after: float) -> Sequence[dict[str, Any]]:
    """Every device with its host, whether it lives, and what it does."""
    return [dict(row) for row in connection.execute(_LIST, {"silent_after": silent_after}).mappings()]


_NEWEST = text("""
SELECT d.id AS device_id, r.sm_clock_mhz, r.temperature_c, r.power_limit_w, r.measured_at
FROM devices d CROSS JOIN LATERAL (
    SELECT sm_clock_mhz, temperature_c, power_limit_w, measured_at FROM measurements
    WHERE device_id = d.id ORDER BY id DESC LIMIT 1
) r
""")


def newest_rows(connection: Connection) -> dict[int, dict[str, Any]]:
    """Clock, temperature and power limit in the newest row of each device that has one, sentinels included."""
    return {row.pop("device_id"): row for row in map(dict, connection.execute(_NEWEST).mappings())}


_IDENTITY = "SELECT uuid, type, name, backend, traits, facts FROM devices"
_BY_ID = text(f"{_IDENTITY} WHERE id = :device_id")
_BY_TYPE = text(f"{_IDENTITY} WHERE type = :device_type ORDER BY id LIMIT 1")


def identity(connection: Connection, device_id: int) -> DeviceIdentity:
    """The device as its host announced it."""
    return _as_identity(connection.execute(_BY_ID, {"device_id": device_id}).one())


def of_type(connection: Connection, device_type: str) -> DeviceIdentity:
    """The first device of that type that was announced: its name and traits stand for the type."""
    return _as_identity(connection.execute(_BY_TYPE, {"device_type": device_type}).one())


def _as_identity(row: Row[Any]) -> DeviceIdentity:
    return DeviceIdentity(
        uuid=row.uuid,
        type=row.type,
        name=row.name,
        backend=Backend(row.backend),
        traits=DeviceTraits.from_json(row.traits),
        facts=row.facts,
    )
