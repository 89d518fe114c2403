"""Sessions that hold locks on the farm's tables for a long time, and what waits for them. Read-only.

No view of Postgres shows row locks. But a session with row locks also holds a lock on the table, in a mode that readers do not
take, until its transaction ends. The xmax of rows shows which job groups it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from farm.formatting import seconds_text, some_of

LONG_HOLD_SECONDS = 3.0
"""Transactions of the farm are shorter, except for submissions, deletions and imports of many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds locks on tables of the farm for a long time.

    `since` and `held_s` are None if the farm's role may not see the sessions of other roles.
    """

    pid: int
    program: str  # application_name
    user: str | None
    host: str | None  # None: over a socket of the database's own host
    since: datetime | None
    held_s: float | None
    # Whether it is idle in its transaction.
    idle: bool
    tables: tuple[str, ...]
    # Job groups of active campaigns that wait for it.
    groups: tuple[int, ...] = ()

    @property
    def how_to_end(self) -> str:
        """The SQL that ends the session, and with it its locks."""
        return f"SELECT pg_terminate_backend({self.pid})"

    @property
    def session(self) -> str:
        """`session 4711 (psql, ann, 10.0.0.5)`."""
        whose = ", ".join(filter(None, [self.program or "no program's name", self.user, self.host]))
        return f"session {self.pid} ({whose})"

    @property
    def duration(self) -> str:
        """` for 2 min 05 s`, or nothing where it is not known."""
        return "" if self.held_s is None else f" for {seconds_text(self.held_s)}"

    @property
    def text(self) -> str:
        """Which session holds locks, since when, what it does, and how to end it."""
        idly = ", and stands still in its transaction" if self.idle else ""
        tables = some_of(self.tables, limit=6)
        return f"{self.session} has held locks on {tables}{self.duration}{idly}; {self.how_to_end} ends it"


# COPY into a temporary table, reads and autovacuum block nobody.
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
    """Sessions that hold locks on tables of the farm for more than `longer_than` seconds, the oldest first."""
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
