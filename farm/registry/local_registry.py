"""Reads a registry in a local SQLite file without MLflow, whose import takes seconds.

Each call reads the file again and sees changes by other processes. The functions return None where MLflow is needed: the
registry is elsewhere, its tables are unknown, or the file cannot be read now.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

BUSY_SECONDS = 20.0
"""Timeout for the lock of another writer, the same as MLflow's."""

WORKSPACE = "default"
"""MLflow's default workspace."""


@dataclass(frozen=True)
class FileVersion:
    """The attributes of `mlflow.entities.model_registry.ModelVersion` that the farm uses, and the aliases."""

    name: str
    version: str
    creation_timestamp: int
    run_id: str | None
    tags: Mapping[str, str]
    aliases: tuple[str, ...]


def versions_in_file(uri: str, *, prefix: str) -> list[FileVersion] | None:
    """Every version of the models whose names begin with `prefix`."""
    with _opened(uri) as file:
        if file is None:
            return None
        try:
            return _versions(file, prefix)
        except sqlite3.Error:
            return None


def files_in_folder(uri: str, name: str, version: str) -> Path | None:
    """The folder of a version's files."""
    return _folder(
        uri,
        "SELECT coalesce(nullif(storage_location, ''), source) FROM model_versions "
        "WHERE workspace = ? AND name = ? AND version = ?",
        (WORKSPACE, name, int(version)),
    )


def run_folder(uri: str, run_id: str) -> Path | None:
    """The folder of a run's files."""
    return _folder(uri, "SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run_id,))


def _folder(uri: str, query: str, parameters: tuple[str | int, ...]) -> Path | None:
    """The folder whose location is the query's only value."""
    with _opened(uri) as file:
        if file is None:
            return None
        try:
            row = file.execute(query, parameters).fetchone()
        except sqlite3.Error:
            return None
    return local_folder(row[0]) if row is not None and row[0] else None


def sqlite_file(uri: str) -> Path | None:
    """The file of a `sqlite:///` URI; None for any other."""
    return Path(urlsplit(uri).path.removeprefix("/")) if uri.startswith("sqlite:") else None


@contextmanager
def _opened(uri: str) -> Iterator[sqlite3.Connection | None]:
    """A read-only connection in one transaction."""
    path = sqlite_file(uri)
    parts = urlsplit(uri)
    if path is None or parts.query or parts.netloc or not path.exists():
        yield None
        return
    try:
        # After a writer was killed the file needs a repair, which a read-only connection refuses with an error.
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
    except sqlite3.Error:
        yield None
        return
    with closing(connection):
        try:
            connection.execute("BEGIN")
        except sqlite3.Error:
            yield None
            return
        yield connection


def _versions(file: sqlite3.Connection, prefix: str) -> list[FileVersion] | None:
    if file.execute("SELECT 1 FROM registered_models WHERE workspace <> ? LIMIT 1", (WORKSPACE,)).fetchone():
        return None
    of_prefix = (len(prefix), prefix)
    tags: dict[tuple[str, int], dict[str, str]] = {}
    for name, version, key, value in file.execute(
        "SELECT name, version, key, value FROM model_version_tags WHERE substr(name, 1, ?) = ?", of_prefix
    ):
        tags.setdefault((name, version), {})[key] = value
    aliases: dict[tuple[str, int], list[str]] = {}
    for name, version, alias in file.execute(
        "SELECT name, version, alias FROM registered_model_aliases WHERE substr(name, 1, ?) = ?", of_prefix
    ):
        aliases.setdefault((name, version), []).append(alias)
    return [
        FileVersion(
            name,
            str(version),
            created,
            run_id,
            tags.get((name, version), {}),
            tuple(aliases.get((name, version), ())),
        )
        for name, version, created, run_id in file.execute(
            "SELECT name, version, creation_time, run_id FROM model_versions "
            "WHERE substr(name, 1, ?) = ? AND current_stage <> 'Deleted_Internal'",
            of_prefix,
        )
    ]


def local_folder(location: str) -> Path | None:
    """The folder of a path or a `file:` URI; None for anything else."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else location)
    return folder if folder.is_absolute() and folder.is_dir() else None
