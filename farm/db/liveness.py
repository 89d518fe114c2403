"""Liveness and state of devices, and their recent failures. Read-only."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from farm.db.states import DeviceState
from farm.devices import IMPORTED_PREFIX


class Presence(StrEnum):
    """Liveness of a device's worker."""

    LIVE = "live"
    SILENT = "silent"  # no heartbeat for `FARM_SILENT_AFTER_SECONDS`
    STOPPED = "stopped"  # it deregistered
    GONE = "gone"  # its host no longer has the device
    IMPORTED = "imported"  # it was measured elsewhere and has no worker


def _takes_work(state: DeviceState, presence: Presence) -> bool:
    return state is DeviceState.ACTIVE and presence is Presence.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """A device with its liveness and state. Ages are in seconds by Postgres's clock."""

    device_id: int
    uuid: str
    type: str
    host: str
    state: DeviceState
    reason: str | None
    state_s: float  # since its state changed
    presence: Presence
    silent_s: float | None  # since its last heartbeat; None if it stopped or is gone
    vanished_s: float | None  # since its host no longer has it
    batch_id: int | None  # the leased batch
    # The version of its worker; None: not announced.
    worker_version_id: int | None = None
    worker_version: str | None = None
    worker_revision: str | None = None
    # Why its worker could not claim a batch last time, and how long ago.
    claim_error: str | None = None
    claim_error_s: float | None = None
    # Seconds until its next trial, where it is on probation; below zero: it is due.
    next_trial_s: float | None = None

    def is_among(self, refusers: Container[int]) -> bool:
        """Whether the device or the version of its worker is in `refusers`."""
        version = self.worker_version_id
        return self.device_id in refusers or (version is not None and -version in refusers)

    @property
    def takes_work(self) -> bool:
        return _takes_work(self.state, self.presence)


_EVERY_DEVICE = f"""
SELECT d.id AS device_id, d.uuid, d.type, h.name AS host, d.state, d.state_reason AS reason, b.batch_id,
    CASE
        WHEN starts_with(d.uuid, '{IMPORTED_PREFIX}') THEN 'imported'
        WHEN d.vanished_at IS NOT NULL THEN 'gone'
        WHEN d.last_seen_at = '-infinity' THEN 'stopped'
        WHEN d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) THEN 'live'
        ELSE 'silent'
    END AS presence,
    extract(epoch FROM clock_timestamp() - d.state_changed_at)::float8 AS state_s,
    extract(epoch FROM clock_timestamp() - nullif(d.last_seen_at, '-infinity'))::float8 AS silent_s,
    extract(epoch FROM clock_timestamp() - d.vanished_at)::float8 AS vanished_s,
    d.worker_version_id, v.version AS worker_version, v.revision AS worker_revision,
    d.claim_error, extract(epoch FROM clock_timestamp() - d.claim_error_at)::float8 AS claim_error_s,
    extract(epoch FROM d.next_trial_at - clock_timestamp())::float8 AS next_trial_s
FROM devices d
JOIN hosts h ON h.id = d.host_id
LEFT JOIN worker_versions v ON v.id = d.worker_version_id
LEFT JOIN (
    SELECT device_id, max(id) AS batch_id FROM batches WHERE NOT folded AND state = 'leased' GROUP BY device_id
) b ON b.device_id = d.id
"""

_DEVICES = text(f"{_EVERY_DEVICE} ORDER BY host, uuid")


def devices(connection: Connection, *, silent_after: float) -> list[DeviceNow]:
    """Every device that was ever announced."""
    return _devices_of(connection, _DEVICES, silent_after=silent_after)


_PAGE = text(f"""
SELECT * FROM ({_EVERY_DEVICE}) known
WHERE (CAST(:host AS text) IS NULL OR host = :host) AND (CAST(:type AS text) IS NULL OR type = :type)
ORDER BY presence <> 'silent', presence = 'imported', host, uuid LIMIT :limit OFFSET :offset
""")


def page(
    connection: Connection,
    *,
    silent_after: float,
    host: str | None = None,
    type_: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[DeviceNow]:
    """Some devices of a host and a type, of all without. Silent devices come first, and imported ones last."""
    return _devices_of(connection, _PAGE, silent_after=silent_after, host=host, type=type_, limit=limit, offset=offset)


def _devices_of(connection: Connection, statement: TextClause, **parameters: Any) -> list[DeviceNow]:
    return [
        DeviceNow(**{**row, "state": DeviceState(row["state"]), "presence": Presence(row["presence"])})
        for row in connection.execute(statement, parameters).mappings()
    ]


_TALLIES = text(f"""
SELECT state, presence, batch_id IS NOT NULL AS busy, count(*) AS devices
FROM ({_EVERY_DEVICE}) known GROUP BY state, presence, busy
""")


class DeviceTally(NamedTuple):
    """How many devices are in the same state."""

    state: DeviceState
    presence: Presence
    busy: bool
    devices: int

    @property
    def takes_work(self) -> bool:
        return _takes_work(self.state, self.presence)


def device_tallies(connection: Connection, *, silent_after: float) -> list[DeviceTally]:
    """Every device that was ever announced, counted by state."""
    rows = connection.execute(_TALLIES, {"silent_after": silent_after})
    return [DeviceTally(DeviceState(row.state), Presence(row.presence), row.busy, row.devices) for row in rows]


_ERRORS = text("""
SELECT device_id, kind, count(*) AS failures FROM failures
WHERE device_id = ANY(:ids)
    AND at > statement_timestamp() - make_interval(secs => :window)
GROUP BY device_id, kind ORDER BY device_id, kind
""")


def device_errors(
    connection: Connection, ids: Sequence[int], *, window_seconds: float = 3600.0
) -> dict[int, dict[str, int]]:
    """Number of recently failed attempts on each of the devices, by kind. Devices without any are left out."""
    found: dict[int, dict[str, int]] = {}
    for row in connection.execute(_ERRORS, {"ids": list(ids), "window": window_seconds}):
        found.setdefault(row.device_id, {})[row.kind] = row.failures
    return found
