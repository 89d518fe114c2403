"""What keeps every coordinator from leading: a database that takes no writes, or a session that holds the leader's row. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.db.locks import LockHolder

# The default, and not the setting of this transaction: a report reads in a transaction that is read-only by itself.
_READ_ONLY = text("""
SELECT pg_is_in_recovery() AS standby, setting = 'on' AS refuses, source
FROM pg_settings WHERE name = 'default_transaction_read_only'
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnly:
    """Why a database takes no writes, and what to do about it."""

    why: str
    how_to_end: str

    def __str__(self) -> str:
        return f"the database takes no writes: {self.why}; {self.how_to_end}"


def read_only(connection: Connection) -> ReadOnly | None:
    """Why the database takes no writes; None where it takes them."""
    row = connection.execute(_READ_ONLY).one()
    return why_read_only(standby=row.standby, refuses=row.refuses, source=row.source)


def why_read_only(*, standby: bool, refuses: bool, source: str) -> ReadOnly | None:
    """As `read_only`.

    Args:
        standby: Whether the server is in recovery.
        refuses: Whether `default_transaction_read_only` is on.
        source: Where that is set, as `pg_settings.source` names it.
    """
    if standby:
        return ReadOnly(
            why="the server is a standby (pg_is_in_recovery)",
            how_to_end="set FARM_DATABASE_URL to the primary, or promote this server: SELECT pg_promote()",
        )
    if refuses:
        return ReadOnly(
            why=f"default_transaction_read_only is on (set by: {source})",
            how_to_end="turn it off there, and restart the programs of the farm that stay connected",
        )
    return None


def of_leading(*, read_only: ReadOnly | None, holders: Sequence[LockHolder]) -> str | None:
    """What keeps every coordinator from leading, in words, with what to do; None where nothing is known to.

    A term is taken and renewed by a write to the table `leadership`, and a session that holds locks there holds its one row.
    """
    if read_only is not None:
        return f"none can lead: {read_only}"
    held_by = [
        f"{one.session}{one.duration}; {one.how_to_end} ends it" for one in holders if "leadership" in one.tables
    ]
    return f"none can lead: the leader's row is held by {'; '.join(held_by)}" if held_by else None
