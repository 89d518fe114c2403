"""What a GEMM is fed with: how operand sets lie in memory, and how many to rotate over so that caches stay cold.

The operands of all configurations are views of one seeded buffer per element type, allocated once in a process and
grown where a larger problem comes. A set is one A, B and D (and C where beta is not 0) of a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.errors import MeasurementFailed
from farm.gemm import ElementType, Problem

Array = NDArray[Any]

NUMPY_TYPES: dict[ElementType, Any] = {ElementType.F32: np.float32, ElementType.F64: np.float64}
"""The element types that NumPy computes with honestly."""

CACHE_FACTOR = 2
"""A rotation is cold when its footprint is at least this many times the last-level cache: the advice of NVIDIA's
"GEMM performance measurement methodology guidelines" for CUTLASS."""


def _aligned(count: int, step: int) -> int:
    return -(-count // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLayout:
    """Where the operands of one set lie. Counts and offsets are elements; A starts at 0 of the set's inputs."""

    problem: Problem
    b_offset: int
    c_offset: int
    inputs: int  # elements of A, B and C, padding included
    outputs: int  # elements of D, padding included

    @classmethod
    def of(cls, problem: Problem, alignment_bytes: int) -> SetLayout:
        """Each operand starts at a multiple of `alignment_bytes`, as an allocation of its own would."""
        s, step = problem.shape, max(1, alignment_bytes // problem.types.ab.bytes)
        a, b, d = (_aligned(count, step) for count in (s.m * s.k, s.k * s.n, s.m * s.n))
        return cls(problem=problem, b_offset=a, c_offset=a + b, inputs=a + b + (d if problem.beta else 0), outputs=d)

    @property
    def bytes(self) -> int:
        return self.inputs * self.problem.types.ab.bytes + self.outputs * self.problem.types.cd.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How many operand sets a measurement walks over."""

    sets: int
    footprint_bytes: int
    cold: bool

    @property
    def l2(self) -> str:
        """The word for the column `l2`."""
        return "cold" if self.cold else "warm"


def plan_rotation(set_bytes: int, *, cache_bytes: int, memory_bytes: int, most_sets: int) -> Rotation:
    """Enough sets to cover the cache twice, and two at least; fewer where memory or `most_sets` ends first.

    A rotation that was cut short and fits into twice the cache is not cold, and says so.
    """
    wanted = max(2, -(-CACHE_FACTOR * cache_bytes // set_bytes))
    sets = max(1, min(wanted, most_sets, memory_bytes // set_bytes))
    footprint = sets * set_bytes
    return Rotation(sets=sets, footprint_bytes=footprint, cold=footprint >= CACHE_FACTOR * cache_bytes)


@dataclass(frozen=True, slots=True)
class OperandSet:
    """Views as the problem is written: a is [m,k], b is [k,n], d is [m,n], whatever lies transposed in memory."""

    a: Any
    b: Any
    c: Any | None  # [m,n], only where beta is not 0
    d: Any


def views(layout: SetLayout, inputs: Any, outputs: Any, index: int) -> OperandSet:
    """The operand set number `index` of a buffer of inputs and one of outputs (flat arrays, NumPy's or CuPy's).

    A transposed operand is a transposed view of its storage: no copy, so that the library really gets the layout.
    """
    s, given = layout.problem.shape, layout.problem.layout
    start = index * layout.inputs
    a = inputs[start : start + s.m * s.k]
    b = inputs[start + layout.b_offset : start + layout.b_offset + s.k * s.n]
    c = inputs[start + layout.c_offset : start + layout.c_offset + s.m * s.n] if layout.problem.beta else None
    d = outputs[index * layout.outputs : index * layout.outputs + s.m * s.n]
    return OperandSet(
        a.reshape(s.k, s.m).T if given.a_transposed else a.reshape(s.m, s.k),
        b.reshape(s.n, s.k).T if given.b_transposed else b.reshape(s.k, s.n),
        None if c is None else c.reshape(s.m, s.n),
        d.reshape(s.m, s.n),
    )


class HostArena:
    """The operands of a CPU: a buffer of uniform [-1, 1) numbers and one for results, for each element type."""

    ALIGNMENT = 64  # bytes: a cache line, and the widest vector

    def __init__(self, smallest_bytes: int) -> None:
        self._smallest_bytes = smallest_bytes
        self._inputs: dict[ElementType, tuple[int, Array]] = {}  # with the seed
        self._outputs: dict[ElementType, Array] = {}

    def sets(self, layout: SetLayout, count: int, seed: int) -> list[OperandSet]:
        """The first `count` operand sets. Raises `MeasurementFailed` where the memory cannot be had."""
        types = layout.problem.types
        try:
            inputs = self._filled(types.ab, layout.inputs * count, seed)
            outputs = self._blank(types.cd, layout.outputs * count)
        except MemoryError as error:
            self._inputs.clear()
            self._outputs.clear()
            raise MeasurementFailed(why=f"{layout.bytes * count:,} bytes of operands: {error}") from None
        return [views(layout, inputs, outputs, index) for index in range(count)]

    def _filled(self, kind: ElementType, count: int, seed: int) -> Array:
        held = self._inputs.get(kind)
        if held is not None and held[0] == seed and len(held[1]) >= count:
            return held[1]
        self._inputs.pop(kind, None)  # freed before the larger one is taken; a seed gives the same numbers again
        dtype = NUMPY_TYPES[kind]
        numbers = np.empty(max(count, self._smallest_bytes // kind.bytes), dtype)
        np.random.default_rng(seed).random(out=numbers, dtype=dtype)
        numbers *= 2
        numbers -= 1
        self._inputs[kind] = (seed, numbers)
        return numbers

    def _blank(self, kind: ElementType, count: int) -> Array:
        held = self._outputs.get(kind)
        if held is not None and len(held) >= count:
            return held
        self._outputs.pop(kind, None)
        # Written once now: a page that is first touched inside a sample would be timed with it.
        self._outputs[kind] = blank = np.full(
            max(count, self._smallest_bytes // 4 // kind.bytes), np.nan, NUMPY_TYPES[kind]
        )
        return blank
