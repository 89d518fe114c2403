"""Deletes campaigns and imports, lists what depends on them, and vacuums old deletions.

`farm.db.archive` stores the deleted rows and restores them. The caller owns the transaction. Locks are taken in the order
of `farm.db.batches`: campaign, batches, job groups, devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from farm.db import archive, batches, campaigns, imports
from farm.db.archive import LIST, TABLES, Deleted
from farm.db.batches import ending
from farm.db.engine import hold_briefly
from farm.db.states import CampaignState, DeletionKind
from farm.devices import IMPORTED_PREFIX
from farm.errors import AmbiguousImport, CampaignHasOpenWork, NoSuchImport

OPEN_STATES = (CampaignState.ACTIVE, CampaignState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependents:
    """The contents of a campaign or import, and what depends on it."""

    kind: DeletionKind
    name: str
    # See `farm.db.tables.DeletionRow`.
    key: str
    owner: str | None = None
    # Of a campaign.
    state: str | None = None
    jobs: int = 0
    # Jobs that are still to be measured, and those that workers hold, of a cancelled campaign too.
    open_jobs: int = 0
    running: int = 0
    rounds: int = 0
    rows: int
    sentinels: int
    # The device types and sources of its rows, and since when they are in this farm: what models may have learned from.
    device_types: tuple[str, ...]
    sources: tuple[str, ...]
    since: datetime | None
    # Hashes of the kernels that it used or waits for, and how many of them nothing else uses.
    kernels: tuple[str, ...] = ()
    kernels_alone: int = 0
    # Other campaigns of that name, which stay.
    same_name: int = 0


_OF_CAMPAIGN = text("""
SELECT count(*) FILTER (WHERE r.source <> 'sentinel') AS rows, count(*) FILTER (WHERE r.source = 'sentinel') AS sentinels,
    coalesce(array_agg(DISTINCT d.type) FILTER (WHERE r.source <> 'sentinel'), '{}') AS device_types,
    coalesce(array_agg(DISTINCT r.source) FILTER (WHERE r.source <> 'sentinel'), '{}') AS sources,
    min(r.measured_at) AS since
FROM measurements r JOIN devices d ON d.id = r.device_id WHERE r.campaign_id = :id
""")
_OF_IMPORT = text(f"""
SELECT count(*) AS rows, 0 AS sentinels, coalesce(array_agg(DISTINCT d.type), '{{}}') AS device_types,
    coalesce(array_agg(DISTINCT r.source), '{{}}') AS sources,
    (SELECT min(first_seen_at) FROM devices WHERE id IN {archive.DEVICES}) AS since
FROM measurements r JOIN devices d ON d.id = r.device_id WHERE r.device_id IN {archive.DEVICES}
""")
_ROUNDS = text("SELECT count(DISTINCT round) AS rounds FROM lanes WHERE campaign_id = :id")
_SAME_NAME = text("SELECT count(*) FROM campaigns WHERE name = :name AND id <> :id")
_KERNELS = text(f"""
SELECT DISTINCT hash FROM (
    SELECT kernel_hash AS hash FROM measurements t WHERE {TABLES[DeletionKind.CAMPAIGN]["measurements"]}
    UNION ALL
    SELECT k.hash FROM lanes l JOIN waiting_jobs w ON w.lane_id = l.id JOIN kernels k ON k.id = w.kernel_id
    WHERE l.campaign_id = :id
) used WHERE EXISTS (SELECT 1 FROM kernels WHERE hash = used.hash) ORDER BY hash
""")
# A job that is open may need a kernel that no row and no waiting job names: while one of the family is, none is unused.
# Rows without a campaign, of imports and of sentinels whose campaign was deleted, need theirs too.
_UNUSED = text("""
SELECT k.hash FROM kernels k
WHERE k.hash = ANY(:hashes) AND k.state <> 'building'
  AND NOT EXISTS (SELECT 1 FROM deletions d WHERE k.hash = ANY(d.kernels) AND d.id <> ALL(:deletions))
  AND NOT EXISTS (
      SELECT 1 FROM waiting_jobs w JOIN lanes l ON l.id = w.lane_id
      WHERE w.kernel_id = k.id AND l.campaign_id IS DISTINCT FROM :id
  )
  AND k.hash NOT IN (
      SELECT kernel_hash FROM measurements
      WHERE kernel_hash = ANY(:hashes) AND (campaign_id IS NULL OR campaign_id IS DISTINCT FROM :id)
  )
  AND NOT EXISTS (
      SELECT 1 FROM jobs j JOIN lanes l ON l.id = j.lane_id JOIN configurations c ON c.id = j.configuration_id
      WHERE l.campaign_id IS DISTINCT FROM :id AND j.state = 'open' AND l.jobs > l.done + l.invalid + l.dead
        AND c.family = split_part(k.description ->> 'template', '/', 1)
  )
