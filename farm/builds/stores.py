"""Where a farm shares the code of its built kernels, so that other hosts fetch instead of compiling.

A store holds bytes by the hash of what they were compiled from. Its content is not trusted: the database says
which SHA-256 the code must have.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from farm.errors import BadKernelStore, KernelStoreUnusable, first_line
from farm.settings import Settings

DATABASE = "database"
"""The setting FARM_KERNEL_STORE that means the farm's own Postgres."""


class Store(Protocol):
    """Each call raises `KernelStoreUnusable` where the store does not answer."""

    def get(self, hash_: str) -> bytes | None:
        """The code of that name, or None."""

    def put(self, hash_: str, code: bytes) -> None:
        """Keeps code under that name, in place of what was there."""

    def remove(self, hash_: str) -> None:
        """Removes the code of that name, where there is any."""


_GET = text("SELECT code FROM kernel_code WHERE hash = :hash")
_REMOVE = text("DELETE FROM kernel_code WHERE hash = :hash")
_PUT = text("""
INSERT INTO kernel_code (hash, code) VALUES (:hash, :code) ON CONFLICT (hash) DO UPDATE SET code = excluded.code
""")


class DatabaseStore:
    """In a table of the farm's database: nothing to set up, some hundred kB for each kernel."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, hash_: str) -> bytes | None:
        try:
            with self._engine.connect() as connection:
                found = connection.execute(_GET, {"hash": hash_}).scalar_one_or_none()
        except DBAPIError as error:
            raise KernelStoreUnusable(store=DATABASE, why=first_line(error.orig)) from None
        return None if found is None else bytes(found)

    def put(self, hash_: str, code: bytes) -> None:
        try:
            with self._engine.begin() as connection:
                connection.execute(_PUT, {"hash": hash_, "code": code})
        except DBAPIError as error:
            raise KernelStoreUnusable(store=DATABASE, why=first_line(error.orig)) from None

    def remove(self, hash_: str) -> None:
        try:
            with self._engine.begin() as connection:
                connection.execute(_REMOVE, {"hash": hash_})
        except DBAPIError as error:
            raise KernelStoreUnusable(store=DATABASE, why=first_line(error.orig)) from None


class FileStore:
    """In a folder or bucket that fsspec reaches: one file for each kernel, which appears whole."""

    def __init__(self, url: str) -> None:
        """Raises `BadKernelStore` for a URL that fsspec does not know, or whose library is not installed."""
        import fsspec.core

        self._url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise BadKernelStore(url=url, why=first_line(error)) from None

    def get(self, hash_: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(self._place(hash_)))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._unusable(error) from None

    def put(self, hash_: str, code: bytes) -> None:
        place = self._place(hash_)
        unfinished = f"{place}.{uuid.uuid4().hex}"
        try:
            if not self._files.async_impl:  # buckets have no folders, and would be made where their name is mistyped
                self._files.makedirs(self._files._parent(place), exist_ok=True)
            self._files.pipe_file(unfinished, code)
            self._files.mv(unfinished, place)
        except Exception as error:
            raise self._unusable(error) from None

    def remove(self, hash_: str) -> None:
        try:
            self._files.rm_file(self._place(hash_))
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._unusable(error) from None

    def _place(self, hash_: str) -> str:
        return f"{self._root}/{hash_[:2]}/{hash_}"

    def _unusable(self, error: Any) -> KernelStoreUnusable:
        """Each file system has errors of its own."""
        return KernelStoreUnusable(store=self._url, why=f"{type(error).__name__}: {first_line(error)}")


def store_of(settings: Settings, engine: Engine) -> Store:
    """The store that FARM_KERNEL_STORE names. Raises `BadKernelStore`."""
    url = settings.kernel_store
    if url == DATABASE:
        return DatabaseStore(engine)
    if "://" not in url:
        raise BadKernelStore(url=url, why="it is no URL")
    return FileStore(url)
