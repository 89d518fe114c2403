"""Database logins of worker hosts. A login acts only for the devices of its host.

The functions of workers (`farm.db.roles.FUNCTIONS`) look up the host of a login. A login without a host, from
`farm db worker-role`, acts for every host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql
from sqlalchemy import Connection, text

from farm.db import roles
from farm.db.measurements import cursor_of
from farm.errors import BadHostName, NoSuchHost

DEFAULT_PREFIX = "farm"
"""Prefix of logins."""

TRANSACTION_SECONDS = 300.0
"""The coordinator ends sessions of workers with a longer transaction. Usual ones take some milliseconds."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def login_of(host: str, prefix: str = DEFAULT_PREFIX) -> str:
    """The login of a host. Raises `BadHostName` for an invalid or too long name."""
    login = f"{prefix}_host_{host}"
    if not _NAME.fullmatch(host) or len(login.encode()) > roles.MAX_NAME_BYTES:
        raise BadHostName(name=host, longest=roles.MAX_NAME_BYTES - len(login.encode()) + len(host.encode()))
    return login


def add(connection: Connection, host: str, *, password: str | None, prefix: str = DEFAULT_PREFIX) -> str:
    """Creates the login of a host, or updates its rights. Returns its name.

    A password of None leaves the password unchanged. Raises `BadHostName`, `BadRole` and `RoleRefused`.
    """
    login = login_of(host, prefix)
    roles.set_up_worker_login(connection, login, host, password=password)
    return login


_LOCK = text("DELETE FROM worker_logins WHERE host = :host RETURNING login")


# Skips rows that a session of the host has locked, so it cannot delay its revocation. `remove` handles them.
_GIVE_AWAY = text("""
WITH these AS MATERIALIZED (
    SELECT d.id FROM devices d JOIN hosts h ON h.id = d.host_id
    WHERE h.name = :host AND d.vanished_at IS NULL ORDER BY d.id FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE devices d SET vanished_at = clock_timestamp(), last_seen_at = '-infinity' FROM these WHERE these.id = d.id
""")
_END_LEASES = text("""
WITH these AS MATERIALIZED (
    SELECT b.id FROM batches b JOIN devices d ON d.id = b.device_id JOIN hosts h ON h.id = d.host_id
    WHERE h.name = :host AND NOT b.folded AND b.state = 'leased' AND b.lease_expires_at > clock_timestamp()
    ORDER BY b.id FOR NO KEY UPDATE OF b SKIP LOCKED
)
UPDATE batches b SET lease_expires_at = clock_timestamp() FROM these WHERE these.id = b.id
""")


def _take_away(connection: Connection, host: str | None) -> None:
    for statement in (_END_LEASES, _GIVE_AWAY):
        connection.execute(statement, {"host": host})


def shut_out(connection: Connection, host: str) -> list[str]:
    """Disables the logins of a host from the commit on, connected or not. Returns them, for `remove`.

    Its devices count as gone, so another host can serve them. Its leases expire, so the coordinator gives their jobs to others.
    `remove` handles rows that a session of the host has locked. Raises `NoSuchHost` if the host has no login.
    """
    logins = list(connection.execute(_LOCK, {"host": host}).scalars())
    if not logins:
        raise NoSuchHost(name=host)
    _take_away(connection, host)
    with cursor_of(connection) as cursor:
        for login in logins:
            cursor.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(login)))
    return logins


_END = text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = ANY(:logins)")


def remove(connection: Connection, host: str | None, logins: list[str]) -> None:
    """Ends the connections of disabled logins, removes their roles, and handles rows that these connections had locked.

    `host` None: the logins acted for every host, so no device or lease is theirs alone.
    """
    connection.execute(_END, {"logins": logins})
    _take_away(connection, host)
    with cursor_of(connection) as cursor:
        for login in map(sql.Identifier, logins):
            cursor.execute(sql.SQL("DROP OWNED BY {}").format(login))
            cursor.execute(sql.SQL("DROP ROLE {}").format(login))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginNow:
    """A login of workers. `host` None: every host."""

    login: str
    host: str | None
    created_at: datetime
    devices: int
    last_seen_at: datetime | None


_KNOWN = text("""
SELECT w.login, w.host, w.created_at, count(d.id) AS devices, max(h.last_seen_at) AS last_seen_at
FROM worker_logins w LEFT JOIN hosts h ON h.name = w.host LEFT JOIN devices d ON d.host_id = h.id
GROUP BY w.login, w.host, w.created_at ORDER BY w.host NULLS LAST, w.login
""")


def list_logins(connection: Connection) -> list[LoginNow]:
    """Logins of workers, by host."""
    return [LoginNow(**row) for row in connection.execute(_KNOWN).mappings()]


_END_LONG = text("SELECT end_long_worker_transactions(:seconds)")


def end_long_transactions(connection: Connection, *, longer_than: float = TRANSACTION_SECONDS) -> list[str]:
    """Ends sessions of workers with a transaction longer than `longer_than` seconds, or with an advisory lock.

    Workers use no advisory locks, and other programs of the farm wait for theirs. Returns the logins of the ended sessions.
    """
    return list(connection.execute(_END_LONG, {"seconds": longer_than}).scalars())
