"""A point of the parameter space of `cutlass` with a problem and a device, and the values that follow.

Where a docstring names a template, it is one of CUTLASS 4.2 (include/cutlass), whose 2.x kernels are meant everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from farm.devices import DeviceTraits
from farm.gemm import ElementType, Problem

_E = ElementType

AMPERE, _HOPPER = (8, 0), (9, 0)
_TURING_INSTRUCTIONS = {_E.F16: (16, 8, 8), _E.I8: (8, 8, 16)}
_INSTRUCTIONS = {_E.F16: (16, 8, 16), _E.BF16: (16, 8, 16), _E.TF32: (16, 8, 8), _E.I8: (16, 8, 32), _E.F64: (8, 8, 4)}
_HOPPER_INSTRUCTIONS = _INSTRUCTIONS | {_E.F64: (16, 8, 4)}
"""m, n and k of one tensor core instruction (PTX ISA, mma)."""

ONE_BY_ONE = (_E.F32, _E.F64)
"""Types whose elements a thread loads one at a time: in SIMT kernels, and in kernels for doubles."""

WARP = 32
ACCESS_BYTES = 16
"""The most that a thread loads or stores at once."""


def widest_access(extent: int, element: ElementType) -> int:
    """The most elements at once where rows (or columns) are `extent` elements apart."""
    return math.gcd(extent, ACCESS_BYTES // element.bytes)


def load_at_once(extent: int, element: ElementType, align: int) -> int:
    """Elements of A or B that a thread loads at once; `align` as the parameter: 0 is as many as there can be."""
    return align or (1 if element in ONE_BY_ONE else widest_access(extent, element))


def store_at_once(problem: Problem) -> int:
    """Elements of C that a thread stores at once: SIMT kernels single ones, others as many as n allows."""
    return 1 if problem.types.ab is _E.F32 else widest_access(problem.shape.n, problem.types.cd)


@dataclass(frozen=True, slots=True)
class Operand:
    """A or B, as a block loads it."""

    name: str
    # Its other dimension, m or n, and the extent of a tile along it.
    side: str
    tile: int
    # Whether elements that follow each other in memory do so along k, and how many they are.
    along_k: bool
    extent: int

    @property
    def contiguous(self) -> str:
        return "k" if self.along_k else self.side


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the space with a problem and a device, and what follows from them."""

    problem: Problem
    device: DeviceTraits
    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int
    swizzle: int
    split_k: int
    align: int

    @property
    def capability(self) -> tuple[int, int]:
        """A device that does not say what it is counts as Ampere."""
        return self.device.compute_capability or AMPERE

    @property
    def ab(self) -> ElementType:
        return self.problem.types.ab

    @property
    def on_tensor_cores(self) -> bool:
        return self.ab is not _E.F32

    @cached_property
    def instruction(self) -> tuple[int, int, int]:
        """m, n and k of one step of a warp: an instruction of the tensor cores, or the lanes' arrangement."""
        if not self.on_tensor_cores:
            # simt_get_warp_threads_m; the kernels with more stages always arrange 4 x 8 lanes.
            lanes_m = 8 if self.stages == 2 and self.warp_m > self.warp_n else 4
            return lanes_m, WARP // lanes_m, 1
        if self.capability < AMPERE:
            return _TURING_INSTRUCTIONS[self.ab]
        return (_INSTRUCTIONS if self.capability < _HOPPER else _HOPPER_INSTRUCTIONS)[self.ab]

    @property
    def warps_m(self) -> int:
        return self.tile_m // self.warp_m

    @property
    def warps_n(self) -> int:
        return self.tile_n // self.warp_n

    @cached_property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * WARP

    @cached_property
    def operands(self) -> tuple[Operand, Operand]:
        s, layout = self.problem.shape, self.problem.layout
        a_along_k, b_along_k = not layout.a_transposed, layout.b_transposed
        return (
            Operand("A", "m", self.tile_m, a_along_k, s.k if a_along_k else s.m),
            Operand("B", "n", self.tile_n, b_along_k, s.k if b_along_k else s.n),
        )

    @property
    def largest_access(self) -> int:
        """Maximum number of elements of A or B that a thread loads at once."""
        return 1 if self.ab in ONE_BY_ONE else ACCESS_BYTES // self.ab.bytes

    @cached_property
    def stored_at_once(self) -> int:
        """See `store_at_once`."""
        return store_at_once(self.problem)

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold its part of C."""
        return self.warp_m * self.warp_n * self.problem.types.acc.bytes // 4 // WARP

    @cached_property
    def padding(self) -> int:
        """Elements that SIMT kernels add to a tile which they transpose, to keep its banks apart (DefaultMmaCore)."""
        if self.on_tensor_cores:
            return 0
        return WARP // self.tile_k if self.stages == 2 else self.tile_k // WARP

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the main loop and the epilogue use the same."""
        return max(self._main_loop_bytes, self._epilogue_bytes)

    @property
    def _main_loop_bytes(self) -> int:
        lengths = sum(operand.tile + (self.padding if operand.along_k else 0) for operand in self.operands)
        return self.stages * lengths * self.tile_k * self.ab.bytes

    @property
    def _epilogue_bytes(self) -> int:
        """Some rows of the tile of accumulators, padded, which threads exchange before they store (EpilogueBase)."""
        t = self.problem.types
        if not self.on_tensor_cores:
            lanes_m, lanes_n, _ = self.instruction
            padding = 4 * min(4, self.warp_n // lanes_n) + 1
            return self.warps_m * lanes_m * (self.tile_n + padding) * t.acc.bytes
        # DefaultIteratorsTensorOp: two pieces at a time where F32 accumulators leave as 16 bytes of F16 or F32.
        two = t.acc is _E.F32 and t.cd in (_E.F16, _E.F32) and self.stored_at_once * t.cd.bytes == ACCESS_BYTES
        return (2 if two else 1) * self.warps_m * 8 * (self.tile_n * t.acc.bytes + 32)
