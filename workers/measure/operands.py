"""The operands of a GEMM: how operand sets are stored, and how many to rotate over so that caches stay cold.

The operands of all configurations are views of seeded buffers, one for each element type, allocated once in a process
and grown where a larger problem comes. A set is one A, B and D (and C where beta is not 0) of a problem; where the problem
is a batch, those of every product of it, and where it has groups, the matrix B of each. The matrices of a batch or of groups
have numbers of their own, so that one that is swapped, left out or computed twice shows.

Where A and B are filled with numbers of one distribution, a buffer is one stream of numbers, and every problem of the process
reads it without another fill. Where they differ, a file fills one, or B is sparse, the first set is filled for its problem, and the
other sets are copies of it: they lie apart, which is what keeps caches cold. Weights of fewer bits than A have a buffer and a stream
of their own.

Scale factors and a bias have numbers of their own too. Factors are uniform on `FACTORS`, and a bias is as large as the rest of
the result (`workers.measure.magnitudes.bias_rules`), so that one that is left out or swapped shows.

A sparse B lies here with its zeros, which verification reads. Which elements of a block are kept is random, so that a wrong index
shows. A kernel compresses B before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidOnDevice, MeasurementFailed
from farm.gemm import ElementType, Problem
from farm.operands import MatrixRules, OperandRules
from farm.sparsity import BLOCK, KEPT, Sparsity
from workers.measure.elements import MAX_INTEGER, STORAGE, encode, encoded, packed, poison
from workers.measure.magnitudes import DEFAULT, FACTORS, bias_rules, factor_unit
from workers.measure.stored import Factors, factors_of_group, stored_shapes
from workers.measure.weights import elements_of

Array = NDArray[Any]

CACHE_FACTOR = 2
"""A rotation is cold when its footprint is at least this many times the last-level cache: the advice of NVIDIA's
"GEMM performance measurement methodology guidelines" for CUTLASS."""

OPERANDS_VERSION = 1
"""Version of the numbers that operands are filled with. Raise it with each change of them, also in `operands.cu`.

