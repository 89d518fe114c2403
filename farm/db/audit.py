"""The audit log: one row per change, written in the transaction of the change. Rows are never changed afterwards.

Every change on behalf of a person uses `change`. It records the change in the same transaction, so both are kept or neither is. A trigger refuses UPDATE, DELETE and TRUNCATE, to the table's owner too. `trim` turns the
trigger off, which only the table's owner may.

The registry of models is another database. A change there is recorded in a transaction that is committed after it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, text

from farm.db.states import Role, Way
from farm.system_account import login_name

log = logging.getLogger(__name__)

MAX_NAME = 500
"""Characters of a name in a row."""

MAX_JSON_BYTES = 4096
"""Maximum size of `before` and of `after` as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A person or program that changes the farm, and its origin."""

    name: str
    role: Role
    way: Way
    # The address of the client, or account@host.
    origin: str


@cache
def local_actor(name: str | None = None) -> Actor:
    """The account that runs this process. It may do everything. `name` is that of a program of the account."""
    account = login_name() or f"uid {os.getuid()}"
    return Actor(name=name or account, role=Role.OPERATE, way=Way.CLI, origin=f"{account}@{socket.gethostname()}")


_INSERT = text("""
INSERT INTO audit (who, role, way, origin, operation, kind, name, key, before, after)
VALUES (:who, :role, :way, :origin, :operation, :kind, :name, :key, CAST(:before AS jsonb), CAST(:after AS jsonb))
""")


class Change:
    """A transaction that changes the farm on a user's behalf."""

    def __init__(self, connection: Connection, actor: Actor, operation: str) -> None:
        self.connection = connection
        self.actor = actor
        self.operation = operation
        self.targets: list[str] = []
        self.is_empty = False

    def record(
        self,
        kind: str,
        name: str,
        *,
        key: str | None = None,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """Records what is changed.

        Args:
            kind: campaign, device, model, token, ...
            name: Its name, as people write it.
            key: A digest or UUID that distinguishes it from others of that name.
            before: The old values of what changes.
            after: The new values.
        """
        parameters = {
            "who": self.actor.name[:MAX_NAME],
            "role": self.actor.role,
            "way": self.actor.way,
            "origin": self.actor.origin[:MAX_NAME],
            "operation": self.operation,
            "kind": kind,
            "name": name[:MAX_NAME],
            "key": None if key is None else key[:MAX_NAME],
            "before": _written(before),
            "after": _written(after),
        }
        self.connection.execute(_INSERT, parameters)
        self.targets.append(f"{kind} {name[:MAX_NAME]}{f' ({key[:12]})' if key else ''}")

    def nothing(self) -> None:
        """Declares that nothing was changed, so no row is written."""
        self.is_empty = True


def _written(values: Mapping[str, Any] | None) -> str | None:
    if values is None:
        return None
    written = json.dumps(values, default=str, ensure_ascii=False).replace("\\u0000", "\\ufffd")  # which no jsonb takes
    written = written.encode(errors="replace").decode()
    return written if len(written) <= MAX_JSON_BYTES else json.dumps({"too_large": len(written)})


@contextmanager
def change(engine: Engine, actor: Actor, operation: str) -> Iterator[Change]:
    """Opens a transaction in which an operation changes the farm. The block must call `record` or `nothing`.

    If the block raises, neither the change nor its record is kept.
    """
    with engine.begin() as connection:
        made = Change(connection, actor, operation)
        yield made
        if not made.targets and not made.is_empty:
            raise RuntimeError(f"{operation} does not record what it changed")
    for target in made.targets:
        log.info("%s (%s, %s): %s %s", *map(_quoted, (actor.name, actor.way, actor.origin, operation, target)))


def _quoted(words: str) -> str:
    """Text without control characters, which could make one log line look like two."""
    return words if words.isprintable() else ascii(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord:
    """A recorded change."""

    id: int
    at: datetime
    who: str
    role: Role
    way: Way
    origin: str
    operation: str
    kind: str
    name: str
    key: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


_LIST = """
SELECT id, at, who, role, way, origin, operation, kind, name, key, before, after FROM audit
WHERE (CAST(:who AS text) IS NULL OR who = :who)
  AND (CAST(:what AS text) IS NULL OR strpos(operation, :what) > 0)
  AND (CAST(:on AS text) IS NULL OR strpos(kind || ' ' || name, :on) > 0 OR starts_with(key, :on))
  AND (CAST(:since AS timestamptz) IS NULL OR at >= :since)
  AND (CAST(:before AS bigint) IS NULL OR id < :before)
  AND (CAST(:after AS bigint) IS NULL OR id > :after)
ORDER BY id {order} LIMIT :limit
"""
_NEWEST = text(_LIST.format(order="DESC"))
_OLDEST = text(_LIST.format(order="ASC"))


def records(
    connection: Connection,
    *,
    who: str | None = None,
    what: str | None = None,
    on: str | None = None,
    since: datetime | None = None,
    before: int | None = None,
    after: int | None = None,
    limit: int,
) -> list[ChangeRecord]:
    """Changes, the newest first; with `after`, the next ones after that id, the oldest first.

    Args:
        connection: To read with.
        who: Only of this name.
        what: Only operations with this in their name.
        on: Only with this in what was changed (`campaign sweep`), or a key that begins so.
        since: Only from this time on.
        before: Only with a lower id.
        after: Only with a higher id.
        limit: Maximum number of changes.
    """
    parameters = {"who": who, "what": what, "on": on, "since": since, "before": before, "after": after, "limit": limit}
    rows = connection.execute(_NEWEST if after is None else _OLDEST, parameters).mappings()
    return [ChangeRecord(**{**row, "role": Role(row["role"]), "way": Way(row["way"])}) for row in rows]


_TRIGGER_OFF = text("ALTER TABLE audit DISABLE TRIGGER audit_stays")
_TRIM = text("DELETE FROM audit WHERE at < :before")
_TRIGGER_ON = text("ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stays")


def trim(change: Change, before: datetime) -> int:
    """Removes the rows from before that time, and records the removal. Returns the number of rows.

    Only the owner of the table may do this. Postgres refuses others.
    """
    change.connection.execute(_TRIGGER_OFF)
    removed = change.connection.execute(_TRIM, {"before": before}).rowcount
    change.connection.execute(_TRIGGER_ON)
    change.record("audit", f"before {before.isoformat(timespec='seconds')}", after={"removed": removed})
    return removed
