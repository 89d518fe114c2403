"""The archive of deleted campaigns and imports. It holds all their rows as JSON until they are restored or vacuumed.

A deletion moves all rows of a campaign or import from the farm's tables to `deleted_rows`. So no query or view needs a filter
that hides deleted rows. A restore moves them back with the same ids.

Problems and kernel parameters (`configurations`) and software versions (`environments`) are shared and stay. Sentinels
describe a device over time. They stay too, without the name of the campaign.

The caller owns the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from farm.db import imports
from farm.db.engine import hold_briefly
from farm.db.states import DeletionKind
from farm.devices import IMPORTED_PREFIX
from farm.errors import CannotRestore, NoSuchDeletion

PART_ROWS = 1000
"""Rows in one array of `deleted_rows`: Postgres compresses an array, and not a single row."""

GROUPS = "(SELECT id FROM lanes WHERE campaign_id = :id)"
DEVICES = "(SELECT id FROM devices WHERE starts_with(uuid, :prefix))"
TABLES: dict[DeletionKind, dict[str, str]] = {
    DeletionKind.CAMPAIGN: {
        "campaigns": "t.id = :id",
        "lanes": "t.campaign_id = :id",
        "jobs": f"t.lane_id IN {GROUPS}",
        "batches": f"t.lane_id IN {GROUPS}",
        "failures": f"t.lane_id IN {GROUPS}",
        "returned_jobs": f"t.lane_id IN {GROUPS}",
        "waiting_jobs": f"t.lane_id IN {GROUPS}",
        "measurements": "t.campaign_id = :id AND t.source <> 'sentinel'",
    },
    DeletionKind.IMPORT: {
        "devices": "starts_with(t.uuid, :prefix)",
        "measurements": f"t.device_id IN {DEVICES}",
    },
}
"""The tables that have rows of a campaign or import, and which rows: a table comes after those that it refers to."""

_SENTINELS = "sentinels"
"""In `deleted_rows.source_table`: the ids of the sentinels that lost their campaign."""

_ALLOW = text("SELECT set_config('farm.deleting', 'on', true)")
_FORBID = text("SELECT set_config('farm.deleting', '', true)")


def _move(table: str, condition: str) -> str:
    return f"""
