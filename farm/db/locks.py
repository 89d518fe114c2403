"""Which sessions have held locks on the farm's tables for long, and what waits for them. Read-only.

Row locks are in no view of Postgres. A session that holds some also holds a lock on their table, in a mode that reading
does not take, until its transaction ends. Which job groups it holds follows from the xmax of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from farm.formatting import holder_text

LONG_HOLD_SECONDS = 3.0
"""Transactions of the farm's own programs are shorter, but for submissions, deletions and imports of many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that has held locks on tables of the farm for long.

    `since` and `held_s` are None where Postgres does not tell the farm's role about sessions of others.
    """

    pid: int
    program: str  # application_name
    user: str | None
    host: str | None  # None: over a socket of the database's own host
    since: datetime | None
    held_s: float | None
    # Whether it stands still in the middle of its transaction.
    idle: bool
    tables: tuple[str, ...]
    # Of active campaigns, that wait for it.
    groups: tuple[int, ...] = ()

    @property
    def how_to_end(self) -> str:
        """The SQL that ends the session, and with it its locks."""
        return f"SELECT pg_terminate_backend({self.pid})"


# COPY into a temporary table, reading, and vacuuming by Postgres itself hold up nobody.
_HOLDERS = text("""
SELECT a.pid, a.application_name AS program, a.usename AS user, host(a.client_addr) AS host, a.xact_start AS since,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS held_s,
    coalesce(starts_with(a.state, 'idle in transaction'), false) AS idle,
    array_agg(DISTINCT c.relname::text ORDER BY c.relname::text) AS tables
FROM pg_locks k
JOIN pg_class c ON c.oid = k.relation AND c.relkind = 'r'
    AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = CAST('campaigns' AS regclass))
JOIN pg_stat_activity a ON a.pid = k.pid AND a.datname = current_database()
WHERE k.locktype = 'relation' AND k.granted AND k.pid <> pg_backend_pid()
  AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND k.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
  AND (
      a.xact_start < clock_timestamp() - make_interval(secs => :longer_than)
      OR (a.xact_start IS NULL AND NOT starts_with(a.application_name, 'farm'))
  )
GROUP BY a.pid, a.application_name, a.usename, a.client_addr, a.xact_start, a.state
ORDER BY a.xact_start NULLS LAST, a.pid
""")
_GROUPS = text("""
WITH held AS MATERIALIZED (
    SELECT pid, transactionid FROM pg_locks
    WHERE locktype = 'transactionid' AND granted AND pid = ANY(:pids)
), rows AS (
    SELECT l.id, l.xmax AS row_xmax FROM campaigns c JOIN lanes l ON l.campaign_id = c.id WHERE c.state = 'active'
    UNION ALL
    SELECT l.id, c.xmax FROM campaigns c JOIN lanes l ON l.campaign_id = c.id WHERE c.state = 'active'
)
SELECT DISTINCT h.pid, r.id AS lane_id
FROM rows r CROSS JOIN LATERAL lockers(r.row_xmax) AS x(xid) JOIN held h ON h.transactionid = x.xid
WHERE r.row_xmax <> '0' ORDER BY h.pid, r.id
""")


def holders(connection: Connection, *, longer_than: float = LONG_HOLD_SECONDS) -> list[LockHolder]:
    """The sessions whose transactions have held locks on tables of the farm for more than that many seconds, the oldest first."""
    found: list[dict[str, Any]] = [
        dict(row) for row in connection.execute(_HOLDERS, {"longer_than": longer_than}).mappings()
    ]
    groups: dict[int, list[int]] = {}
    if found:
        for row in connection.execute(_GROUPS, {"pids": [one["pid"] for one in found]}):
            groups.setdefault(row.pid, []).append(row.lane_id)
    return [
        LockHolder(**{**one, "tables": tuple(one["tables"]), "groups": tuple(groups.get(one["pid"], ()))})
        for one in found
    ]


def text_of(holder: LockHolder) -> str:
    """The holder in words: which session, since when, and how to end it."""
    return holder_text(
        pid=holder.pid,
        program=holder.program,
        user=holder.user,
        host=holder.host,
        held_s=holder.held_s,
        idle=holder.idle,
        tables=holder.tables,
        how_to_end=holder.how_to_end,
    )
