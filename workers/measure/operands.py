"""The operands of a GEMM: how operand sets are stored, and how many to rotate over so that caches stay cold.

The operands of all configurations are views of seeded buffers, one for each element type, allocated once in a process
and grown where a larger problem comes. A set is one A, B and D (and C where beta is not 0) of a problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.errors import MeasurementFailed
from farm.gemm import ElementType, Problem
from farm.measurement import Distribution, OperandRules
from workers.measure.elements import INTEGER_SPAN, INTEGERS, STORAGE, encode, poison

Array = NDArray[Any]

CACHE_FACTOR = 2
"""A rotation is cold when its footprint is at least this many times the last-level cache: the advice of NVIDIA's
"GEMM performance measurement methodology guidelines" for CUTLASS."""

INTEGER_DEVIATION = 0.25
"""Normal numbers become integers of this standard deviation, as a share of 127: few reach the ends."""

_MEAN_SQUARE: dict[Distribution, float] = {"uniform": 1 / 3, "normal": 1.0, "zeros": 0.0, "ones": 1.0, "sparse": 1 / 6}


DEFAULT = OperandRules()


def result_scale(problem: Problem, rules: OperandRules = DEFAULT) -> float:
    """Root mean square of an element of the result for operands of these rules; never 0.

    An element of A·B is a sum of k products of independent numbers with mean 0, whose variances add up; of ones
    it is k.
    """
    p = problem
    ab, c = _mean_square(p.types.ab, rules), _mean_square(p.types.cd, rules)
    if rules.distribution == "ones":
        return abs(p.alpha) * p.shape.k * ab + abs(p.beta) * math.sqrt(c) or 1.0
    return math.sqrt(p.alpha**2 * p.shape.k * ab**2 + p.beta**2 * c) or 1.0


def _mean_square(kind: ElementType, rules: OperandRules) -> float:
    spread = 1.0
    if kind in INTEGERS:
        spread = INTEGER_SPAN * (INTEGER_DEVIATION if rules.distribution == "normal" else 1)
    return _MEAN_SQUARE[rules.distribution] * spread**2


def _aligned(count: int, step: int) -> int:
    return -(-count // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLayout:
    """The memory layout of one operand set. Counts and offsets are elements; A starts at 0 of the set's inputs."""

    problem: Problem
    b_offset: int
    inputs: int  # elements of A and B, padding included
    outputs: int  # elements of D, and of C where there is one, padding included

    @classmethod
    def of(cls, problem: Problem, alignment_bytes: int) -> SetLayout:
        """Each operand starts at a multiple of `alignment_bytes`, as an allocation of its own would."""
        s, types = problem.shape, problem.types
        step, out_step = (max(1, alignment_bytes // kind.bytes) for kind in (types.ab, types.cd))
        a, b = (_aligned(count, step) for count in (s.m * s.k, s.k * s.n))
        return cls(problem=problem, b_offset=a, inputs=a + b, outputs=_aligned(s.m * s.n, out_step))

    @property
    def addends(self) -> int:
        """Elements of C, padding included: none where beta is 0."""
        return self.outputs if self.problem.beta else 0

    @property
    def bytes(self) -> int:
        types = self.problem.types
        return self.inputs * types.ab.bytes + (self.outputs + self.addends) * types.cd.bytes


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


def plan_rotation(set_bytes: int, *, cache_bytes: int, memory_bytes: int, max_sets: int) -> Rotation:
    """Enough sets to cover the cache twice, and two at least; fewer where memory or `max_sets` ends first.

    A rotation that was cut short and fits into twice the cache is marked as not cold.
    """
    wanted = max(2, -(-CACHE_FACTOR * cache_bytes // set_bytes))
    sets = max(1, min(wanted, max_sets, memory_bytes // set_bytes))
    footprint = sets * set_bytes
    return Rotation(sets=sets, footprint_bytes=footprint, cold=footprint >= CACHE_FACTOR * cache_bytes)


@dataclass(frozen=True, slots=True)
class OperandSet:
    """Views as the problem is written: a is [m,k], b is [k,n], d is [m,n], also if they are stored transposed.

    Their arrays are of the types' storage (see `workers.measure.elements`).
    """

    a: Any
    b: Any
    c: Any | None  # [m,n], only where beta is not 0
    d: Any


@dataclass(frozen=True, slots=True)
class Buffers:
    """The memory of some operand sets that follow each other: flat arrays, NumPy's or CuPy's.

    B lies in the same buffer as A, or where its type is another one, at the same place of another buffer.
    """

    layout: SetLayout
    inputs: Any
    inputs_of_b: Any
    addends: Any | None
    outputs: Any

    def views(self, index: int) -> OperandSet:
        """The operand set of that number.

        A transposed operand is a transposed view of its storage: no copy, so that the library really gets the layout.
        """
        lies, s, given = self.layout, self.layout.problem.shape, self.layout.problem.layout
        first, out = index * lies.inputs, index * lies.outputs
        a = self.inputs[first : first + s.m * s.k]
        b = self.inputs_of_b[first + lies.b_offset : first + lies.b_offset + s.k * s.n]
        return OperandSet(
            a.reshape(s.k, s.m).T if given.a_transposed else a.reshape(s.m, s.k),
            b.reshape(s.n, s.k).T if given.b_transposed else b.reshape(s.k, s.n),
            None if self.addends is None else self.addends[out : out + s.m * s.n].reshape(s.m, s.n),
            self.outputs[out : out + s.m * s.n].reshape(s.m, s.n),
        )


Fill = Callable[[ElementType, int, OperandRules, int], Any]
"""Makes a flat array of so many elements under the rules; the last number tells streams of numbers apart."""


class Arena:
    """The operands of a device: for each element type a buffer of numbers for A and B, one for C, and one for results."""

    def __init__(self, fill: Fill, blank: Callable[[ElementType, int], Any], smallest_bytes: int) -> None:
        self._fill = fill
        self._blank = blank
        self._smallest_bytes = smallest_bytes
        self._numbers: dict[tuple[ElementType, int], tuple[OperandRules, Any]] = {}  # by stream
        self._outputs: dict[ElementType, Any] = {}

    @property
    def bytes(self) -> int:
        """What is held."""
        return sum(int(x.nbytes) for x in (*(held for _, held in self._numbers.values()), *self._outputs.values()))

    def clear(self) -> None:
        self._numbers.clear()
        self._outputs.clear()

    def buffers(self, layout: SetLayout, count: int, rules: OperandRules) -> Buffers:
        """Room for that many sets, filled under the rules."""
        types = layout.problem.types
        inputs = dict.fromkeys(((types.ab.of_a, 0), (types.ab.of_b, 0)), layout.inputs * count)
        wanted = {**inputs, (types.cd, 1): layout.addends * count}
        for key, size in wanted.items():
            held = self._numbers.get(key)
            if held is not None and (held[0] != rules or held[1].size < size):
                del self._numbers[key]  # freed before the larger one is taken; a seed gives the same numbers again
            held = None  # or what was dropped would stay
        outputs = self._outputs.get(types.cd)
        if outputs is None or outputs.size < layout.outputs * count:
            outputs = None
            self._outputs.pop(types.cd, None)
            self._outputs[types.cd] = outputs = self._blank(
                types.cd, max(layout.outputs * count, self._smallest_bytes // 4 // types.cd.bytes)
            )
        filled = {key: self._filled(*key, size, rules) for key, size in wanted.items() if size}
        return Buffers(layout, filled[types.ab.of_a, 0], filled[types.ab.of_b, 0], filled.get((types.cd, 1)), outputs)

    def _filled(self, kind: ElementType, stream: int, size: int, rules: OperandRules) -> Any:
        held = self._numbers.get((kind, stream))
        if held is None:
            smallest = self._smallest_bytes if stream == 0 else 0
            numbers = self._fill(kind, max(size, smallest // kind.bytes), rules, stream)
            held = self._numbers[kind, stream] = (rules, numbers)
        return held[1]


class HostArena:
    """The operands of a CPU."""

    ALIGNMENT = 64  # bytes: a cache line, and the widest vector

    def __init__(self, smallest_bytes: int) -> None:
        self._arena = Arena(_filled_on_host, _blank_on_host, smallest_bytes)

    def sets(self, layout: SetLayout, count: int, rules: OperandRules = DEFAULT) -> list[OperandSet]:
        """The first `count` operand sets. Raises `MeasurementFailed` where the memory cannot be had."""
        try:
            buffers = self._arena.buffers(layout, count, rules)
        except MemoryError as error:
            self._arena.clear()
            raise MeasurementFailed(why=f"{layout.bytes * count:,} bytes of operands: {error}") from None
        return [buffers.views(index) for index in range(count)]


def _filled_on_host(kind: ElementType, count: int, rules: OperandRules, stream: int) -> Array:
    random = np.random.default_rng([rules.seed, stream])
    dtype: Any = np.float64 if kind is ElementType.F64 else np.float32
    numbers = np.empty(count, dtype)
    match rules.distribution:
        case "zeros" | "ones":
            numbers.fill(rules.distribution == "ones")
        case "normal":
            random.standard_normal(out=numbers, dtype=dtype)
        case "uniform" | "sparse":
            random.random(out=numbers, dtype=dtype)
            numbers *= 2
            numbers -= 1
            if rules.distribution == "sparse":
                numbers[random.random(count, dtype=np.float32) < 0.5] = 0
    elements: Array = encoded(kind, numbers, rules)
    return elements


def encoded(kind: ElementType, numbers: Any, rules: OperandRules, xp: Any = np) -> Any:
    """Numbers of a distribution as elements. Numbers that already have the storage type are returned unchanged."""
    if numbers.dtype == STORAGE[kind] and kind is not ElementType.TF32:
        return numbers
    if kind in INTEGERS and rules.distribution == "normal":
        numbers *= INTEGER_DEVIATION
    return encode(kind, numbers, xp)


def _blank_on_host(kind: ElementType, count: int) -> Array:
    # Written once now: a page that is first touched inside a sample would be timed with it.
    return np.full(count, poison(kind), STORAGE[kind])
