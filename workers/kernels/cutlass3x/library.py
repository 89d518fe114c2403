"""A library of gemm3x.cu in this process: loaded from bytes, its entries, and the farm's errors for what they return."""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
from ctypes import POINTER, c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any

from farm.errors import InvalidOnDevice, MeasurementFailed
from workers.kernels.base import Placement

ALIGNMENT = 128
"""Of what `pack` writes: TMA descriptors lie at multiples of 64, of 128 since CUDA 13."""

_PROBLEM_REFUSED = {1: "its operands are misaligned", 4: "its extents", 5: "it is not supported", 8: "the architecture"}
_FAILED = {
    6: "there is no workspace",
    7: "the driver made no TMA descriptor, or it failed inside",
    9: "the driver is too old",
}
"""Numbers of cutlass::Status (cutlass.h)."""


class _Operands(ctypes.Structure):
    """`Problem` of gemm3x_kinds.cu, which begins as that of gemm3x.cu."""

    _fields_ = (
        *((name, c_int64) for name in "mnk"),
        *((name, c_void_p) for name in "abcd"),
        *((name, c_double) for name in ("alpha", "beta")),
        *((name, c_int64) for name in ("swizzle", "raster", "multiprocessors", "clusters", "batch")),
        *((name, c_void_p) for name in ("factors_a", "factors_b", "bias")),
        ("groups", c_int64),
        ("table", c_void_p),
        ("factor_k", c_int64),
    )


_RESOURCES = ("blocks_per_multiprocessor", "blocks", "tiles", "stages")


class _Resources(ctypes.Structure):
    """`Resources` of gemm3x.cu."""

    _fields_ = tuple((name, c_int64) for name in _RESOURCES)


_ENTRIES = {
    "gemm_open": (POINTER(c_int64), POINTER(c_int64)),
    "gemm_workspace": (POINTER(_Operands), POINTER(c_int64)),
    "gemm_pack": (c_void_p, POINTER(_Operands), c_void_p),
    "gemm_launch": (c_void_p, c_void_p),
    "gemm_resources": (c_void_p, POINTER(_Resources)),
}


class Library:
    """A built kernel for the current card. It stays loaded until the process ends.

    Every call raises `InvalidOnDevice` if CUTLASS refuses the problem, `MeasurementFailed` if CUTLASS fails, and CuPy's error if
    CUDA fails.
    """

    def __init__(self, cp: Any, name: str, code: bytes) -> None:
        """Raises `MeasurementFailed` if the library is for another kind of host."""
        self._cp = cp
        try:
            entries = _loaded(name, code)
            for entry, arguments in _ENTRIES.items():
                getattr(entries, entry).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise MeasurementFailed(why=f"its kernel cannot be loaded on this host: {error}") from None
        self._entries = entries
        self.multiprocessors = 0
        self.clusters = 0

    def open(self) -> None:
        """Loads the kernel on the card, and reads how many multiprocessors the card has and how many clusters run at once."""
        multiprocessors, clusters = c_int64(), c_int64()
        self._check(self._entries.gemm_open(multiprocessors, clusters))
        self.multiprocessors, self.clusters = multiprocessors.value, clusters.value

    def problem(self, placement: Placement, index: int, table: int, *, swizzle: int, raster: int) -> _Operands:
        """The problem on an operand set. `table` is the address of its `group_table`, or 0."""
        problem = placement.layout.problem
        shape, groups, blocks = problem.shape, problem.groups, problem.scale.of_b
        return _Operands(
            shape.m, shape.n, shape.k, *placement.addresses(index), problem.alpha, problem.beta,
            swizzle, raster, self.multiprocessors, self.clusters,
            problem.batch, *placement.added(index), 0 if groups is None else len(groups.sizes), table,
            (blocks and blocks.inner) or 0,
        )  # fmt: skip

    def workspace_bytes(self, problem: _Operands) -> int:
        """What a launch works in on the card, the same for every operand set."""
        found = c_int64()
        self._check(self._entries.gemm_workspace(problem, found))
        return found.value

    def pack(self, place: int, problem: _Operands, workspace: int) -> None:
        """Writes what launches one operand set to an address of this host that is a multiple of `ALIGNMENT`."""
        self._check(self._entries.gemm_pack(place, problem, workspace))

    def launch(self, place: int) -> None:
        """Launches what was packed there, on CuPy's current stream."""
        status = self._entries.gemm_launch(place, self._cp.cuda.get_current_stream().ptr)
        if status:
            self._check(status)

    def resources(self, place: int) -> dict[str, int]:
        """Of what was packed there: the maximum `blocks_per_multiprocessor`, `blocks`, `tiles` of one product, and `stages`.

        Tiles of groups are not counted.
        """
        found = _Resources()
        self._check(self._entries.gemm_resources(place, found))
        return {name: int(getattr(found, name)) for name in _RESOURCES}

    def _check(self, status: int) -> None:
        if status > 0:
            raise self._cp.cuda.runtime.CUDARuntimeError(status)
        if -status in _PROBLEM_REFUSED:
            raise InvalidOnDevice(why=f"CUTLASS refuses the problem: {_PROBLEM_REFUSED[-status]}")
        if status < 0:
            raise MeasurementFailed(why=f"CUTLASS: {_FAILED.get(-status, f'status {-status}')}")


def _loaded(name: str, code: bytes) -> ctypes.CDLL:
    """Loads a library from memory that is sealed against writes, so that exactly these bytes are loaded.

    The loader identifies libraries by path, so each library has a path of its own.
    """
    memory = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(code)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        with tempfile.TemporaryDirectory(prefix="gemm-farm-") as folder:
            path = Path(folder, f"{name}.so")
            path.symlink_to(f"/proc/self/fd/{memory}")
            return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    finally:
        os.close(memory)
