"""A point of the parameter space of `cutlass3x`, with a problem and a device: what follows from them, and no judgement.

Where a docstring names a template, it is one of CUTLASS 4.2 (include/cutlass), whose kernels for Hopper are meant everywhere.

A kernel multiplies a left operand by a right one. They are A and B; or, where it computes the transposed product, B and A.
Instructions take at least 64 rows of the left operand, and 8 columns of the right one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from farm.devices import DeviceTraits
from farm.fusion import Fusion
from farm.gemm import ElementType, Problem
from farm.kernels.cutlass import point
from farm.kernels.rules import EIGHT_BIT_FLOATS
from farm.scale import Scale

_E = ElementType

HOPPER = (9, 0)

TMA_BYTES = 16
"""What TMA copies is a multiple of this, and begins at one (CUDA driver API, cuTensorMapEncodeTiled)."""

WARP_GROUP = 128
"""Threads that issue an instruction together."""

SHARED_BYTES = 232_448
"""What the templates fill with stages (sm90_smem_capacity_bytes), which is what a block on Hopper may take."""

INSTRUCTION_ROWS = 64

_INSTRUCTION_BYTES = 32
"""How far an instruction goes along k (PTX ISA, wgmma)."""

_BARRIER_BYTES = 16
"""A pipeline's two barriers for each of its stages."""

_SCHEDULER_BYTES = 16
"""Aligned size of a scheduler without state."""

_GROUP_SCHEDULER_BYTES = 128
"""Barriers of the scheduler of groups, and as much again for tiles that it found (sm90_tile_scheduler_group.hpp)."""

_DESCRIPTOR_BYTES = 128
"""A TMA descriptor. Kernels for groups keep those of the current group in shared memory."""

FACTOR_BYTES = 4
"""Scale factors have the accumulator's type, f32."""

BLOCK_K = 128
"""Elements along k of a block with a scale factor, which CUTLASS takes in steps of one tile."""

_LINE_BYTES = 128
"""The widest line of a tile that is swizzled: all banks of shared memory."""

_MIN_ALIGNMENT = 128
"""Alignment of every tile that TMA copies."""


class Schedule(IntEnum):
    """Who multiplies: the values of the parameter `schedule`."""

    WARP_SPECIALISED = 0  # a group of four warps, and a block for each tile
    PINGPONG = 1  # two groups, a tile each; one stores while the other multiplies
    COOPERATIVE = 2  # two groups share a tile

    def __str__(self) -> str:
        return {0: "warp-specialised", 1: "pingpong", 2: "cooperative"}[self.value]


class Epilogue(IntEnum):
    """How D is stored: the values of the parameter `epilogue`."""

    DIRECT = 0  # from registers
    TMA = 1  # through shared memory


