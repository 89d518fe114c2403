"""Which `farm-worker` serves a device now, and which rows two of them measured at the same time.

Each one that announces a device begins a session of it, with a number that only grows: its epoch. While a session is heard
of, no other begins, unless it holds the lock of the host that the earlier one held, which is gone then. One that falls
silent is taken over. When it is heard of again, it is fenced: it claims nothing, its heartbeats count for nothing, and its
process ends. What it measured meanwhile overlaps with the rows of its successor, and those are no results: views,
comparisons and models leave them out.

The leases of the earlier session end when the worker of the new one starts, so that it lands nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from farm.db import devices
from farm.devices import DeviceIdentity
from farm.errors import DeviceContended, SessionLost
from farm.texts import seconds_text

OVERLAPPED = """EXISTS (
    SELECT FROM device_overlaps o WHERE o.device_id = r.device_id AND r.measured_at BETWEEN o.since AND o.rows_until
)"""
"""SQL: whether a row of `measurements` (r) was measured while two sessions of its device measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The `farm-worker` that serves a device: its host, its pid there, and the lock that it holds (`DeviceLock.name`)."""

    host: str
    pid: int
    lock: str


@dataclass(frozen=True, slots=True)
class Session:
    """A right to serve a device, until another one has a greater epoch."""

    device_id: int
    epoch: int


_NOW = text("""
SELECT id, session_host, session_pid, session_lock,
    extract(epoch FROM clock_timestamp() - nullif(last_seen_at, '-infinity'))::float8 AS silent_s
FROM devices WHERE uuid = :uuid FOR NO KEY UPDATE
""")
_CONTENDED = text("""
UPDATE devices SET contended_at = clock_timestamp(), contended_by = :by WHERE id = :device_id
""")
_BEGIN = text("""
UPDATE devices SET session_epoch = session_epoch + 1, session_host = :host, session_pid = :pid, session_lock = :lock,
    session_began_at = clock_timestamp(), contended_at = NULL, contended_by = NULL
WHERE id = :device_id RETURNING session_epoch
""")


def begin(
    connection: Connection, device: DeviceIdentity, server: Server, *, host_facts: dict[str, Any], silent_after: float
) -> Session:
    """Announces the device and begins a session of it.

    Raises `DeviceContended` where another one is heard of. That is noted, so the caller must commit.
    """
    now = connection.execute(_NOW, {"uuid": device.uuid}).one_or_none()
    if (
        now is not None
        and now.session_lock not in (None, server.lock)
        and now.silent_s is not None
        and now.silent_s < silent_after
    ):
        by = f"process {server.pid} on {server.host}"
        connection.execute(_CONTENDED, {"device_id": now.id, "by": by})
        raise DeviceContended(
            device=device.uuid,
            holder=f"process {now.session_pid} on {now.session_host}",
            ago=seconds_text(now.silent_s),
            silent_after=f"{silent_after:g}",
        )
    device_id = devices.register(connection, host=server.host, host_facts=host_facts, device=device)
    parameters = {"device_id": device_id, "host": server.host, "pid": server.pid, "lock": server.lock}
    return Session(device_id, connection.execute(_BEGIN, parameters).scalar_one())


_EPOCH = text("SELECT session_epoch, session_host, session_pid FROM devices WHERE id = :device_id")


def check(connection: Connection, device_id: int, epoch: int) -> None:
    """Raises `SessionLost` where another session of the device began."""
    now = connection.execute(_EPOCH, {"device_id": device_id}).one()
    if now.session_epoch != epoch:
        raise SessionLost(epoch=epoch, device=device_id, holder=f"process {now.session_pid} on {now.session_host}")


_OVERLAP = text("""
INSERT INTO device_overlaps (device_id, since, until, rows_until, epoch)
SELECT id, w.since, w.until, w.until, :epoch
FROM devices d CROSS JOIN LATERAL (
    SELECT greatest(d.session_began_at, clock_timestamp() - make_interval(secs => :began)) AS since,
        clock_timestamp() - make_interval(secs => :ended) AS until
) w
WHERE d.id = :device_id AND d.session_epoch > :epoch AND w.until > w.since
""")


def note_overlap(connection: Connection, device_id: int, epoch: int, *, began_s_ago: float, ended_s_ago: float) -> bool:
    """A session that was lost says when it may have measured. Returns whether that was beside its successor."""
    parameters = {"device_id": device_id, "epoch": epoch, "began": began_s_ago, "ended": ended_s_ago}
    return bool(connection.execute(_OVERLAP, parameters).rowcount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """A device that two `farm-worker`s wanted to serve, or that two measured on at the same time."""

    device_id: int
    uuid: str
    host: str
    session_host: str | None
    session_pid: int | None
    session_began_at: datetime | None
    # When another one was refused last, and which.
    contended_at: datetime | None
    contended_by: str | None
    contended_s: float | None
    overlaps: int
    overlapped_rows: int

    @property
    def text(self) -> str:
        """What is wrong, in words."""
        parts = []
        if self.contended_by is not None and self.contended_s is not None:
            parts.append(
                f"{self.contended_by} wanted to serve it {seconds_text(self.contended_s)} ago, and process "
                f"{self.session_pid} on {self.session_host} does; stop one of the two"
            )
        if self.overlaps:
            parts.append(
                f"{self.overlapped_rows:,} rows were measured beside another worker and are left out of results"
            )
        return f"{self.uuid}: {'; '.join(parts)}"


LATELY_SECONDS = 600.0
"""For how long a refusal is shown."""

_LISTED = text("""
SELECT d.id AS device_id, d.uuid, h.name AS host, d.session_host, d.session_pid, d.session_began_at,
    CASE WHEN c.lately THEN d.contended_at END AS contended_at,
    CASE WHEN c.lately THEN d.contended_by END AS contended_by,
    CASE WHEN c.lately THEN extract(epoch FROM clock_timestamp() - d.contended_at)::float8 END AS contended_s,
    coalesce(o.overlaps, 0) AS overlaps, coalesce(o.rows, 0) AS overlapped_rows
FROM devices d JOIN hosts h ON h.id = d.host_id
CROSS JOIN LATERAL (
    SELECT d.contended_at > clock_timestamp() - make_interval(secs => :lately) AS lately
) c
LEFT JOIN (
    SELECT o.device_id, count(DISTINCT o.id) AS overlaps, count(DISTINCT r.id) AS rows
    FROM device_overlaps o LEFT JOIN measurements r
        ON r.device_id = o.device_id AND r.measured_at BETWEEN o.since AND o.rows_until
    GROUP BY o.device_id
) o ON o.device_id = d.id
WHERE c.lately OR o.device_id IS NOT NULL ORDER BY h.name, d.uuid
""")


def contended(connection: Connection) -> Sequence[Contended]:
    """The devices that two wanted to serve lately, or that have rows which two measured at the same time."""
    return [Contended(**row) for row in connection.execute(_LISTED, {"lately": LATELY_SECONDS}).mappings()]
