"""Hosts and devices: registration, heartbeats, states and lists."""

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
    """Inserts or updates a device and its host, and returns the device's id.

    The state of the device stays. A device that could not be opened is tried again, and a device on probation gets its next trial.
    """
    parameters = registration(host, host_facts, device)
    found: int = connection.execute(_REGISTER, parameters).scalar_one()
    return found


def registration(host: str, host_facts: dict[str, Any], device: DeviceIdentity) -> dict[str, Any]:
    """Parameters of a statement for a device and its host."""
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
    """Records a heartbeat of the device's worker. A device that was unfit for `UNFIT_SECONDS` is tried again.

    Returns the state of the device. Raises `SessionLost`, and records nothing, if `session` is not the current epoch.
    """
    parameters = {"device_id": device_id, "unfit": UNFIT_SECONDS, "session": session}
    row = connection.execute(_HEARTBEAT, parameters).one()
    if session is not None and row.session_epoch != session:
        raise SessionLost(epoch=session, device=device_id, holder=f"process {row.session_pid} on {row.session_host}")
    return DeviceState(row.state)


_LEAVE = text("SELECT worker_leave(:device_id, :session)")


def leave(connection: Connection, device_id: int, *, session: int | None = None) -> None:
    """Deregisters the device's worker: the device counts as silent at once, and the worker may start again.

    Has no effect for a worker whose session is lost.
    """
    connection.execute(_LEAVE, {"device_id": device_id, "session": session})


_UNFIT = text("SELECT worker_unfit(:device_id, :reason)")


def unfit(connection: Connection, device_id: int, reason: str) -> None:
    """active → quarantined: it could not be opened, or failed its canary. It is tried again when it is announced."""
    connection.execute(_UNFIT, {"device_id": device_id, "reason": reason})


_CLAIM_ERROR = text("SELECT worker_note_claim_error(:device_id, :error)")


def note_claim_error(connection: Connection, device_id: int, error: str) -> None:
    """Records why the device's worker could not claim a batch."""
    connection.execute(_CLAIM_ERROR, {"device_id": device_id, "error": error})


_SET_STATE = text("""
UPDATE devices SET state = :state, state_reason = :reason, state_changed_at = clock_timestamp(), unopened = false,
    failed_trials = 0, next_trial_at = CASE WHEN :state = 'probation' THEN clock_timestamp() END
WHERE id = :device_id AND (state <> :state OR state_reason IS DISTINCT FROM :reason)
""")


def set_state(connection: Connection, device_id: int, state: DeviceState, reason: str | None) -> bool:
    """Drains, quarantines or resumes a device. Returns whether anything changed.

    A drained device finishes the batch that it holds; a quarantined one finishes the job in hand.
    """
    parameters = {"device_id": device_id, "state": state.value, "reason": reason}
    return bool(connection.execute(_SET_STATE, parameters).rowcount)


_VANISH = text("SELECT worker_vanish(:host, CAST(:uuids AS text[]))")


def vanish(connection: Connection, *, host: str, uuids: Sequence[str]) -> list[str]:
    """Marks devices that the host no longer has, until it announces them again. Returns the newly marked ones."""
    return list(connection.execute(_VANISH, {"host": host, "uuids": list(uuids)}).scalars())


_OF_HOST = text("""
SELECT d.uuid, d.backend FROM devices d JOIN hosts h ON h.id = d.host_id WHERE h.name = worker_host(:host) ORDER BY d.id
""")


def of_host(connection: Connection, host: str) -> list[tuple[str, str]]:
    """(uuid, backend) of each device that this host announced last."""
    return [(row.uuid, row.backend) for row in connection.execute(_OF_HOST, {"host": host})]


_LIVE = text("""
SELECT id, uuid, type FROM devices
WHERE state = 'active' AND vanished_at IS NULL AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
ORDER BY id
""")


def live(connection: Connection, *, silent_after: float) -> list[tuple[int, str, str]]:
    """(id, uuid, type) of each live, active device."""
    return [(i, uuid, kind) for i, uuid, kind in connection.execute(_LIVE, {"silent_after": silent_after})]