@dataclass(frozen=True, slots=True)
class Operand(point.Operand):
    """A or B, as the blocks of a cluster load it."""

    element: ElementType
    # Blocks of a cluster that share its tile, and the parameter with that number.
    sharers: int
    shared_along: str
    # Rows of A or columns of B that share the factor of a block; 0 where there are no factors of blocks.
    lines: int

    @property
    def factors(self) -> int:
        """Factors of blocks for a tile."""
        return self.tile // self.lines if self.lines else 0


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the space with a problem and a device, and what follows from them."""

    problem: Problem
    device: DeviceTraits
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    schedule: int
    epilogue: int
    stages: int
    stream_k: int
    swap: int
    swizzle: int
    raster: int

    @property
    def ab(self) -> ElementType:
        return self.problem.types.ab

    @property
    def scheduled(self) -> Schedule:
        return Schedule(self.schedule)

    @property
    def persistent(self) -> bool:
        """Whether a block computes tile after tile."""
        return self.schedule != Schedule.WARP_SPECIALISED

    @property
    def grouped(self) -> bool:
        return self.problem.groups is not None

    @property
    def narrow(self) -> bool:
        """Whether B has fewer bits than A. The kernel converts it to A's type, and multiplies with its factors."""
        return self.ab.low_bit_weights

    @property
    def narrow_factor_bytes(self) -> int:
        """Bytes of a factor of a narrow B; 0 where it has none."""
        return self.problem.scale.factor_bytes if self.problem.scale.of_weights else 0

    @cached_property
    def lines(self) -> tuple[int, int]:
        """Rows of A and columns of B that share the factor of a block of `BLOCK_K` elements along k; 0 without such factors."""
        of_a, of_b = self.problem.scale.of_a, self.problem.scale.of_b
        if of_a is None or of_b is None or of_a.inner is None or of_b.inner is None:
            return 0, 0
        return of_a.lines or 0, of_b.lines or 0

    @property
    def scaled_blocks(self) -> bool:
        """Whether blocks of A and B have scale factors, which the main loop multiplies with; others belong to the epilogue."""
        return self.lines != (0, 0)

    @property
    def plain(self) -> bool:
        """Whether alpha·A·B + beta·C is all that the epilogue computes."""
        return self.problem.fused is Fusion.NONE and self.problem.scale not in (Scale.TENSOR, Scale.ROW)

    @cached_property
    def operands(self) -> tuple[Operand, Operand]:
        """A and B."""
        s, layout, ab, lines = self.problem.shape, self.problem.layout, self.ab, self.lines
        a, b = not layout.a_transposed, layout.b_transposed
        return (
            Operand("A", "m", self.tile_m, a, s.k if a else s.m, ab.of_a, self.cluster_n, "cluster_n", lines[0]),
            Operand("B", "n", self.tile_n, b, s.k if b else s.n, ab.of_b, self.cluster_m, "cluster_m", lines[1]),
        )

    @property
    def left(self) -> Operand:
        return self.operands[self.swap]

    @property
    def right(self) -> Operand:
        return self.operands[1 - self.swap]

    @property
    def instruction_k(self) -> int:
        """Elements along k of one instruction."""
        return _INSTRUCTION_BYTES // self.ab.bytes

    @property
    def through_registers(self) -> bool:
        """Whether the left operand goes through registers: a narrow B does. The instruction takes only 2-byte elements otherwise
        than along k from shared memory (is_use_rmem_A)."""
        return self.narrow or (self.ab.bytes != 2 and not (self.left.along_k and self.right.along_k))

    @property
    def threads(self) -> int:
        """Threads of a block: one warp group loads, the others multiply."""
        return WARP_GROUP * (2 if self.schedule == Schedule.WARP_SPECIALISED else 3)

    @property
    def groups_of_warps(self) -> int:
        """How many share a tile."""
        return 2 if self.schedule == Schedule.COOPERATIVE else 1

    @property
    def accumulators(self) -> int:
        """Registers of a multiplying thread that hold its part of D. 8-bit floats are added up in as many again."""
        parts = 2 if self.ab in EIGHT_BIT_FLOATS else 1
        return parts * self.tile_m * self.tile_n // (WARP_GROUP * self.groups_of_warps)

    @property
    def factor_registers(self) -> int:
        """Those with the factors of its part of a tile: a thread has 2 of 64 rows, and 2 of 8 columns (mma_traits_sm90_gmma.hpp)."""
        rows = self.left.tile // (32 * self.groups_of_warps) if self.left.lines == 1 else 0
        return rows + (self.right.tile // 4 if self.right.lines == 1 else 0)

    @property
    def stage_bytes(self) -> int:
        """A tile of A and one of B, and their factors."""
        factors = sum(operand.factors for operand in self.operands) * FACTOR_BYTES
        return self._tile_bytes + factors + self.left.tile * self.narrow_factor_bytes

    @property
    def _tile_bytes(self) -> int:
        return sum(operand.tile * self.tile_k * operand.element.bits // 8 for operand in self.operands)

    @cached_property
    def stages_kept(self) -> int:
        """Tiles in flight: the parameter, or the number that the templates compute (StageCountAutoCarveout)."""
        if self.stages:
            return self.stages
        unit = self._loading_alignment
        kept = _round_up(self._storing_bytes if self.persistent else 0, unit)
        capacity = SHARED_BYTES - (2 * _DESCRIPTOR_BYTES + _GROUP_SCHEDULER_BYTES if self.grouped else 0)
        return (capacity - kept) // (_round_up(self.stage_bytes, unit) + _BARRIER_BYTES)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: what is loaded and stored, and barriers (SharedStorage of the three kernels)."""
        storing, loading = self._storing, self._loading_bytes
        barriers = self.stages_kept * _BARRIER_BYTES + storing.barrier_bytes
        unit = max(self._loading_alignment, storing.alignment)
        if self.grouped:
            tensors = _round_up(_round_up(loading, storing.alignment) + storing.bytes, unit)
            turns = _BARRIER_BYTES * (3 if self.schedule == Schedule.PINGPONG else 1)
            before = tensors + barriers + turns + 2 * _GROUP_SCHEDULER_BYTES
            return _round_up(
                _round_up(before, _DESCRIPTOR_BYTES) + 2 * _DESCRIPTOR_BYTES + storing.descriptor_bytes, unit
            )
        if not self.persistent:
            return _round_up(max(loading, storing.bytes) + barriers, unit)
        turns = _BARRIER_BYTES * (3 if self.schedule == Schedule.PINGPONG else 1)
        before = _round_up(barriers + turns + _SCHEDULER_BYTES, unit) + storing.bytes
        return _round_up(_round_up(before, self._loading_alignment) + loading, unit)

    @property
    def _loading_bytes(self) -> int:
        """Tiles of all stages, then the factors of A and those of B, each from a multiple of the alignment on."""
        if self.narrow:  # an array of zero points without elements takes a byte
            return _round_up(self.stages_kept * self.stage_bytes + 1, self._loading_alignment)
        total = self.stages_kept * self._tile_bytes
        for operand in self.operands:
            total += _round_up(self.stages_kept * operand.factors * FACTOR_BYTES, _MIN_ALIGNMENT)
        return total

    @property
    def _storing_bytes(self) -> int:
        """All of the epilogue's shared memory, as the templates leave room for it."""
        storing = self._storing
        if storing.bytes == 1:
            return 1
        descriptors = storing.descriptor_bytes if self.grouped else 0
        return _round_up(storing.bytes + descriptors + storing.barrier_bytes, storing.alignment)

    @property
    def _vector_bytes(self) -> int:
        """A bias, or factors of rows or columns, that lie along the columns of the kernel's product are in shared memory."""
        problem, columns = self.problem, self.right.tile
        factors = columns * FACTOR_BYTES if problem.scale is Scale.ROW else 0
        bias = columns * problem.types.cd.bytes if problem.fused.bias and not self.swap else 0
        return factors + bias

    @cached_property
    def _storing(self) -> _Storing:
        """What TMA stores at once, and how much of that is in shared memory (sm90_get_tma_dispatch_policy)."""
        if self.epilogue == Epilogue.DIRECT:
            return _Storing(
                bytes=1, alignment=_MIN_ALIGNMENT, barrier_bytes=_BARRIER_BYTES, descriptor_bytes=_DESCRIPTOR_BYTES
            )
        rows, columns = min(self.groups_of_warps * INSTRUCTION_ROWS, self.left.tile), math.gcd(32, self.right.tile)
        pieces = self.left.tile // rows * (self.right.tile // columns)
        stages = max(min(pieces, 4), min(pieces, 2) + 1)
        element = self.problem.types.cd.bytes
        alignment = _alignment((rows if self.swap else columns) * element)
        return _Storing(
            bytes=_round_up(stages * rows * columns * element + max(1, self._vector_bytes), alignment),
            alignment=alignment,
            barrier_bytes=stages * _BARRIER_BYTES,
            descriptor_bytes=3 * _DESCRIPTOR_BYTES,  # of C, and of D for each group of warps
        )

    def line_bytes(self, operand: Operand) -> int:
        """Bytes of a line of a tile in shared memory: the widest that divides the contiguous extent (ss_smem_selector,
        rs_smem_selector).

        What goes through registers and does not lie along k has lines of 32 bytes.
        """
        if self.through_registers and not operand.along_k:
            return 32
        elements = self.tile_k if operand.along_k else operand.tile
        return math.gcd(_LINE_BYTES, elements * operand.element.bits // 8)

    @property
    def _loading_alignment(self) -> int:
        """Only tiles that go through registers are aligned to how they are swizzled."""
        if not self.through_registers:
            return _MIN_ALIGNMENT
        return max(_alignment(self.line_bytes(operand)) for operand in self.operands)


@dataclass(frozen=True, slots=True)
class _Storing:
    """Shared memory of the epilogue."""

    bytes: int
    alignment: int
    barrier_bytes: int
    descriptor_bytes: int  # for groups


def _alignment(line_bytes: int) -> int:
    """Alignment of tiles with swizzled lines: eight of the widest lines that divide theirs (alignment_for_swizzle)."""
    return 8 * math.gcd(_LINE_BYTES, line_bytes)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
