"""Hosts and devices: announcing them, hearing from them, and who lives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from farm.devices import Backend, DeviceIdentity, DeviceTraits

_HOST = text("""
INSERT INTO hosts (name, facts) VALUES (:name, CAST(:facts AS jsonb))
ON CONFLICT (name) DO UPDATE SET facts = excluded.facts, last_seen_at = clock_timestamp()
RETURNING id
""")
_DEVICE = text("""
INSERT INTO devices (uuid, host_id, type, name, backend, traits, facts)
VALUES (:uuid, :host_id, :type, :name, :backend, CAST(:traits AS jsonb), CAST(:facts AS jsonb))
ON CONFLICT (uuid) DO UPDATE SET host_id = excluded.host_id, type = excluded.type, name = excluded.name,
    backend = excluded.backend, traits = excluded.traits, facts = excluded.facts, last_seen_at = clock_timestamp(),
    state = CASE WHEN devices.unopened THEN 'active' ELSE devices.state END,
    state_reason = CASE WHEN devices.unopened THEN NULL ELSE devices.state_reason END,
    unopened = false
RETURNING id
""")


def register(connection: Connection, *, host: str, host_facts: dict[str, Any], device: DeviceIdentity) -> int:
    """Stores a device and its host, or what changed of them, and returns the device's id.

    Its state stays, but a device that could not be opened gets another try when its host announces it again.
    """
    host_id = connection.execute(_HOST, {"name": host, "facts": json.dumps(host_facts)}).scalar_one()
    parameters = {
        "uuid": device.uuid,
        "host_id": host_id,
        "type": device.type,
        "name": device.name,
        "backend": device.backend.value,
        "traits": json.dumps(device.traits.to_json()),
        "facts": json.dumps(device.facts),
    }
    found: int = connection.execute(_DEVICE, parameters).scalar_one()
    return found


_HEARTBEAT = text("""
WITH d AS (UPDATE devices SET last_seen_at = clock_timestamp() WHERE id = :device_id RETURNING host_id)
UPDATE hosts SET last_seen_at = clock_timestamp() FROM d WHERE hosts.id = d.host_id
""")


def heartbeat(connection: Connection, device_id: int) -> None:
    """Says that the device's worker lives."""
    connection.execute(_HEARTBEAT, {"device_id": device_id})


_LEAVE = text("UPDATE devices SET last_seen_at = '-infinity' WHERE id = :device_id")


def leave(connection: Connection, device_id: int) -> None:
    """Says that the device's worker has stopped in good order: it is silent at once."""
    connection.execute(_LEAVE, {"device_id": device_id})


_UNOPENED = text("""
UPDATE devices SET state = 'quarantined', state_reason = :reason, unopened = true
WHERE id = :device_id AND state = 'active'
""")


def could_not_open(connection: Connection, device_id: int, reason: str) -> None:
    """active → quarantined: it takes no work until its host announces it again."""
    connection.execute(_UNOPENED, {"device_id": device_id, "reason": reason})


_LIVE = text("""
SELECT uuid, type FROM devices
WHERE state = 'active' AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
ORDER BY id
""")


def live(connection: Connection, *, silent_after: float) -> list[tuple[str, str]]:
    """(uuid, type) of each device that takes work now."""
    return [(uuid, kind) for uuid, kind in connection.execute(_LIVE, {"silent_after": silent_after})]


_LIVE_HOSTS = text("""
SELECT DISTINCT h.name FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE d.state = 'active' AND d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
""")


def live_hosts(connection: Connection, *, silent_after: float) -> set[str]:
    """The names of the hosts that have a device which takes work now."""
    return set(connection.execute(_LIVE_HOSTS, {"silent_after": silent_after}).scalars())


_QUARANTINED = text("""
SELECT d.name, d.state_reason FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE h.name = :host AND d.state = 'quarantined' AND d.last_seen_at > clock_timestamp() - make_interval(secs => 60)
""")


def quarantined_on(connection: Connection, host: str) -> dict[str, str]:
    """Name and reason of each device of a host that was heard of lately and takes no work."""
    return {row.name: row.state_reason for row in connection.execute(_QUARANTINED, {"host": host})}


_LIST = text("""
SELECT d.uuid, d.type, d.name, d.backend, h.name AS host, d.state, d.state_reason, d.traits, d.facts,
    nullif(d.last_seen_at, '-infinity') AS last_seen_at,
    d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) AS live,
    (SELECT count(*) FROM measurements r WHERE r.device_id = d.id) AS measurements,
    b.id AS batch_id, g.name AS campaign, extract(epoch FROM clock_timestamp() - b.claimed_at)::float8 AS busy_s
FROM devices d
JOIN hosts h ON h.id = d.host_id
LEFT JOIN batches b ON b.device_id = d.id AND b.state = 'leased'
LEFT JOIN campaigns g ON g.id = b.campaign_id
ORDER BY h.name, d.uuid
""")


def overview(connection: Connection, *, silent_after: float) -> Sequence[dict[str, Any]]:
    """Every device with its host, whether it lives, and what it does."""
    return [dict(row) for row in connection.execute(_LIST, {"silent_after": silent_after}).mappings()]


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
