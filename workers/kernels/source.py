"""The family `source` on a card: kernels of users, compiled by NVRTC, loaded by the driver, or built by Triton ahead of time.

Only device code is accepted. Nothing is linked, so a kernel cannot launch others. It runs in the process that owns the card, which the
worker replaces when it hangs or faults. What the kernel computes is the referee's to check (`workers.devices.cuda_referee`).
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from farm.builds.record import Record
from farm.errors import InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration, own_triton
from farm.kernels.definition import Definition, known
from farm.kernels.own_arguments import ADDED, EXTENTS, GROUP_OFFSETS, MATRICES, POINTERS, SCALARS, Argument, extents_of
from farm.kernels.own_code import Language
from farm.kernels.own_launch import Launch
from farm.kernels.source import DEFINITION
from workers.devices.cuda_errors import cuda_name
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.cubins import loaded_module
from workers.kernels.once import Once
from workers.kernels.residency import residency
from workers.kernels.toolchains.nvcc import cuda_headers
from workers.measure.elements import STORAGE

_MAX_THREADS, _STATIC_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS, _MAX_DYNAMIC_SHARED_BYTES = 0, 1, 3, 4, 8
"""Of CUfunction_attribute in cuda.h."""

_SHARED_WITHOUT_ASKING = 48 * 1024
"""Dynamic shared memory beyond this must be allowed to a kernel (CUDA C++ Programming Guide, shared memory)."""

_NOT_LOADABLE = frozenset(
    {"nobinaryforgpu", "invalidimage", "invalidptx", "unsupportedptxversion", "invalidsource", "invalidkernelimage"}
)
"""Names of errors of the driver that say that the code does not fit the card, as `cuda_name` has them."""

_ERROR_OF_COMPILER = re.compile(r"\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<what>.+)")

MAX_MESSAGE = 300

_MAX_PARAMETERS = 64

_POINTER_BYTES = 8

_INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE, which ends the list of parameters."""