ORDER BY k.hash
""")


def unused_kernels(
    connection: Connection, hashes: Sequence[str], *, without_campaign: int | None = None, without: Sequence[int] = ()
) -> list[str]:
    """Returns the kernels that nothing uses, apart from that campaign and those deletions."""
    if not hashes:
        return []
    parameters = {"hashes": list(hashes), "id": without_campaign, "deletions": list(without)}
    return list(connection.execute(_UNUSED, parameters).scalars())


def dependents_of_campaign(connection: Connection, name: str) -> Dependents:
    """Lists what a deletion of the campaign would remove. Raises `NoSuchCampaign`."""
    found = campaigns.find(connection, name)
    campaign = {"id": found["id"]}
    counts = campaigns.counts(connection, found["id"])
    rows = connection.execute(_OF_CAMPAIGN, campaign).mappings().one()
    kernels = tuple(connection.execute(_KERNELS, campaign).scalars())
    return Dependents(
        kind=DeletionKind.CAMPAIGN,
        name=found["name"],
        key=found["digest"],
        owner=found["owner"],
        state=found["state"],
        jobs=sum(counts.values()) - counts["later"],
        open_jobs=campaigns.open_jobs(counts) if found["state"] in OPEN_STATES else 0,
        running=counts["running"],
        rounds=connection.execute(_ROUNDS, campaign).scalar_one(),
        **_listed(rows),
        kernels=kernels,
        kernels_alone=len(unused_kernels(connection, kernels, without_campaign=found["id"])),
        same_name=connection.execute(_SAME_NAME, {**campaign, "name": found["name"]}).scalar_one(),
    )


def dependents_of_import(connection: Connection, name: str) -> Dependents:
    """Lists what a deletion of the import would remove. Raises `NoSuchImport`, `AmbiguousImport`."""
    file, key = _find_import(connection, name)
    rows = connection.execute(_OF_IMPORT, {"prefix": imports.uuid_of(key, "")}).mappings().one()
    return Dependents(
        kind=DeletionKind.IMPORT,
        name=file,
        key=key,
        **_listed(rows),
    )


def _listed(row: Any) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


_IMPORTS = text(f"""
SELECT DISTINCT ON (key) key, facts ->> 'imported_from' AS file FROM (
    SELECT substr(uuid, {len(IMPORTED_PREFIX) + 1}, 16) AS key, facts, id FROM devices
    WHERE starts_with(uuid, '{IMPORTED_PREFIX}')
) d ORDER BY key, id
""")


def _find_import(connection: Connection, name: str) -> tuple[str, str]:
    """(file, key) of an import by the name of its file, or the first digits of its SHA-256 or of its devices' UUIDs."""
    known = [(row.file or row.key, row.key) for row in connection.execute(_IMPORTS)]
    digits = imports.key_of(name)
    by_key = re.fullmatch(r"[0-9a-f]{6,16}", digits) is not None
    found = [one for one in known if one[0] == name or (by_key and one[1].startswith(digits))]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{file} ({IMPORTED_PREFIX}{key})" for file, key in (found or known)[:12])
    if found:
        raise AmbiguousImport(name=name, candidates=listed)
    raise NoSuchImport(name=name, known=listed or "none")


_LOCK_CAMPAIGN = text("SELECT state FROM campaigns WHERE id = :id FOR NO KEY UPDATE")
# A folded batch is never changed again.
_LOCK_BATCHES = text(f"""
SELECT id FROM batches WHERE NOT folded AND lane_id IN {archive.GROUPS} ORDER BY id FOR NO KEY UPDATE
""")
_LOCK_GROUPS = text("SELECT id FROM lanes WHERE campaign_id = :id ORDER BY id FOR NO KEY UPDATE")


