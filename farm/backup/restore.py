"""Restores a backup into an empty database, in one transaction, and its registry next to it.

Every file is checked before anything is written. After loading, each table is read again and compared with the backup. A
backup of an older revision is loaded into the tables of that revision, which are then migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from farm.backup import database
from farm.backup.database import Tally
from farm.backup.errors import BackupDamaged, RestoreDiffers, TargetNotEmpty
from farm.backup.files import blocks_of, copied, open_inside
from farm.backup.manifest import BackupFile, BackupRegistry, BackupTable, Manifest
from farm.backup.registry import FILES, LocalRegistry
from farm.backup.tables import KEPT
from farm.backup.verify import check_files, require_known, require_same, rows_of
from farm.builds.stores import DATABASE, store_of
from farm.db import audit, migrate
from farm.services.urls import safe_url
from farm.settings import Settings

OPERATION = "backup_restore"
"""In the audit log: a backup was restored."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored. `registry` is its file; None where the backup has none, or models are on a server."""

    manifest: Manifest
    registry: Path | None


def restore(engine: Engine, settings: Settings, folder: Path, *, report: Report = lambda _: None) -> Restored:
    """Restores a backup.

    Raises:
        NotABackup, BackupDamaged, BackupIsNewer, BackupTooOld: The backup cannot be used.
        TargetNotEmpty, RegistryThere: It would be mixed with something else.
        RestoreDiffers: The database does not have the rows that were loaded.
        In each case nothing is restored.
    """
    with engine.connect() as connection:
        require_empty(connection)
    target = LocalRegistry.of(settings.tracking_uri)
    found = check_files(folder, report)
    require_known(folder, found)
    with ExitStack() as drafts:
        draft = None
        if found.registry is not None and target is not None:
            target.require_new()
            report("registry")
            draft = drafts.enter_context(target.draft())
            _fill_registry(folder, found.registry, draft, target)
        with engine.begin() as connection:
            migrate.alone(connection, None)
            require_empty(connection)
            database.wait_long(connection)
            _load(connection, folder, found, report)
            report("kernels")
            _put_kernels(connection, engine, settings, folder, found)
            facts = {"rows": found.rows, "snapshot_at": found.created_at.isoformat(), "farm": found.farm_version}
            change = audit.Change(connection, audit.local_actor(), OPERATION)
            change.record("backup", str(folder.absolute()), after=facts)
            if draft is not None and target is not None:
                target.put_in_place(draft)
    return Restored(found, None if draft is None or target is None else target.file)


def _load(connection: Connection, folder: Path, found: Manifest, report: Report) -> None:
    """Loads the tables of a backup, and brings them to the present revision."""
    if unknown := {table.name for table in found.tables} - KEPT:
        raise BackupDamaged(folder=folder, why=f"it has rows of {min(unknown)}, which is no table of a backup")

    def rows(table: BackupTable) -> Callable[[], Iterator[bytes]]:
        return lambda: rows_of(folder, table)

    loading = [(table.name, table.columns, rows(table)) for table in found.tables]
    tallies = load_tables(connection, found.revision, loading, report)
    for table in found.tables:
        require_same(folder, table, tallies[table.name])
        database.set_last(connection, database.layout_of(connection, table.name), table.sequence)
    migrate.complete(connection)


def _fill_registry(folder: Path, found: BackupRegistry, draft: LocalRegistry, target: LocalRegistry) -> None:
    _copy(folder, found.database, draft.file)
    for file in found.files:
        below = file.path.removeprefix(f"{FILES}/")
        if below == file.path:
            raise BackupDamaged(folder=folder, why=f"{file.path} is not in {FILES}")
        _copy(folder, file, draft.artifacts / below)
    draft.relocate(found.artifacts, target.artifacts.as_uri())


def _copy(folder: Path, file: BackupFile, to: Path) -> None:
    try:
        with open_inside(folder, file.path) as source:
            written = copied(blocks_of(source), to)
    except OSError as error:
        raise BackupDamaged(folder=folder, why=f"{file.path} cannot be copied to {to}: {error.strerror}") from None
    if written != (file.bytes, file.sha256):  # changed since it was checked
        raise BackupDamaged(folder=folder, why=f"{file.path} changes")


_PUT = text("INSERT INTO kernel_code (hash, code) VALUES (:hash, :code)")


def _put_kernels(connection: Connection, engine: Engine, settings: Settings, folder: Path, found: Manifest) -> None:
    """Puts the code of kernels into the store of this farm: the database, in this transaction, or another one."""
    store = None if settings.kernel_store == DATABASE else store_of(settings, engine)
    for kernel in found.kernels:
        with open_inside(folder, kernel.file.path) as file:
            code = file.read()
        if store is None:
            connection.execute(_PUT, {"hash": kernel.hash, "code": code})
        else:
            store.put(kernel.hash, code)


_ANY_TABLE = text("""
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = CAST(current_schema() AS regnamespace) AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
  AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relkind <> 'r', c.relname LIMIT 1
""")


def require_empty(connection: Connection) -> None:
    """Raises `TargetNotEmpty` for a database that has tables, also where these have no rows."""
    table = connection.execute(_ANY_TABLE).scalar_one_or_none()
    if table is not None:
        raise TargetNotEmpty(url=safe_url(str(connection.engine.url)), table=table)


def load_tables(
    connection: Connection,
    revision: str,
    tables: Iterable[tuple[str, list[str], Callable[[], Iterator[bytes]]]],
    report: Report = lambda _: None,
) -> Mapping[str, Tally]:
    """Creates the tables of a revision, loads rows into them, and reads them again.

    Args:
        tables: name, columns and rows of each table.

    Returns:
        The tally of the rows of each table, which are the same before and after loading.

    Raises:
        RestoreDiffers: They are not.
    """
    migrate.create_tables(connection, revision)
    every = list(tables)
    names = [name for name, _, _ in every]
    if names:
        connection.execute(text(f"TRUNCATE {', '.join(names)} CASCADE"))  # a migration may have stored rows
    tallies = {}
    for name, columns, rows in every:
        report(name)
        tally = tallies[name] = Tally()
        database.load(connection, name, columns, tally.through(rows()))
        again = Tally()
        again.add(database.rows_of(connection, database.layout_of(connection, name), columns=columns))
        if (again.rows, again.sha256) != (tally.rows, tally.sha256):
            raise RestoreDiffers(table=name, found=f"{again.rows:,} rows", expected=f"{tally.rows:,}")
    return tallies
