"""Where a device gets its built kernels from: the farm's store, or this host alone."""

from __future__ import annotations

import logging
from typing import Protocol

from pydantic import ValidationError
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm.builds.cache import KernelCache
from farm.builds.record import Built, Record
from farm.builds.stores import Store
from farm.db import kernels
from farm.db.states import KernelState
from farm.errors import (
    BuildFailed,
    CompilerMissing,
    DoesNotCompile,
    InvalidOnDevice,
    KernelMissing,
    KernelStoreUnusable,
    KernelUnreachable,
    MeasurementFailed,
    first_line,
)
from farm.kernels.binary import Binary, Versions

log = logging.getLogger(__name__)


class Kernels(Protocol):
    """What a device may ask for built kernels."""

    def get(self, binary: Binary) -> Built:
        """The binary, built.

        Raises `KernelMissing` where it is not built yet, `InvalidOnDevice` where it cannot be built, `KernelUnreachable`
        where the farm cannot be asked for it now, and `MeasurementFailed` where it may be built another time. May be called
        from any thread.
        """


class FarmKernels:
    """From this host's cache, or fetched from the farm's store and put there. What the farm did not record is refused."""

    def __init__(self, cache: KernelCache, store: Store, engine: Engine, versions: Versions) -> None:
        self._cache = cache
        self._store = store
        self._engine = engine
        self._versions = versions

    def get(self, binary: Binary) -> Built:
        name = binary.hash(self._versions)
        return self._cache.get(name) or self._fetched(name, binary)

    def _fetched(self, name: str, binary: Binary) -> Built:
        try:
            with self._engine.connect() as connection:
                known = kernels.find(connection, name)
            if known is not None and known.final:
                raise InvalidOnDevice(why=known.error)
            code = None if known is None or known.state is not KernelState.BUILT else self._store.get(name)
        except DBAPIError as error:
            raise KernelUnreachable(binary=binary, why=first_line(error.orig)) from None
        except KernelStoreUnusable as error:
            raise KernelUnreachable(binary=binary, why=str(error)) from None
        if known is None or code is None:
            raise KernelMissing(binary=binary)
        try:
            built = Built(code, Record.model_validate(known.record))
        except ValidationError as error:
            log.warning("the record of the kernel %s cannot be read: %s", name, error.errors()[0]["msg"])
            raise KernelMissing(binary=binary) from None
        if built.record.hash != name or not built.intact:
            log.warning("the kernel %s of the farm's store is refused: its SHA-256 is not the recorded one", name)
            raise KernelMissing(binary=binary)
        try:
            self._cache.put(built)
        except OSError as error:
            log.warning("the kernel %s could not be kept on this host: %s", name, error)
        return built


class OwnKernels:
    """From this host's cache, or compiled here and put there: for `farm measure`, which needs no services."""

    def __init__(self, cache: KernelCache, versions: Versions) -> None:
        self._cache = cache
        self._versions = versions

    def get(self, binary: Binary) -> Built:
        found = self._cache.get(binary.hash(self._versions))
        if found is not None:
            return found
        from workers.kernels.cutlass.compiler import Compiler

        try:
            compiler = Compiler.find()
            if compiler.versions != self._versions:
                raise MeasurementFailed(why=f"its kernel is not built, and this host has {compiler.versions}")
            built = compiler.compile(binary)
        except CompilerMissing as error:
            raise MeasurementFailed(why=f"its kernel is not built ({binary}). {error}") from None
        except DoesNotCompile as error:
            raise InvalidOnDevice(why=str(error)) from None
        except BuildFailed as error:
            raise MeasurementFailed(why=str(error)) from None
        self._cache.put(built)
        return built