def delete_campaign(connection: Connection, name: str, *, by: str, cancel: bool = False) -> int:
    """Deletes a campaign with its jobs, rounds and rows. Returns the id of the deletion.

    A worker that still holds a batch of it loses the lease, lands nothing, and continues with other work. After a restore,
    the jobs of that batch are open again.

    Raises `NoSuchCampaign`, and `CampaignHasOpenWork` unless `cancel`.
    """
    digest = campaigns.find(connection, name)["digest"]
    hold_briefly(connection)
    archive.lock_digest(connection, digest)
    locked = campaigns.find(connection, digest)
    campaign = {"id": locked["id"]}
    if connection.execute(_LOCK_CAMPAIGN, campaign).scalar_one() in OPEN_STATES:
        waiting = campaigns.open_jobs(campaigns.counts(connection, campaign["id"]))
        if waiting and not cancel:
            raise CampaignHasOpenWork(name=locked["name"], jobs=waiting)
        if waiting:
            batches.cancel(connection, campaign["id"])
    for batch in list(connection.execute(_LOCK_BATCHES, campaign).scalars()):
        ending.release(connection, batch, reason="its campaign was deleted", suspect=False)
    connection.execute(_LOCK_GROUPS, campaign)
    found = dependents_of_campaign(connection, digest)
    return archive.move_out(
        connection,
        DeletionKind.CAMPAIGN,
        name=found.name,
        key=found.key,
        by=by,
        kernels=found.kernels,
        campaign_id=campaign["id"],
    )


def delete_import(connection: Connection, name: str, *, by: str) -> int:
    """Deletes an import with its devices and rows. Returns the id of the deletion.

    Raises `NoSuchImport`, `AmbiguousImport`.
    """
    file, key = _find_import(connection, name)
    hold_briefly(connection)
    if not imports.claim(connection, key):  # another session deleted it
        raise NoSuchImport(name=name, known="none")
    return archive.move_out(connection, DeletionKind.IMPORT, name=file, key=key, by=by)


_OLD = text(
    LIST.format(condition="deleted_at <= clock_timestamp() - CAST(:age AS interval)") + " FOR UPDATE SKIP LOCKED"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """Deletions of the given age, and the kernels that nothing else uses."""

    deletions: tuple[Deleted, ...]
    kernels: tuple[str, ...]


_KERNELS_OF = text("SELECT DISTINCT unnest(kernels) FROM deletions WHERE id = ANY(:ids)")
# Waits for submissions and landings in progress, whose kernels must be seen.
_LOCK_KERNELS = text("LOCK TABLE kernels IN SHARE ROW EXCLUSIVE MODE")
_REMOVE_KERNELS = text("DELETE FROM kernels WHERE hash = ANY(:hashes)")


def lock_kernels(connection: Connection) -> None:
    """Waits for submissions and landings in progress, and lets no other begin. Then no kernel becomes used meanwhile."""
    connection.execute(_LOCK_KERNELS)


def remove_kernels(connection: Connection, hashes: Sequence[str]) -> None:
    """Removes the rows of kernels. The caller has locked the table, and removes their code from the store."""
    connection.execute(_REMOVE_KERNELS, {"hashes": list(hashes)})


def vacuum(connection: Connection, *, older_than: timedelta, dry_run: bool = False) -> Vacuumed:
    """Permanently removes deletions of that age, except those that are being restored.

    Removes the rows of kernels that nothing else uses. The caller removes their code from the store.
    """
    old = [archive.deleted(row) for row in connection.execute(_OLD, {"age": older_than}).mappings()]
    ids = [one.id for one in old]
    used = list(connection.execute(_KERNELS_OF, {"ids": ids}).scalars())
    if not dry_run:
        archive.remove(connection, ids)
        if used:
            lock_kernels(connection)
    unused = unused_kernels(connection, used, without=ids)
    if not dry_run:
        remove_kernels(connection, unused)
    return Vacuumed(deletions=tuple(old), kernels=tuple(unused))