def parameter_sizes(function: int) -> list[int] | None:
    """The sizes in bytes of the parameters of a function of the driver; None where the driver does not tell (before CUDA 12.4)."""
    try:
        info = ctypes.CDLL("libcuda.so.1").cuFuncGetParamInfo
    except (OSError, AttributeError):
        return None
    info.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)]
    found, offset, size = list[int](), ctypes.c_size_t(), ctypes.c_size_t()
    while len(found) < _MAX_PARAMETERS:
        status = info(function, len(found), ctypes.byref(offset), ctypes.byref(size))
        if status == _INVALID_VALUE:
            return found
        if status:
            return None
        found.append(size.value)
    return found


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """One compilation of a definition: what distinguishes two kernels."""

    definition: Definition
    parameters: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, configuration: Configuration) -> SourceKernel:
        """Raises `MeasurementFailed` where this process does not know the definition."""
        parameters = dict(configuration.kernel.parameters)
        definition = known(parameters.pop(DEFINITION))
        if definition is None:
            number = dict(configuration.kernel.parameters)[DEFINITION]
            raise MeasurementFailed(why=f"the farm has no definition {number}")
        return cls(definition, tuple(sorted(parameters.items())))

    @property
    def key(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        return self.definition.id, self.parameters

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options; the architecture is the compiler's to add."""
        return ("-std=c++17", *(f"-D{name}={value}" for name, value in self.parameters))

    @property
    def hash(self) -> str:
        """SHA-256 of the definition's number and the options: equal hashes are the same kernel."""
        return hashlib.sha256("\0".join((str(self.definition.id), *self.options)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel on the card."""

    function: Any
    hash: str
    record: Record | None = None  # of one that was built ahead of time


class SourceFamily:
    """The family on one card. CuPy compiles a kernel once for each process, and by its cache once for each host."""

    def __init__(self, card: CardContext) -> None:
        self._card = card
        self._functions = Once[Any, _Loaded]()

    def prepare(self, configuration: Configuration) -> None:
        self._loaded(configuration, SourceKernel.of(configuration))

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        kernel = SourceKernel.of(configuration)
        return _BoundSource(self._card, kernel, self._loaded(configuration, kernel), configuration, placement)

    def close(self) -> None:
        self._functions.clear()

    def _loaded(self, configuration: Configuration, kernel: SourceKernel) -> _Loaded:
        if not kernel.definition.is_triton:
            return self._functions.get(kernel.key, lambda: _Loaded(self._compiled(kernel), kernel.hash))
        binary = self._card.binary(configuration)

        def fetched() -> _Loaded:
            built = self._card.kernels.get(binary)
            with _as_invalid(kernel.definition, self._card.traits.compute_capability):
                function = loaded_module(self._card.cp, built).get_function(kernel.definition.entry)
            return _Loaded(function, built.record.hash, built.record)

        return self._functions.get(binary, fetched)

    def _compiled(self, kernel: SourceKernel) -> Any:
        definition, cp = kernel.definition, self._card.cp
        with _as_invalid(definition, self._card.traits.compute_capability):
            if definition.language is Language.CUDA:
                # CuPy finds headers of CUDA, but in some installations not those in crt/, which mma.h includes.
                headers = cuda_headers()
                options = kernel.options if headers is None else (*kernel.options, f"-I{headers}")
                raw = cp.RawModule(code=definition.code, options=options).get_function(definition.entry)
                return raw.kernel
            module = cp.cuda.function.Module()
            module.load(definition.binary)
            return module.get_function(definition.entry)


@contextmanager
def _as_invalid(definition: Definition, capability: tuple[int, int] | None) -> Iterator[None]:
    """Raises errors that the code is the cause of as `InvalidOnDevice`: another attempt is no use."""
    try:
        yield
    except Exception as error:
        names = {cls.__name__ for cls in type(error).__mro__}
        if names & {"CompileException", "NVRTCError"}:
            raise InvalidOnDevice(why=f"{definition.file} does not compile: {first_error(str(error))}") from None
        if not names & {"CUDARuntimeError", "CUDADriverError"}:
            raise
        name, what = cuda_name(error), str(error).splitlines()[0]
        if name == "notfound":
            why = f'{definition.file} has no kernel {definition.entry}; declare it extern "C" __global__'
            raise InvalidOnDevice(why=why) from None
        if name in _NOT_LOADABLE:
            here = "this card" if capability is None else "compute capability {}.{}".format(*capability)
            raise InvalidOnDevice(why=f"{definition.file} cannot be loaded on {here}: {what}") from None
        raise


def first_error(output: str) -> str:
    """The first error in a compiler's output, with its line: `line 3: identifier "x" is undefined`."""
    found = _ERROR_OF_COMPILER.search(output)
    if found is None:
        return next((line.strip() for line in output.splitlines() if line.strip()), "no reason given")[:MAX_MESSAGE]
    return f"line {found['line']}: {found['what'].strip()}"[:MAX_MESSAGE]


class _BoundSource:
    capturable = True
    roundings = 1
    # Each measurement draws its operands anew, so digests of rows could not be compared.
    deterministic = False

    def __init__(
        self,
        card: CardContext,
        kernel: SourceKernel,
        loaded: _Loaded,
        configuration: Configuration,
        placement: Placement,
    ) -> None:
        self._card = card
        self._kernel = kernel
        self._record = loaded.record
        self._function = function = loaded.function
        self.hash = loaded.hash
        problem, definition = configuration.problem, kernel.definition
        self._bounds: Launch = definition.launch(problem, dict(kernel.parameters))
        self._given: Sequence[Argument] = definition.read_arguments
        if loaded.record is not None:
            self._bounds = replace(self._bounds, shared_bytes=loaded.record.shared_bytes)
            self._given = own_triton.launched(definition, problem, dict(kernel.parameters))
        self._attributes = {
            name: int(card.cp.cuda.driver.funcGetAttribute(number, function.ptr))
            for name, number in (
                ("registers", _REGISTERS), ("static_shared_bytes", _STATIC_SHARED_BYTES), ("local_bytes", _LOCAL_BYTES),
                ("max_threads", _MAX_THREADS),
            )
        }  # fmt: skip
        self._check_it_fits()
        if self._bounds.shared_bytes > _SHARED_WITHOUT_ASKING:
            card.cp.cuda.driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED_BYTES, self._bounds.shared_bytes)
        others = self._values(configuration)
        if problem.groups is not None:
            self._offsets = card.cp.asarray(np.array([0, *accumulate(problem.groups.sizes)], np.int32))
            others[GROUP_OFFSETS] = int(self._offsets.data.ptr)
        self._arguments = [
            self._ordered(
                {
                    **others,
                    **dict(zip(MATRICES, placement.addresses(index), strict=True)),
                    **dict(zip(ADDED, placement.added(index), strict=True)),
                }
            )
            for index in range(placement.sets)
        ]
        if loaded.record is not None:
            self._add_scratch(loaded.record)
        self._check_arguments()

    def _add_scratch(self, record: Record) -> None:
        """Adds the pointers to scratch memory that newer versions of Triton add, and that no kernel uses that is built here."""
        end = 0
        for size in self._sizes:
            end = -(-end // size) * size + size
        count = max(0, record.params_bytes - -(-end // _POINTER_BYTES) * _POINTER_BYTES) // _POINTER_BYTES
        self._arguments = [(*arguments, *(0,) * count) for arguments in self._arguments]

    def _values(self, configuration: Configuration) -> dict[str, Any]:
        """Arguments that are not addresses, by name. Python integers, as of addresses, reach a kernel as 64 bits."""
        p = configuration.problem
        numbers = {**extents_of(p), **dict(self._kernel.parameters)}
        scalar = STORAGE[p.types.acc]
        found: dict[str, Any] = {"alpha": scalar(p.alpha), "beta": scalar(p.beta), GROUP_OFFSETS: 0}
        for argument in self._kernel.definition.read_arguments:
            if argument.name not in (*POINTERS, *SCALARS):
                found[argument.name] = (np.int32 if argument.width == 4 else np.int64)(numbers[argument.name])
        return found

    def _ordered(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values[argument.name] for argument in self._given)

    @property
    def _sizes(self) -> list[int]:
        """Bytes of each argument."""
        return [_POINTER_BYTES if isinstance(value, int) else int(value.nbytes) for value in self._arguments[0]]

    def _check_it_fits(self) -> None:
        file, allowed = self._kernel.definition.file, self._attributes["max_threads"]
        if self._bounds.threads > allowed:
            why = f"{file} is launched with {self._bounds.threads:,} threads in a block, and its registers allow {allowed:,}"
            raise InvalidOnDevice(why=why)
        shared = self._bounds.shared_bytes + self._attributes["static_shared_bytes"]
        has = self._card.traits.shared_memory_per_block_bytes
        if has is not None and shared > has:
            raise InvalidOnDevice(why=f"{file} needs {shared:,} bytes of shared memory, the device has {has:,}")

    def _check_arguments(self) -> None:
        """Raises `InvalidOnDevice` where the kernel takes others: it would read what was not given."""
        taken = parameter_sizes(self._function.ptr)
        given = self._sizes
        if taken is not None and taken != given:
            entry = self._kernel.definition.entry
            raise InvalidOnDevice(
                why=f"{entry} takes {_sizes(taken)}, and arguments give {_sizes(given)}; pointers have 8 bytes, "
                f"{', '.join(EXTENTS)} 4 or with :i64 8, and alpha and beta those of the accumulator's type"
            )

    def launch(self, index: int) -> None:
        bounds = self._bounds
        self._function(bounds.grid, bounds.block, self._arguments[index], bounds.shared_bytes)

    def details(self) -> dict[str, Any]:
        """Facts from the compiler and the card."""
        bounds = self._bounds
        return {
            "source_file": self._kernel.definition.file,
            **({} if self._record is None else self._record.details),
            **{name: value for name, value in self._attributes.items() if name != "max_threads"},
            "dynamic_shared_bytes": bounds.shared_bytes,
            **residency(
                self._card, self._function.ptr, threads=bounds.threads, blocks=bounds.blocks, dynamic_bytes=bounds.shared_bytes
            ),
        }  # fmt: skip

    def close(self) -> None:
        """The kernel stays loaded until the process ends."""


def _sizes(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} parameters of {', '.join(map(str, sizes))} bytes" if sizes else "no parameters"