It is part of a row's environment. Digests of results are compared by it (`farm.db.corrupted_results`): without it, a device
whose worker was upgraded first would be taken for one that corrupts results.
"""


def _aligned(count: int, step: int) -> int:
    return -(-count // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLayout:
    """The memory layout of one operand set. Counts and offsets are elements, but two of 4 bits count as one; A starts at 0 of the
    set's inputs.

    The matrices of a batch follow each other without a gap.
    """

    problem: Problem
    b_offset: int
    inputs: int  # elements of A and B, padding included; of A alone where B has fewer bits
    inputs_of_b: int  # the same of the buffer in which B lies
    outputs: int  # elements of D, and of C where there is one, padding included
    a_factors: int = 0  # scale factors of A, padding included
    b_factors: int = 0
    bias: int = 0  # elements of the bias, padding included

    @classmethod
    def of(cls, problem: Problem, alignment_bytes: int, *, guard_bytes: int = 0) -> SetLayout:
        """Each operand starts at a multiple of `alignment_bytes`, as an allocation of its own would.

        Behind each matrix lie `guard_bytes` that are no operand, a multiple of the alignment.
        """
        types, stored = problem.types, stored_shapes(problem)

        def of_matrix(name: str, kind: ElementType) -> int:
            step = max(1, alignment_bytes // kind.bytes)
            return _aligned(math.prod(stored[name]), step) + guard_bytes // kind.bytes

        a, b, apart = of_matrix("a", types.ab.of_a), of_matrix("b", types.ab.of_b), types.ab.low_bit_weights
        a_factors, b_factors = (
            0
            if found is None
            else _aligned(math.prod(found.stored), max(1, alignment_bytes // problem.factor_type.bytes))
            for found in (Factors.of_a(problem), Factors.of_b(problem))
        )
        out_step = max(1, alignment_bytes // types.cd.bytes)
        return cls(
            problem=problem,
            b_offset=0 if apart else a,
            inputs=a if apart else a + b,
            inputs_of_b=b if apart else a + b,
            outputs=of_matrix("c", types.cd),
            a_factors=a_factors,
            b_factors=b_factors,
            bias=_aligned(problem.matrices_of_b * problem.shape.n, out_step) if problem.fused.bias else 0,
        )

    @property
    def addends(self) -> int:
        """Elements of C, padding included: none where beta is 0."""
        return self.outputs if self.problem.beta else 0

    @property
    def bytes(self) -> int:
        """Those of memory, with a compressed copy of a sparse B."""
        types, factors = self.problem.types, self.a_factors + self.b_factors
        of_cd = self.outputs + self.addends + self.bias
        inputs = self.inputs * types.ab.bytes
        if types.ab.low_bit_weights:
            inputs += self.inputs_of_b * types.ab.of_b.bytes
        if self.problem.sparsity is not Sparsity.NONE:
            inputs += self.problem.matrices_of_b * self.problem.bytes_of_b
        return inputs + of_cd * types.cd.bytes + factors * self.problem.factor_type.bytes

    @property
    def bytes_at_work(self) -> int:
        """Those that a kernel reads and writes: of a sparse B the compressed copy alone."""
        if self.problem.sparsity is Sparsity.NONE:
            return self.bytes
        return self.bytes - (self.inputs_of_b - self.b_offset) * self.problem.types.ab.of_b.bytes


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


def plan_rotation(
    set_bytes: int, *, cache_bytes: int, memory_bytes: int, max_sets: int, stored_bytes: int | None = None
) -> Rotation:
    """Enough sets to cover the cache twice, and two at least; fewer where memory or `max_sets` ends first.

    A rotation that was cut short and fits into twice the cache is marked as not cold.

    Args:
        set_bytes: What a kernel reads and writes of a set.
        stored_bytes: What a set takes in memory, if that is more.
    """
    wanted = max(2, -(-CACHE_FACTOR * cache_bytes // set_bytes))
    sets = max(1, min(wanted, max_sets, memory_bytes // (stored_bytes or set_bytes)))
    footprint = sets * set_bytes
    return Rotation(sets=sets, footprint_bytes=footprint, cold=footprint >= CACHE_FACTOR * cache_bytes)


@dataclass(frozen=True, slots=True)
class OperandSet:
    """Views as the problem is written: a is [m,k], b is [k,n], d is [m,n], also if they are stored transposed.

    With a gate, d is [m,n/2]. Of a batch they are [batch,m,k], [batch,k,n] and [batch,m,n]. With groups, b is [groups,k,n], and its
    factors and the bias have an axis of groups too; `group` gives the operands of one. Their arrays are of the types' storage (see
    `workers.measure.elements`): b of 4 bits has half as many rows or columns, in the direction in which it is contiguous. Scale
    factors have one element for each block of their matrix.
    """

    a: Any
    b: Any
    c: Any | None  # as d, only where beta is not 0
    d: Any
    a_factors: Any | None = None  # [blocks of rows, blocks along k]
    b_factors: Any | None = None  # [blocks along k, blocks of columns]
    bias: Any | None = None  # [n]

    def stacked(self) -> OperandSet:
        """Views with an axis for the batch, also without a batch."""
        return self if self.d.ndim == 3 else self._each(lambda x: x[None])

    def matrices(self, part: Any) -> OperandSet:
        """Of stacked views, those of some matrices of the batch."""
        return self._each(lambda x: x[part])

    def group(self, number: int, rows: slice) -> OperandSet:
        """Of operands with groups, those of one: views as of a product of its own."""
        a_factors = None if self.a_factors is None else factors_of_group(self.a_factors, rows)
        c, b_factors, bias = (
            None if x is None else x[part]
            for x, part in ((self.c, rows), (self.b_factors, number), (self.bias, number))
        )
        return OperandSet(self.a[rows], self.b[number], c, self.d[rows], a_factors, b_factors, bias)

    def _each(self, view: Callable[[Any], Any]) -> OperandSet:
        arrays = (self.a, self.b, self.c, self.d, self.a_factors, self.b_factors, self.bias)
        return OperandSet(*(None if x is None else view(x) for x in arrays))


@dataclass(frozen=True, slots=True)
class Buffers:
    """The memory of some operand sets that follow each other: flat arrays, NumPy's or CuPy's.

    B lies in the same buffer as A, or where its type is another one, in another buffer: at the same place if its elements have the
    same size, and at the start if not.
    """

    layout: SetLayout
    inputs: Any
    inputs_of_b: Any
    addends: Any | None
    outputs: Any
    a_factors: Any | None = None
    b_factors: Any | None = None
    bias: Any | None = None

    def views(self, index: int) -> OperandSet:
        """The operand set of that number.

        A transposed operand is a transposed view of its storage: no copy, so that the library really gets the layout.
        """
        lies, problem, stored = self.layout, self.layout.problem, stored_shapes(self.layout.problem)
        given, first, out = problem.layout, index * lies.inputs, index * lies.outputs
        several = {
            "a": problem.batch != 1,
            "b": problem.batch != 1 or problem.groups is not None,
            "c": problem.batch != 1,
        }

        def view(buffer: Any, name: str, start: int, *, transposed: bool = False) -> Any:
            # Without a batch there is no axis for it, so that a library is called with matrices.
            shape = stored[name] if several[name] else stored[name][1:]
            lying = buffer[start : start + math.prod(shape)].reshape(shape)
            return lying.swapaxes(-1, -2) if transposed else lying

        def of_factors(name: str, buffer: Any | None, factors: Factors | None, start: int) -> Any | None:
            """By lines and blocks along k."""
            if buffer is None or factors is None:
                return None
            lying = buffer[start : start + math.prod(factors.stored)].reshape(factors.stored)
            return factors.by_line(lying) if several[name] else factors.by_line(lying)[0]

        of_b = of_factors("b", self.b_factors, Factors.of_b(problem), index * lies.b_factors)
        bias = None
        if self.bias is not None:
            lying = self.bias[index * lies.bias :][: problem.matrices_of_b * problem.shape.n]
            bias = lying.reshape(problem.matrices_of_b, -1) if several["b"] else lying
        return OperandSet(
            view(self.inputs, "a", first, transposed=given.a_transposed),
            view(self.inputs_of_b, "b", index * lies.inputs_of_b + lies.b_offset, transposed=given.b_transposed),
            None if self.addends is None else view(self.addends, "c", out),
            view(self.outputs, "c", out),
            of_factors("a", self.a_factors, Factors.of_a(problem), index * lies.a_factors),
            None if of_b is None else of_b.swapaxes(-1, -2),
            bias,
        )


Write = Callable[[Any, ElementType, MatrixRules, int, int], None]
"""Fills a flat array with elements under the rules, for a seed and a stream: streams of one seed are different numbers."""

A_STREAM, C_STREAM, B_STREAM, A_FACTORS_STREAM, B_FACTORS_STREAM, BIAS_STREAM, KEPT_STREAM = range(7)
"""Streams of the matrices. A buffer that A and B share is one stream, that of A. Where B has a buffer of its own, it has the same
stream there, but weights of fewer bits have that of B. The stream of the elements that are kept is followed by others of its kind."""


def _stream_of_b(problem: Problem) -> int:
    """The first stream of the buffer in which B lies."""
    return B_STREAM if problem.types.ab.low_bit_weights else A_STREAM


_UNIFORM = MatrixRules(distribution="uniform")


@dataclass(frozen=True, slots=True)
class _Part:
    """An operand in each set of a buffer."""

    rules: MatrixRules
    stream: int
    offset: int = 0
    stored: tuple[int, int, int] = (0, 0, 0)  # as of `stored_shapes`
    factors: float = 0.0  # of scale factors: what `FACTORS` are multiplied with, to which numbers on [-1, 1] are moved
    sparse_along: int | None = None  # the axis of k, where two of four elements are kept


@dataclass(frozen=True, slots=True)
class _Content:
    """What a buffer is filled with."""

    seed: int
    parts: tuple[_Part, ...]
    stride: int = 0  # elements from a set to the next; 0: one stream, whatever the problem


def _contents(layout: SetLayout, rules: OperandRules) -> dict[tuple[ElementType, int], _Content]:
    """What fills the buffers, by their element type and first stream."""
    problem, matrices, seed = layout.problem, rules.matrices, rules.seed
    types, stored = problem.types, stored_shapes(problem)
    places = {"a": (A_STREAM, 0), "b": (B_STREAM, layout.b_offset), "c": (C_STREAM, 0)}

    sparse = problem.sparsity is not Sparsity.NONE
    if sparse and matrices["b"].file is not None:
        raise InvalidOnDevice(
            why=f"{matrices['b'].weights_name} is not pruned, and the problem has sparsity={problem.sparsity}; "
            "fill B with a distribution"
        )
    if sparse and types.ab.of_b.per_item != 1:
        raise InvalidOnDevice(
            why=f"B of {types.ab.of_b} is not pruned: sparsity={problem.sparsity} needs elements of 8 bits or more"
        )
    along = {"b": 2 if problem.layout.b_transposed else 1} if sparse else {}

    def parts_of(*names: str) -> tuple[_Part, ...]:
        return tuple(_Part(matrices[name], *places[name], stored[name], sparse_along=along.get(name)) for name in names)

    def alone(name: str, stream: int, stride: int) -> _Content:
        if matrices[name].file is not None or name in along:
            return _Content(seed, parts_of(name), stride)
        return _Content(seed, (_Part(matrices[name], stream),))

    own_types = types.ab.of_a is not types.ab.of_b
    if own_types or (matrices["a"] == matrices["b"] and matrices["a"].file is None and not sparse):
        found = {
            (types.ab.of_a, A_STREAM): alone("a", A_STREAM, layout.inputs),
            (types.ab.of_b, _stream_of_b(problem)): alone("b", _stream_of_b(problem), layout.inputs_of_b),
        }
    else:
        found = {(types.ab, A_STREAM): _Content(seed, parts_of("a", "b"), layout.inputs)}
    for stream in (A_FACTORS_STREAM, B_FACTORS_STREAM):
        found[problem.factor_type, stream] = _Content(seed, (_Part(_UNIFORM, stream, factors=factor_unit(problem)),))
    if layout.bias:
        found[types.cd, BIAS_STREAM] = _Content(seed, (_Part(bias_rules(problem, rules), BIAS_STREAM),))
    return {**found, (types.cd, C_STREAM): alone("c", C_STREAM, layout.outputs)}


class Arena:
    """The operands of a device: for each element type a buffer of numbers for A and B, one for C, and one for results."""

    def __init__(
        self, write: Write, blank: Callable[[ElementType, int], Any], smallest_bytes: int, xp: Any = np
    ) -> None:
        self._xp = xp  # the module that the arrays come from
        self._write = write
        self._blank = blank
        self._smallest_bytes = smallest_bytes
        self._numbers: dict[tuple[ElementType, int], tuple[_Content, Any]] = {}  # by stream
        self._outputs: dict[ElementType, Any] = {}

    @property
    def bytes(self) -> int:
        """What is held."""
        return sum(int(x.nbytes) for x in (*(held for _, held in self._numbers.values()), *self._outputs.values()))

    def clear(self) -> None:
        self._numbers.clear()
        self._outputs.clear()

    def buffers(self, layout: SetLayout, count: int, rules: OperandRules) -> Buffers:
        """Room for that many sets, filled under the rules.

        Raises `InvalidOnDevice` where a file does not fit, or a result with a bias would overflow.
        """
        types, factor_type = layout.problem.types, layout.problem.factor_type
        contents = _contents(layout, rules)
        each = {
            A_STREAM: layout.inputs,
            B_STREAM: layout.inputs_of_b,
            C_STREAM: layout.addends,
            A_FACTORS_STREAM: layout.a_factors,
            B_FACTORS_STREAM: layout.b_factors,
            BIAS_STREAM: layout.bias,
        }
        sizes = {key: each[key[1]] * count for key in contents}
        wanted = {key: content for key, content in contents.items() if sizes[key]}
        for key in wanted:
            held = self._numbers.get(key)
            if held is not None and held[1].size < sizes[key]:
                del self._numbers[key]  # freed before the larger one is taken; a seed gives the same numbers again
            held = None  # or what was dropped would stay
        outputs = self._outputs.get(types.cd)
        if outputs is None or outputs.size < layout.outputs * count:
            outputs = None
            self._outputs.pop(types.cd, None)
            self._outputs[types.cd] = outputs = self._blank(
                types.cd, max(layout.outputs * count, self._smallest_bytes // 4 // types.cd.bytes)
            )
        filled = {key: self._filled(*key, sizes[key], content) for key, content in wanted.items()}
        return Buffers(
            layout,
            filled[types.ab.of_a, A_STREAM],
            filled[types.ab.of_b, _stream_of_b(layout.problem)],
            filled.get((types.cd, C_STREAM)),
            outputs,
            filled.get((factor_type, A_FACTORS_STREAM)),
            filled.get((factor_type, B_FACTORS_STREAM)),
            filled.get((types.cd, BIAS_STREAM)),
        )

    def _filled(self, kind: ElementType, stream: int, size: int, content: _Content) -> Any:
        held, buffer = self._numbers.pop((kind, stream), (None, None))  # what fails to be filled is not kept
        if buffer is None:
            smallest = self._smallest_bytes if stream in (A_STREAM, B_STREAM) else 0
            buffer = self._blank(kind, max(size, smallest // kind.bytes))
        if held != content:
            self._fill(buffer, kind, content)
        self._numbers[kind, stream] = content, buffer
        return buffer

    def _fill(self, buffer: Any, kind: ElementType, content: _Content) -> None:
        for part in content.parts:
            count = math.prod(part.stored) or buffer.size
            target = buffer[part.offset : part.offset + count]
            if part.factors:
                self._fill_factors(target, kind, part, content.seed)
            elif part.rules.file is None:
                self._write(target, kind, part.rules, content.seed, part.stream)
            else:
                target[:] = self._xp.asarray(elements_of(part.rules, kind, *part.stored).reshape(-1))
            if part.sparse_along is not None:
                self._prune(target.reshape(part.stored), part.sparse_along, content.seed)
        if content.stride:
            sets = buffer[: buffer.size // content.stride * content.stride].reshape(-1, content.stride)
            sets[1:] = sets[0]

    def _fill_factors(self, target: Any, kind: ElementType, part: _Part, seed: int) -> None:
        numbers = target if kind is ElementType.F32 else self._blank(ElementType.F32, target.size)
        self._write(numbers, ElementType.F32, part.rules, seed, part.stream)
        numbers *= np.float32((FACTORS[1] - FACTORS[0]) / 2 * part.factors)
        numbers += np.float32((FACTORS[1] + FACTORS[0]) / 2 * part.factors)
        if numbers is not target:
            target[:] = encode(kind, numbers, self._xp)

    def _prune(self, matrices: Any, along: int, seed: int) -> None:
        """Sets all but two elements of each block of four along k to zero, by a pattern that is random for each block."""
        xp = self._xp
        # As whole numbers: a float times 0 may be -0, which is not nothing to a library that looks at bits.
        bits = matrices.view(np.dtype(f"u{matrices.dtype.itemsize}"))
        by_line = bits if along == 2 else bits.swapaxes(1, 2)
        _, lines, k = by_line.shape
        blocks, patterns = -(-k // BLOCK), xp.asarray(PATTERNS)
        step = max(1, _DRAWN // blocks)
        parts = (matrix[first : first + step] for matrix in by_line for first in range(0, lines, step))
        for number, part in enumerate(parts):
            drawn = xp.empty(len(part) * blocks, np.float32)
            self._write(drawn, ElementType.F32, _UNIFORM, seed, KEPT_STREAM + number)
            which = ((drawn + 1) * (len(PATTERNS) / 2)).astype(np.int8).clip(max=len(PATTERNS) - 1)
            part[...] *= patterns[which].reshape(len(part), -1)[:, :k]


_DRAWN = 2**24
"""Blocks whose patterns are drawn at once: 64 MiB."""

PATTERNS = np.array([[place in kept for place in range(BLOCK)] for kept in combinations(range(BLOCK), KEPT)], np.uint8)
"""Which elements of a block are kept: the ways to choose two of four [6, 4], as 0 and 1."""


class HostArena:
    """The operands of a CPU."""

    ALIGNMENT = 64  # bytes: a cache line, and the widest vector

    def __init__(self, smallest_bytes: int) -> None:
        self._arena = Arena(_write_on_host, _blank_on_host, smallest_bytes)

    def sets(self, layout: SetLayout, count: int, rules: OperandRules = DEFAULT) -> list[OperandSet]:
        """The first `count` operand sets. Raises `MeasurementFailed` where the memory cannot be had."""
        try:
            buffers = self._arena.buffers(layout, count, rules)
        except MemoryError as error:
            self._arena.clear()
            raise MeasurementFailed(why=f"{layout.bytes * count:,} bytes of operands: {error}") from None
        return [buffers.views(index) for index in range(count)]


def _write_on_host(target: Array, kind: ElementType, rules: MatrixRules, seed: int, stream: int) -> None:
    random, count = np.random.default_rng([seed, stream]), target.size * kind.per_item
    dtype: Any = np.float64 if kind is ElementType.F64 else np.float32
    numbers = np.empty(count, dtype)
    match rules.distribution:
        case "zeros" | "ones":
            numbers.fill(rules.distribution == "ones")
        case "normal":
            random.standard_normal(out=numbers, dtype=dtype)
        case "integers":
            numbers[:] = random.integers(-MAX_INTEGER, MAX_INTEGER + 1, count, np.int8)
        case "uniform" | "sparse":
            random.random(out=numbers, dtype=dtype)
            numbers *= 2
            numbers -= 1
            if rules.distribution == "sparse":
                coins = np.random.default_rng([seed, stream, 1])  # of their own, so that the length decides nothing
                numbers[coins.random(count, dtype=np.float32) < 0.5] = 0
    if rules.scale is not None:
        numbers *= dtype(rules.scale)
    target[:] = packed(kind, encoded(kind, numbers, rules))


def _blank_on_host(kind: ElementType, count: int) -> Array:
    # Written once now: a page that is first touched inside a sample would be timed with it.
    return np.full(count, poison(kind), STORAGE[kind])
