"""Sessions of devices: which `farm-worker` serves a device, and which rows two workers measured at the same time.

A worker that announces a device begins a session with an increasing number, its epoch. While a session sends heartbeats, no
other session begins, unless the new worker holds the same lock on the same host: then the earlier worker has ended. A silent
session is taken over. If its worker comes back, it is fenced: it claims nothing, its heartbeats have no effect, and its process
ends. Rows that it measured in the meantime overlap with rows of its successor. Views, comparisons and models exclude them.

When the worker of a new session starts, it ends the leases of the earlier session.
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
from farm.formatting import seconds_text

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
class DeviceSession:
    """The right to serve a device until another session has a greater epoch."""

    device_id: int
    epoch: int


_BEGIN = text("""
SELECT * FROM worker_begin_session(
    :host, CAST(:host_facts AS jsonb), :uuid, :type, :name, :backend, CAST(:traits AS jsonb), CAST(:facts AS jsonb),
    :pid, :lock, :silent_after
)
""")


def begin(
    connection: Connection, device: DeviceIdentity, server: Server, *, host_facts: dict[str, Any], silent_after: float
) -> DeviceSession:
    """Announces the device and begins a session of it.

    Raises `DeviceContended` if another session is live. The refusal is recorded, so the caller must commit.
    """
    parameters = devices.registration(server.host, host_facts, device)
    parameters |= {"pid": server.pid, "lock": server.lock, "silent_after": silent_after}
    begun = connection.execute(_BEGIN, parameters).one()
    if begun.epoch is None:
        raise DeviceContended(
            device=device.uuid,
            holder=f"process {begun.holder_pid} on {begun.holder_host}",
            ago=seconds_text(begun.silent_s),
            silent_after=f"{silent_after:g}",
        )
    return DeviceSession(begun.device_id, begun.epoch)


_EPOCH = text("SELECT session_epoch, session_host, session_pid FROM devices WHERE id = :device_id")


def check(connection: Connection, device_id: int, epoch: int) -> None:
    """Raises `SessionLost` if another session of the device has begun."""
    now = connection.execute(_EPOCH, {"device_id": device_id}).one()
    if now.session_epoch != epoch:
        raise SessionLost(epoch=epoch, device=device_id, holder=f"process {now.session_pid} on {now.session_host}")


_OVERLAP = text("SELECT worker_note_overlap(:device_id, :epoch, :began, :ended)")


def note_overlap(connection: Connection, device_id: int, epoch: int, *, began_s_ago: float, ended_s_ago: float) -> bool:
    """Records when a lost session may have measured. Returns whether this overlaps with its successor."""
    parameters = {"device_id": device_id, "epoch": epoch, "began": began_s_ago, "ended": ended_s_ago}
    noted: bool = connection.execute(_OVERLAP, parameters).scalar_one()
    return noted


@dataclass(frozen=True, slots=True, kw_only=True)
class ContendedDevice:
    """A device that two workers claimed, or on which two workers measured at the same time."""

    device_id: int
    uuid: str
    host: str
    session_host: str | None
    session_pid: int | None
    session_began_at: datetime | None
    # The last refused worker, and when it was refused.
    contended_at: datetime | None
    contended_by: str | None
    contended_s: float | None
    overlaps: int
    overlapped_rows: int

    @property
    def text(self) -> str:
        """The problem as text."""
        parts = []
        if self.contended_by is not None and self.contended_s is not None:
            parts.append(
                f"{self.contended_by} wanted to serve it {seconds_text(self.contended_s)} ago, and process "
                f"{self.session_pid} on {self.session_host} does; stop one of the two"
            )
        if self.overlaps:
            parts.append(
                f"{self.overlapped_rows:,} rows were measured while another worker used the device, and are left out of results"
            )
        return f"{self.uuid}: {'; '.join(parts)}"


RECENT_SECONDS = 600.0
"""How long a refusal is shown."""

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


def contended(connection: Connection) -> Sequence[ContendedDevice]:
    """Lists devices with a recent refusal, and devices with overlapping rows."""
    return [ContendedDevice(**row) for row in connection.execute(_LISTED, {"lately": RECENT_SECONDS}).mappings()]
