"""The registry of models in a backup: a copy of its SQLite file, and the files of its folder `mlartifacts`.

Locations in the registry's tables are not followed: a location could name any file of this machine. Files are those of the
folder next to the SQLite file, where the farm's trainers put them. Links in it are left out.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote, urlsplit

from farm.backup.errors import RegistryThere
from farm.errors import RegistryUnreachable, first_line
from farm.registry.local_registry import BUSY_SECONDS, sqlite_file

ARTIFACTS = "mlartifacts"
DATABASE = "mlflow.db"

FILES = f"registry/{ARTIFACTS}"
"""The folder of a backup with the files of `mlartifacts`."""

COPY = f"registry/{DATABASE}"
"""The copy of the SQLite file in a backup."""

LOCATIONS: Mapping[str, tuple[str, ...]] = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "model_versions": ("source", "storage_location"),
    "logged_models": ("artifact_location",),
}
"""Columns of MLflow's tables that name places of files."""

_HAS_COLUMN = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"


@dataclass(frozen=True, slots=True)
class LocalRegistry:
    """A registry in a SQLite file, with its files in the folder `mlartifacts` next to it."""

    file: Path

    @classmethod
    def of(cls, uri: str) -> LocalRegistry | None:
        """The registry of a tracking URI; None for a server."""
        file = sqlite_file(uri)
        parts = urlsplit(uri)
        return None if file is None or parts.query or parts.netloc else cls(file.absolute())

    @property
    def artifacts(self) -> Path:
        return self.file.parent / ARTIFACTS

    @property
    def exists(self) -> bool:
        """Whether it has been used. Raises `RegistryUnreachable` for a link or anything else that is no file."""
        try:
            mode = self.file.lstat().st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise RegistryUnreachable(url=f"sqlite:///{self.file}", why="it is no regular file")
        return True

    def copy_database(self, target: Path) -> int:
        """Copies the SQLite file, as of one time. Returns how many locations are outside `mlartifacts`."""
        try:
            with (
                closing(sqlite3.connect(_read_only(self.file), uri=True, timeout=BUSY_SECONDS)) as source,
                closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
                return _count_outside(copy, self.artifacts.as_uri())
        except sqlite3.Error as error:
            raise RegistryUnreachable(url=f"sqlite:///{self.file}", why=first_line(error)) from None

    def require_new(self) -> None:
        """Raises `RegistryThere` if it would replace something."""
        for path in (self.file, self.artifacts):
            if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
                raise RegistryThere(path=path)

    @contextmanager
    def draft(self) -> Iterator[LocalRegistry]:
        """A registry to fill next to this one, and to `put_in_place`. It is removed at the end of the block."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".registry-", dir=self.file.parent))
        try:
            yield LocalRegistry(folder / DATABASE)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def put_in_place(self, draft: LocalRegistry) -> None:
        """Renames a draft, so that it becomes this registry. Raises `RegistryThere` if there is one by now."""
        self.require_new()
        if draft.artifacts.is_dir():
            draft.artifacts.rename(self.artifacts)
        try:
            draft.file.rename(self.file)
        except OSError:
            if draft.file.exists() and self.artifacts.is_dir():
                self.artifacts.rename(draft.artifacts)
            raise

    def relocate(self, old: str, new: str) -> None:
        """Changes locations at or below the URI `old` to those at or below `new`."""
        try:
            with closing(sqlite3.connect(self.file)) as connection, connection:
                for table, column in _locations(connection):
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                        f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                        (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
                    )
        except sqlite3.Error as error:
            raise RegistryUnreachable(url=f"sqlite:///{self.file}", why=first_line(error)) from None


def _read_only(file: Path) -> str:
    return f"file:{quote(str(file))}?mode=ro"


def _locations(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return [
        (table, column)
        for table, columns in LOCATIONS.items()
        for column in columns
        if connection.execute(_HAS_COLUMN, (table, column)).fetchone() is not None
    ]


def _count_outside(connection: sqlite3.Connection, root: str) -> int:
    """How many runs and logged models have their files elsewhere on this machine or on a server."""
    return sum(
        int(
            connection.execute(
                f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND {column} <> ? "
                f"AND substr({column}, 1, ?) <> ?",
                (root, len(root) + 1, f"{root}/"),
            ).fetchone()[0]
        )
        for table, column in _locations(connection)
        if table in ("runs", "logged_models")
    )
