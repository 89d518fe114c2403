"""Takes a backup of a farm while it runs.

The registry's SQLite file is copied first, then one snapshot of the database, then the registry's files. So each model version
of the backup has its signature, which is in the database, and its files.

A backup is written to a hidden folder next to its place. The manifest comes last, and then the folder gets its name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from sqlalchemy import Connection, Engine, text

import farm
from farm.backup import compression, database, manifest
from farm.backup.errors import FolderUnusable
from farm.backup.files import blocks_of, copied, digest_of, linked, open_inside, regular_files
from farm.backup.manifest import BackupFile, BackupKernel, BackupRegistry, BackupTable, Manifest
from farm.backup.registry import COPY, FILES, LocalRegistry
from farm.builds.stores import DATABASE, store_of
from farm.db import audit, migrate
from farm.settings import Settings

OPERATION = "backup_create"
"""In the audit log: a backup was taken."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Previous:
    """An earlier backup, whose files are used again where they are equal."""

    folder: Path
    files: dict[str, BackupFile]


class _Draft:
    """The folder of a backup that is being taken."""

    def __init__(self, folder: Path, previous: _Previous | None) -> None:
        self.folder = folder
        self._previous = previous
        self.reused_bytes = 0

    def rows(self, path: str, blocks: Iterator[bytes]) -> BackupFile | None:
        """Writes rows as a compressed file; None where there are none."""
        written = compression.write(blocks, self.folder / path)
        return None if written is None else self._known(BackupFile(path=path, bytes=written[0], sha256=written[1]))

    def file(self, path: str, blocks: Iterator[bytes]) -> BackupFile:
        size, digest = copied(blocks, self.folder / path)
        return self._known(BackupFile(path=path, bytes=size, sha256=digest))

    def known(self, path: str) -> BackupFile:
        """A file that something else has written."""
        size, digest = digest_of(self.folder, path)
        return self._known(BackupFile(path=path, bytes=size, sha256=digest))

    def _known(self, file: BackupFile) -> BackupFile:
        """Replaces a file by another name of the same file in the previous backup, if that one is intact."""
        if self._previous is None or self._previous.files.get(file.path) != file:
            return file
        with suppress(OSError):
            intact = digest_of(self._previous.folder, file.path) == (file.bytes, file.sha256)
            if intact and linked(self._previous.folder / file.path, self.folder / file.path):
                self.reused_bytes += file.bytes
        return file


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup that was taken. `reused_bytes`: of its files that are those of the previous one."""

    folder: Path
    manifest: Manifest
    reused_bytes: int


def create(
    engine: Engine,
    settings: Settings,
    folder: Path,
    *,
    since: Path | None = None,
    report: Report = lambda _: None,
) -> Taken:
    """Takes a backup into a new folder.

    Args:
        since: An earlier backup. Equal files become hard links to its files.
        report: Gets the name of what is read next.

    Raises:
        FolderUnusable: The folder is there, or cannot be written, as on a full disk. Nothing is left of the backup.
        NotABackup, BackupDamaged, BackupIsNewer: `since` cannot be used.
    """
    migrate.require_head(engine)
    folder = folder.absolute()
    if os.path.lexists(folder):
        raise FolderUnusable(folder=folder, why="it is there already; name a new folder")
    previous = None
    if since is not None:
        previous = _Previous(since.absolute(), {file.path: file for file in manifest.read(since).files()})
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(mkdtemp(prefix=f".{folder.name[:100]}.unfinished-", dir=folder.parent))  # for its owner alone
    except OSError as error:
        raise FolderUnusable(folder=folder, why=_why(error)) from None
    try:
        draft = _Draft(place, previous)
        found = _fill(draft, engine, settings, report)
        _put_in_place(place, folder)
    except OSError as error:
        raise FolderUnusable(folder=folder, why=_why(error)) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    _record(engine, folder, found)
    return Taken(folder, found, draft.reused_bytes)


def _why(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _put_in_place(place: Path, folder: Path) -> None:
    for at in (place, folder.parent):
        number = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
            if at == place:
                place.rename(folder)  # fails if another backup got the name meanwhile
        finally:
            os.close(number)


def _record(engine: Engine, folder: Path, found: Manifest) -> None:
    facts = {"rows": found.rows, "bytes": found.bytes, "snapshot_at": found.created_at.isoformat()}
    with audit.change(engine, audit.local_actor(), OPERATION) as change:
        change.record("backup", str(folder), after=facts)


def _fill(draft: _Draft, engine: Engine, settings: Settings, report: Report) -> Manifest:
    left_out: list[str] = []
    registry = LocalRegistry.of(settings.tracking_uri)
    if registry is None:
        left_out.append("the registry of models: MLFLOW_TRACKING_URI names a server, which has backups of its own")
    elif not registry.exists:
        registry = None
    registry_file = None
    if registry is not None:
        report("registry")
        registry_file = _registry_database(draft, registry, left_out)
    with database.snapshot(engine) as connection:
        created_at: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        server_version: str = connection.execute(text("SHOW server_version")).scalar_one()
        tables = [_table(draft, connection, name, report) for name in database.kept_tables()]
        kernels = list(_kernels(draft, connection, engine, settings, left_out, report))
        tables = [_with_sequence(connection, table) for table in tables]
    written = Manifest(
        format=manifest.FORMAT,
        farm_version=farm.__version__,
        revision=migrate.head(),
        created_at=created_at.astimezone(UTC),
        server_version=server_version,
        tables=tables,
        kernels=kernels,
        registry=None
        if registry is None or registry_file is None
        else _registry_files(draft, registry, registry_file, left_out, report),
        left_out=left_out,
    )
    manifest.write(draft.folder, written)
    return written


def _table(draft: _Draft, connection: Connection, name: str, report: Report) -> BackupTable:
    report(name)
    layout, tally, files = database.layout_of(connection, name), database.Tally(), []
    for number, blocks in database.parts_of(connection, layout):
        file = draft.rows(f"tables/{name}/{number:06}.zst", tally.through(blocks))
        if file is not None:
            files.append(file)
    return BackupTable(
        name=name, columns=list(layout.columns), rows=tally.rows, sha256=tally.sha256, sequence=None, files=files
    )


def _with_sequence(connection: Connection, table: BackupTable) -> BackupTable:
    last = database.last_of(connection, database.layout_of(connection, table.name))
    return table.model_copy(update={"sequence": last})


_KERNELS = text("SELECT hash, record ->> 'sha256' AS sha256 FROM kernels WHERE state = 'built' ORDER BY hash")
_CODE = text("SELECT code FROM kernel_code WHERE hash = :hash")


def _kernels(
    draft: _Draft, connection: Connection, engine: Engine, settings: Settings, left_out: list[str], report: Report
) -> Iterator[BackupKernel]:
    """Writes the code of each built kernel, from the snapshot or from the store. Code in another version than the recorded one is counted."""
    report("kernels")
    store = None if settings.kernel_store == DATABASE else store_of(settings, engine)
    missing = 0
    for row in connection.execute(_KERNELS).all():
        code: Any
        if store is None:
            code = connection.execute(_CODE, {"hash": row.hash}).scalar_one_or_none()
        else:
            code = store.get(row.hash)
        file = None if code is None else draft.file(f"kernels/{row.hash[:2]}/{row.hash}", iter([bytes(code)]))
        if file is None or file.sha256 != row.sha256:
            missing += 1
        if file is not None:
            yield BackupKernel(hash=row.hash, file=file)
    if missing:
        left_out.append(f"the code of {missing:,} kernels, which their store lacks or has in another version")


def _registry_database(draft: _Draft, registry: LocalRegistry, left_out: list[str]) -> BackupFile:
    copy = draft.folder / COPY
    copy.parent.mkdir()
    outside = registry.copy_database(copy)
    if outside:
        left_out.append(
            f"the files of {outside:,} runs and models of the registry, which are not in {registry.artifacts}"
        )
    return draft.known(COPY)


def _registry_files(
    draft: _Draft, registry: LocalRegistry, copy: BackupFile, left_out: list[str], report: Report
) -> BackupRegistry:
    report("models")
    paths, other = regular_files(registry.artifacts)
    if other:
        left_out.append(f"{len(other):,} links and special files in {registry.artifacts}, such as {other[0]}")
    files = []
    for path in paths:
        with suppress(FileNotFoundError), open_inside(registry.artifacts, path) as file:  # removed meanwhile
            files.append(draft.file(f"{FILES}/{path}", blocks_of(file)))
    return BackupRegistry(database=copy, artifacts=registry.artifacts.as_uri(), files=files)
