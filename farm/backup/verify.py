"""Checks a backup: each file with its SHA-256, and the rows of each table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from farm.backup import compression, manifest
from farm.backup.database import Tally
from farm.backup.errors import BackupDamaged, BackupIsNewer, BackupTooOld
from farm.backup.files import digest_of
from farm.backup.manifest import BackupTable, Manifest
from farm.db import migrate
from farm.errors import first_line

Report = Callable[[str], None]


def check_files(folder: Path, report: Report = lambda _: None) -> Manifest:
    """Compares the size and SHA-256 of each file with the manifest. Raises `NotABackup`, `BackupDamaged`, `BackupIsNewer`."""
    found = manifest.read(folder)
    for file in found.files():
        report(file.path)
        try:
            actual = digest_of(folder, file.path)
        except FileNotFoundError:
            raise BackupDamaged(folder=folder, why=f"{file.path} is missing") from None
        except OSError as error:
            raise BackupDamaged(folder=folder, why=f"{file.path} cannot be read: {error.strerror}") from None
        if actual != (file.bytes, file.sha256):
            why = f"{file.path} has {actual[0]:,} bytes and another SHA-256 than when it was written ({file.bytes:,} bytes)"
            raise BackupDamaged(folder=folder, why=why)
    return found


def verify(folder: Path, report: Report = lambda _: None) -> Manifest:
    """As `check_files`, and counts the rows of each table. Raises also `BackupTooOld`."""
    found = check_files(folder, report)
    require_known(folder, found)
    for table in found.tables:
        report(table.name)
        tally = Tally()
        tally.add(rows_of(folder, table))
        require_same(folder, table, tally)
    return found


def require_known(folder: Path, found: Manifest) -> None:
    """Raises `BackupIsNewer` or `BackupTooOld` for a revision that this version cannot restore."""
    if found.revision > migrate.head():
        raise BackupIsNewer(
            folder=folder, version=found.farm_version[:40], what="revision", found=found.revision, known=migrate.head()
        )
    if found.revision < migrate.first():
        raise BackupTooOld(folder=folder, found=found.revision, first=migrate.first())


def rows_of(folder: Path, table: BackupTable) -> Iterator[bytes]:
    """The text of a table's rows. Raises `BackupDamaged`."""
    for file in table.files:
        try:
            yield from compression.read(folder, file.path)
        except OSError as error:
            raise BackupDamaged(folder=folder, why=f"{file.path} cannot be read: {first_line(error)}") from None


def require_same(folder: Path, table: BackupTable, tally: Tally) -> None:
    """Raises `BackupDamaged` if the rows are not those that the manifest describes."""
    if (tally.rows, tally.sha256) != (table.rows, table.sha256):
        why = f"the table {table.name} has {tally.rows:,} rows, and the manifest {table.rows:,}, or their values differ"
        raise BackupDamaged(folder=folder, why=why)