WITH gone AS (
    DELETE FROM {table} t WHERE {condition} RETURNING to_jsonb(t) AS content
), numbered AS (
    SELECT content, (row_number() OVER () - 1) / {PART_ROWS} AS part FROM gone
), parts AS (
    INSERT INTO deleted_rows (deletion_id, source_table, part, content)
    SELECT :deletion_id, '{table}', part, jsonb_agg(content) FROM numbered GROUP BY part
)
SELECT count(*) FROM gone
"""


_DETACH = text(f"""
WITH kept AS (
    UPDATE measurements SET campaign_id = NULL WHERE campaign_id = :id AND source = 'sentinel' RETURNING id
)
INSERT INTO deleted_rows (deletion_id, source_table, part, content)
SELECT :deletion_id, '{_SENTINELS}', 0, jsonb_agg(id) FROM kept HAVING count(*) > 0
""")
_ATTACH = text(f"""
UPDATE measurements SET campaign_id = (
    SELECT CAST(content -> 0 ->> 'id' AS bigint) FROM deleted_rows
    WHERE deletion_id = :deletion_id AND source_table = 'campaigns'
)
WHERE id IN (
    SELECT CAST(jsonb_array_elements_text(content) AS bigint) FROM deleted_rows
    WHERE deletion_id = :deletion_id AND source_table = '{_SENTINELS}'
)
""")


# --- moving rows out -----------------------------------------------------------------------------------

_LOCK_DIGEST = text("SELECT pg_advisory_xact_lock(hashtextextended('campaign ' || :digest, 0))")
_INSERT = text("""
INSERT INTO deletions (kind, name, key, deleted_by, jobs, rows, bytes, kernels)
VALUES (:kind, :name, :key, :by, 0, 0, 0, :kernels) RETURNING id
""")
_SIZE = text("""
UPDATE deletions SET jobs = :jobs, rows = :rows, bytes = (
    SELECT coalesce(sum(pg_column_size(content)), 0) FROM deleted_rows WHERE deletion_id = :deletion_id
) WHERE id = :deletion_id
""")
# A device counts what it measured, in batches that are folded: see `batches.fold`.
_COUNTED = """
SELECT device_id, sum(done) AS done FROM batches
WHERE folded AND done > 0 AND lane_id IN (SELECT id FROM lanes WHERE campaign_id = :id) GROUP BY device_id
"""
_LOCK_DEVICES = text(f"""
SELECT id FROM devices WHERE id IN (SELECT device_id FROM ({_COUNTED}) c) ORDER BY id FOR NO KEY UPDATE
""")
_COUNT = text(f"""
UPDATE devices d SET measured = d.measured + :sign * c.done FROM ({_COUNTED}) c WHERE d.id = c.device_id
""")


def lock_digest(connection: Connection, digest: str) -> None:
    """Locks the digest of a campaign until the transaction ends, so no other program submits, deletes or restores that campaign."""
    connection.execute(_LOCK_DIGEST, {"digest": digest})


def move_out(
    connection: Connection,
    kind: DeletionKind,
    *,
    name: str,
    key: str,
    by: str,
    kernels: Sequence[str] = (),
    campaign_id: int | None = None,
) -> int:
    """Moves the rows of a campaign (of that id) or import into the archive. Returns the id of the deletion.

    The caller holds the locks that keep others from adding rows. See `farm.db.deletions`.
    """
    which: dict[str, Any] = {"id": campaign_id}
    if kind is DeletionKind.IMPORT:
        which = {"prefix": imports.uuid_of(key, "")}
    else:
        connection.execute(_LOCK_DEVICES, which)
        connection.execute(_COUNT, {**which, "sign": -1})
    new = {"kind": kind, "name": name, "key": key, "by": by, "kernels": list(kernels)}
    deletion: int = connection.execute(_INSERT, new).scalar_one()
    which["deletion_id"] = deletion
    connection.execute(_ALLOW)
    if kind is DeletionKind.CAMPAIGN:
        connection.execute(_DETACH, which)
    moved = {
        table: connection.execute(text(_move(table, condition)), which).scalar_one()
        for table, condition in reversed(TABLES[kind].items())
    }
    connection.execute(_FORBID)
    size = {"jobs": moved.get("jobs", 0), "rows": moved["measurements"]}
    connection.execute(_SIZE, {**size, "deletion_id": deletion})
    return deletion


# --- finding and putting back --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A deletion. `bytes` is the size of its rows in the database."""

    id: int
    kind: DeletionKind
    name: str
    key: str
    deleted_at: datetime
    deleted_by: str
    jobs: int
    rows: int
    bytes: int


LIST = """
SELECT id, kind, name, key, deleted_at, deleted_by, jobs, rows, bytes FROM deletions
WHERE {condition} ORDER BY id DESC
"""
_ALL = text(LIST.format(condition="true"))
_FIND = text(
    LIST.format(
        condition="kind = :kind AND (name = :name OR (CAST(:key AS text) IS NOT NULL AND starts_with(key, :key)))"
    )
    + " LIMIT 1"
)
_OF_DIGEST = text(LIST.format(condition="kind = 'campaign' AND key = :digest") + " LIMIT 1")
_LOCK = text("SELECT id FROM deletions WHERE id = :id FOR UPDATE")


def listed(connection: Connection) -> list[Deleted]:
    """Every deletion, the newest first."""
    return [deleted(row) for row in connection.execute(_ALL).mappings()]


def deleted(row: Any) -> Deleted:
    return Deleted(**{**row, "kind": DeletionKind(row["kind"])})