_REFUTED = text("""
WITH lately AS (   -- since when a device's failures count: an hour, or since its state was last changed
    SELECT id, greatest(state_changed_at, clock_timestamp() - make_interval(secs => :window)) AS since
    FROM devices WHERE state = 'active'
), refuted AS (    -- jobs that failed here and that another device then measured
    SELECT f.device_id, count(DISTINCT f.job_id) AS jobs, (array_agg(f.message ORDER BY f.id DESC))[1] AS message
    FROM lately d JOIN failures f ON f.device_id = d.id AND f.at > d.since AND f.kind IN ('failed', 'killed', 'corrupted')
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

    These must be at least that `share` of its recent jobs, so rare errors of a busy device do not count.
    """
    parameters = {"jobs": jobs, "share": share, "window": window_seconds}
    return [(row.device_id, row.jobs, row.message) for row in connection.execute(_REFUTED, parameters)]


_RECORDINGS = text("""
SELECT uuid, facts ->> 'recording' AS file, facts ->> 'recorded_device' AS device FROM devices
WHERE backend = 'recorded' AND state = 'active' AND vanished_at IS NULL
  AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
""")


def live_recordings(connection: Connection, *, silent_after: float) -> dict[tuple[str, str | None], str]:
    """UUIDs of live recorded devices, by (file, device within the file)."""
    rows = connection.execute(_RECORDINGS, {"silent_after": silent_after})
    return {(row.file, row.device): row.uuid for row in rows}


_TYPES = text("SELECT DISTINCT type FROM devices ORDER BY type")


def all_types(connection: Connection) -> list[str]:
    """Types of all devices that were ever announced, and of those of imports."""
    return list(connection.execute(_TYPES).scalars())


_LIVE_HOSTS = text("""
SELECT DISTINCT h.name FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE d.state = 'active' AND d.vanished_at IS NULL
  AND d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
""")


def live_hosts(connection: Connection, *, silent_after: float) -> set[str]:
    """Names of hosts with a live, active device."""
    return set(connection.execute(_LIVE_HOSTS, {"silent_after": silent_after}).scalars())


HOPELESS_TRIALS = 3
"""A device that failed this many trials counts as quarantined until it passes one."""

SHUT_OUT = f"(d.state = 'quarantined' OR (d.state = 'probation' AND d.failed_trials >= {HOPELESS_TRIALS}))"
"""SQL: whether jobs do not wait for a device (d), although it is live."""

_SHUT_OUT = text(f"""
SELECT d.name, d.state_reason FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE h.name = :host AND {SHUT_OUT}
    AND d.last_seen_at > clock_timestamp() - make_interval(secs => 60)
""")


def shut_out_on(connection: Connection, host: str) -> dict[str, str]:
    """Name and reason of each live device of a host that is quarantined or failed `HOPELESS_TRIALS` trials."""
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
WHERE CAST(:ids AS bigint[]) IS NULL OR d.id = ANY(:ids)
ORDER BY h.name, d.uuid
""")


def overview(
    connection: Connection, *, silent_after: float, ids: Sequence[int] | None = None
) -> Sequence[dict[str, Any]]:
    """Devices, all without `ids`, with their hosts, their liveness and their current batches."""
    parameters = {"silent_after": silent_after, "ids": None if ids is None else list(ids)}
    return [dict(row) for row in connection.execute(_LIST, parameters).mappings()]


_NEWEST = text("""
SELECT d.id AS device_id, r.sm_clock_mhz, r.temperature_c, r.power_limit_w, r.power_limited, r.measured_at
FROM devices d CROSS JOIN LATERAL (
    SELECT sm_clock_mhz, temperature_c, power_limit_w, power_limited, measured_at FROM measurements
    WHERE device_id = d.id ORDER BY id DESC LIMIT 1
) r
WHERE d.id = ANY(:ids)
""")


def newest_rows(connection: Connection, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Clock, temperature and power limit, and whether it held the GEMM, in the newest row of each device that has one, sentinels included."""
    return {row.pop("device_id"): row for row in map(dict, connection.execute(_NEWEST, {"ids": list(ids)}).mappings())}


_IDENTITY = "SELECT uuid, type, name, backend, traits, facts FROM devices"
_BY_ID = text(f"{_IDENTITY} WHERE id = :device_id")
_BY_TYPE = text(f"{_IDENTITY} WHERE type = :device_type ORDER BY id LIMIT 1")


def identity(connection: Connection, device_id: int) -> DeviceIdentity:
    """Identity of a device."""
    return _as_identity(connection.execute(_BY_ID, {"device_id": device_id}).one())


def of_type(connection: Connection, device_type: str) -> DeviceIdentity:
    """Identity of the first device of a type. Its name and traits represent the type."""
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
