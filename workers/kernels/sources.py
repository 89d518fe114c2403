"""Sources of built kernels for a device: the store of the farm, or this host alone.

A kernel runs with the rights of the worker. It is loaded only if its builder signed it with a key that this host trusts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from pydantic import ValidationError
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm import signing_keys
from farm.builds import versions_of
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
    WrongCompiler,
    first_line,
)
from farm.kernels.binary import Binary
from farm.kernels.toolchains import Versions
from farm.settings import Settings
from farm.signing import Purpose, Signer

log = logging.getLogger(__name__)

NOT_TRUSTED = "it is signed by no key that this host trusts. Set FARM_KERNEL_KEYS to the public key of who built it"


FETCH_SECONDS = 10.0
"""Time limit to read one kernel from a store. It is shorter than the limit of a job (`job_seconds`), which includes it, so that a
store that hangs is not counted as a failure of the job."""


class Kernels(Protocol):
    """A source of built kernels."""

    def get(self, binary: Binary) -> Built:
        """The binary, built.

        Raises `KernelMissing` if it is not built yet, `InvalidOnDevice` if it cannot be built, `KernelUnreachable` if the farm
        is unreachable, and `MeasurementFailed` if another attempt may succeed. May be called from any thread.
        """


class FarmKernels:
    """Kernels that the farm recorded and a trusted key signed. The code comes from this host's cache, or is fetched and cached."""

    def __init__(
        self, cache: KernelCache, store: Store, engine: Engine, versions: Versions, public_keys: Sequence[str]
    ) -> None:
        self._cache = cache
        self._store = store
        self._engine = engine
        self._versions = versions
        self._public_keys = public_keys

    def get(self, binary: Binary) -> Built:
        name = binary.hash(self._versions)
        record, signature = self._recorded(name, binary)
        kept = self._cache.get(name)
        if kept is not None and kept.record == record:
            return Built(kept.code, record, signature)
        built = Built(self._code(name, binary), record, signature)
        if not built.intact:
            log.warning("the kernel %s of the farm's store is refused: its SHA-256 is not the recorded one", name)
            raise KernelMissing(binary=binary)
        try:
            self._cache.put(built)
        except OSError as error:
            log.warning("the kernel %s could not be kept on this host: %s", name, error)
        return built

    def _recorded(self, name: str, binary: Binary) -> tuple[Record, str]:
        """The record of the kernel in the farm's database, and its signature."""
        try:
            with self._engine.connect() as connection:
                known = kernels.find(connection, name)
        except DBAPIError as error:
            raise KernelUnreachable(binary=binary, why=first_line(error.orig)) from None
        if known is not None and known.final:
            raise InvalidOnDevice(why=known.error)
        if known is None or known.state is not KernelState.BUILT:
            raise KernelMissing(binary=binary)
        try:
            built = Built(b"", Record.model_validate(known.record), known.signature or "")
        except ValidationError as error:
            log.warning("the record of the kernel %s cannot be read: %s", name, error.errors()[0]["msg"])
            raise KernelMissing(binary=binary) from None
        if not built.is_signed(self._public_keys):
            raise KernelUnreachable(binary=binary, why=NOT_TRUSTED)
        if built.record.hash != name:
            log.warning("the kernel %s is refused: its record is of %s", name, built.record.hash)
            raise KernelMissing(binary=binary)
        return built.record, built.signature

    def _code(self, name: str, binary: Binary) -> bytes:
        try:
            code = self._fetched(name).result(FETCH_SECONDS)
        except KernelStoreUnusable as error:
            raise KernelUnreachable(binary=binary, why=str(error)) from None
        except TimeoutError:
            why = f"the store of kernels did not answer within {FETCH_SECONDS:g} s"
            raise KernelUnreachable(binary=binary, why=why) from None
        if code is None:
            raise KernelMissing(binary=binary)
        return code

    def _fetched(self, name: str) -> Future[bytes | None]:
        """The code from the store. It is read in a thread that can be abandoned, because file systems may have no time limits."""
        answer: Future[bytes | None] = Future()

        def fetch() -> None:
            try:
                answer.set_result(self._store.get(name))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=fetch, name="kernel fetch", daemon=True).start()
        return answer


class OwnKernels:
    """Kernels from this host's cache, compiled here if missing: for `farm measure`, which needs no services."""

    def __init__(self, cache: KernelCache, versions: Versions, signer: Signer, public_keys: Sequence[str]) -> None:
        self._cache = cache
        self._versions = versions
        self._signer = signer
        self._public_keys = public_keys

    def get(self, binary: Binary) -> Built:
        found = self._cache.get(binary.hash(self._versions))
        if found is not None and found.is_signed(self._public_keys):
            return found
        missing = "its kernel is not built" if found is None else f"its kernel is refused: {NOT_TRUSTED}"
        from workers.kernels.toolchains import compiler_of

        try:
            compiler = compiler_of(binary.template.toolchain, self._versions)
            built = compiler.compile(binary).signed(self._signer)
        except (CompilerMissing, WrongCompiler) as error:
            raise MeasurementFailed(why=f"{missing} ({binary}). {error}") from None
        except DoesNotCompile as error:
            raise InvalidOnDevice(why=str(error)) from None
        except BuildFailed as error:
            raise MeasurementFailed(why=str(error)) from None
        self._cache.put(built)
        return built


def own_kernels(settings: Settings) -> OwnKernels:
    """The kernels of this host, with its keys. Raises `BadSigningKey`."""
    signer, trusted = signing_keys.signer(settings, Purpose.KERNEL), signing_keys.trusted(settings, Purpose.KERNEL)
    return OwnKernels(KernelCache(settings.kernel_cache), versions_of(settings), signer, trusted)