def find(connection: Connection, kind: DeletionKind, name: str) -> Deleted:
    """The newest deletion with that name, or with a key that begins with it. Raises `NoSuchDeletion`."""
    digits = name.removeprefix(IMPORTED_PREFIX)
    key = digits if re.fullmatch(r"[0-9a-f]{6,64}", digits) else None
    row = connection.execute(_FIND, {"kind": kind, "name": name, "key": key}).mappings().one_or_none()
    if row is None:
        known = ", ".join(dict.fromkeys(one.name for one in listed(connection) if one.kind is kind)) or "none"
        raise NoSuchDeletion(kind=kind, name=name, known=known)
    return deleted(row)


def restore(connection: Connection, kind: DeletionKind, name: str) -> Deleted:
    """Restores a deleted campaign or import. Raises `NoSuchDeletion`, `CannotRestore`."""
    found = find(connection, kind, name)
    hold_briefly(connection)
    if kind is DeletionKind.CAMPAIGN:
        lock_digest(connection, found.key)
    elif imports.claim(connection, found.key):
        raise CannotRestore(kind=kind, name=found.name, why="the same file was imported again since")
    if not _restore(connection, found):  # another session restored it
        raise NoSuchDeletion(kind=kind, name=name, known="none")
    return found


def restore_digest(connection: Connection, digest: str) -> bool:
    """Restores the campaign of that digest if it is deleted. Returns whether it was. The caller has locked the digest."""
    row = connection.execute(_OF_DIGEST, {"digest": digest}).mappings().one_or_none()
    return row is not None and _restore(connection, deleted(row))


def deleted_digests(connection: Connection, name: str) -> set[str]:
    """The digests of the deleted campaigns of that name."""
    return {one.key for one in listed(connection) if one.kind is DeletionKind.CAMPAIGN and one.name == name}


_COLUMNS = text("""
SELECT quote_ident(a.attname) FROM pg_attribute a
WHERE a.attrelid = CAST(CAST(:table AS text) AS regclass) AND a.attnum > 0 AND NOT a.attisdropped AND a.attname IN (
    SELECT jsonb_object_keys(content -> 0) FROM deleted_rows
    WHERE deletion_id = :deletion_id AND source_table = CAST(:table AS text) AND part = 0
)
ORDER BY a.attnum
""")
_ID = text("SELECT id FROM campaigns WHERE digest = :digest")
_REMOVE = text("DELETE FROM deletions WHERE id = ANY(:ids)")


def _restore(connection: Connection, found: Deleted) -> bool:
    """Returns False if another program has restored or vacuumed the deletion."""
    if connection.execute(_LOCK, {"id": found.id}).one_or_none() is None:
        return False
    try:
        for table in TABLES[found.kind]:
            _put_back(connection, found.id, table)
    except IntegrityError as error:
        why = str(error.orig).splitlines()[0]
        raise CannotRestore(kind=found.kind, name=found.name, why=why) from error
    if found.kind is DeletionKind.CAMPAIGN:
        connection.execute(_ALLOW)
        connection.execute(_ATTACH, {"deletion_id": found.id})
        connection.execute(_FORBID)
        campaign = {"id": connection.execute(_ID, {"digest": found.key}).scalar_one()}
        connection.execute(_LOCK_DEVICES, campaign)
        connection.execute(_COUNT, {**campaign, "sign": 1})
    remove(connection, [found.id])
    return True


def _put_back(connection: Connection, deletion: int, table: str) -> None:
    """Inserts the rows of one table. Columns that were added after the deletion get their defaults."""
    columns = ", ".join(connection.execute(_COLUMNS, {"deletion_id": deletion, "table": table}).scalars())
    if not columns:
        return
    connection.execute(
        text(f"""
INSERT INTO {table} ({columns}) SELECT {columns}
FROM deleted_rows d CROSS JOIN LATERAL jsonb_populate_recordset(CAST(NULL AS {table}), d.content)
WHERE d.deletion_id = :deletion_id AND d.source_table = '{table}' ORDER BY d.part
"""),
        {"deletion_id": deletion},
    )


def remove(connection: Connection, ids: Sequence[int]) -> None:
    """Removes deletions and their rows permanently."""
    connection.execute(_REMOVE, {"ids": list(ids)})
