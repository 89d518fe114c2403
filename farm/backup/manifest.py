"""The manifest of a backup: what it has, with the size and SHA-256 of each file. It is written last."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from farm.backup.errors import BackupDamaged, BackupIsNewer, NotABackup
from farm.backup.files import is_inside, open_inside

MANIFEST = "manifest.json"

FORMAT = 1
"""Version of the layout of a backup. A farm reads backups of this version and of earlier ones."""

MAX_MANIFEST_BYTES = 256 * 2**20
"""Some 200 bytes for each file: a registry of a million files fits."""

_SQL_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def _sql_name(name: str) -> str:
    if not _SQL_NAME.fullmatch(name):
        raise ValueError("is no name of a table or column")
    return name


def _path(path: str) -> str:
    if not is_inside(path):
        raise ValueError("is no path inside the backup")
    return path


SqlName = Annotated[str, AfterValidator(_sql_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BackupFile(_Part):
    """A file of a backup. `sha256` is that of the compressed file."""

    path: Annotated[str, AfterValidator(_path)]
    bytes: Count
    sha256: Sha256


class BackupTable(_Part):
    """The rows of a table, in files that follow one another: text of COPY, compressed with Zstandard."""

    name: SqlName
    columns: Annotated[list[SqlName], Field(min_length=1)]
    rows: Count
    # Of the text of all rows.
    sha256: Sha256
    # The last id that its sequence gave. None: it has no sequence, or that gave none.
    sequence: int | None
    files: list[BackupFile]


class BackupRegistry(_Part):
    """A registry of models in a local file. `artifacts` is the folder that its locations name, as a URI."""

    database: BackupFile
    artifacts: str
    files: list[BackupFile]


class BackupKernel(_Part):
    """The code of a built kernel, by the hash of what it was compiled from."""

    hash: Sha256
    file: BackupFile


class Manifest(_Part):
    """What a backup has. Tables are in an order in which each comes after those that it refers to."""

    format: int
    farm_version: str
    revision: Annotated[str, Field(pattern=r"^[0-9]{4}$")]
    created_at: Annotated[datetime, Field(strict=False)]
    server_version: str
    tables: list[BackupTable]
    kernels: list[BackupKernel]
    registry: BackupRegistry | None
    # What the backup lacks, for people.
    left_out: list[str]

    def files(self) -> Iterator[BackupFile]:
        """Every file of the backup except the manifest."""
        for table in self.tables:
            yield from table.files
        for kernel in self.kernels:
            yield kernel.file
        if self.registry is not None:
            yield self.registry.database
            yield from self.registry.files

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files())


class _Head(BaseModel):
    """What every version of the format has."""

    format: int
    farm_version: str


def read(folder: Path) -> Manifest:
    """Reads the manifest of a backup. Raises `NotABackup`, `BackupIsNewer`, `BackupDamaged`."""
    try:
        with open_inside(folder, MANIFEST) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        why = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        raise NotABackup(folder=folder, why=why, manifest=MANIFEST) from None
    except OSError as error:
        why = f"{MANIFEST} cannot be read: {error.strerror}"
        raise NotABackup(folder=folder, why=why, manifest=MANIFEST) from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise BackupDamaged(folder=folder, why=f"{MANIFEST} has more than {MAX_MANIFEST_BYTES:,} bytes")
    try:
        head = _Head.model_validate_json(content)
        if head.format > FORMAT:
            raise BackupIsNewer(
                folder=folder, version=head.farm_version[:40], what="format", found=head.format, known=FORMAT
            )
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BackupDamaged(folder=folder, why=f"{MANIFEST}, {where or 'whole'}: {first['msg']}") from None


def write(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, on disk when this returns."""
    draft = folder / f".{MANIFEST}"
    with open(draft, "w", encoding="utf-8") as file:  # noqa: PTH123 - the umask of the caller applies
        file.write(manifest.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / MANIFEST)
