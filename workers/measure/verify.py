"""Is the result right? Checked once per configuration, outside the timing, against higher precision.

Three checks. The size of the problem decides between the last two:

1. *Every element was written*: the output was filled with NaN before the kernel ran, and none may be left.
2. *Small problems*: every element is compared with the same product in a wider type (float64 for float32, the
   platform's long double for float64).
3. *Large problems*: every element takes part in one check. The columns of each row are added up in groups of 32 with
   random signs, and each sum is compared with the same sum of A·B, which costs 1/32 of the product: A·(B·X), after
   Freivalds. A single wrong element shows in full in its group's sum, independent of the signs; a group that is off is
   computed exactly, so that the element is named. Besides, the corners and a seeded choice of rows and columns are
   compared exactly as in 2. What can hide: an error below sqrt(32) times the bound of an element outside that choice,
   or several errors in one group that cancel under random signs.

Of a batch, every matrix takes part: the size is that of all together, each matrix has its own groups, and the exact comparison
of 3 is of the first matrix, the last, and a seeded choice. Each matrix has numbers of its own, so a right matrix in the place
of another is a wrong one. Each group of rows is checked as the product that it is: the size is its own.

The bound of an element's error is 8·sqrt(k + 16) times the unit round-off of the accumulator, as a share of the root
mean square of an element of the result. Rounding errors of a sum of k terms grow as sqrt(k) with high probability
(Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019); a sum of uniform numbers has errors
of about 0.4·sqrt(k) units, the largest of 10^8 elements lies six standard deviations out, and 16 leaves room for the
few roundings of alpha and beta where k is 1. An output in a narrower type than the accumulator is rounded again: 8
of its units. Sums of constants only grow, and their errors may all have one sign: k / 2 units of the part that grows are
added. So is half the distance of the smallest numbers, where results are that small. Where a file fills a matrix, the bound
is that of its largest row or column, because an element's errors grow with those: a file whose rows differ much in size is
checked less closely in its small ones. Operands are exact in their types (see `elements`), so nothing else is lost, but that tensor
cores keep fewer bits while they add up (`_TENSOR_CORES`). Sums of integers are exact.

Scale factors and a bias are linear, so groups are right for them too. Factors are multiplied with the elements in the wider type.
They lie within a factor of 1.6, and the bound is that of the largest. An activation is not linear. There every element of a
large problem is compared with a wider product, in parts, and also where narrow inputs have factors: one wrong factor of many
changes elements by less than the bound of a group. In both cases an element's rounding to the type of D is measured by its own
size before the activation, not by that of the largest. Where activations differ, numbers are small. An error before an activation
is at most as many times as large after it as its largest slope (`workers.measure.activations`).

With a gate, D is activation(g)·u of two elements g and u of the product, and sizes are those of g·u. Where δ is the error of one
element before the activation times its largest slope, both make an error of at most δ·(|g| + |u| + δ), because |activation(g)| is
at most |g|.

Weights of fewer bits than A are exact in A's type, and times a factor they are not: kernels that convert them before they multiply
round each product to it. These errors are independent along k. The largest of their sums is less than 4 units of A's type.

The wider product is float64. For inputs of at most 16 bits it is float32, because some cards are slow in float64: products of
two such numbers are exact in it, its errors are those of a sum in float32, and the bound has room for them. Factors round
each number to float32 again. These errors are independent, and smaller than those of the sum. A product in float64
is compared with one in float64 under twice the bound.

The same code runs on NumPy and CuPy arrays: `xp` is the module that the arrays come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.errors import ElementNotWritten, WrongResult
from farm.fusion import Activation
from farm.gemm import ElementType, Problem, Shape
from farm.operands import OperandRules
from farm.scale import Blocks, Scale
from workers.measure.activations import apply, errors_of
from workers.measure.elements import UNIT_ROUNDOFF, decode, unpacked, unwritten
from workers.measure.magnitudes import DEFAULT, REACH, magnitudes, result_scale
from workers.measure.operands import OperandSet

SAFETY = 8.0
ROUNDINGS_OF_SCALARS = 16
GROUP = 32
"""Columns in one signed sum."""

SAMPLED = 8
"""Rows, and columns, of the exact comparison of a large problem."""

ROUNDED = 4.0
"""Units of the type of D that an element may be off where its own size counts: it may be rounded before an activation and
after it. That is up to 2.13 units where the slope is 1.13."""

ROUNDED_GATED = 6.0
"""The same with a gate: both elements may be rounded, the gate's activation, and the product. That is up to 4.1 units."""

SUSPECTS = 32
"""Groups that are computed exactly where their sums are off."""


@dataclass(frozen=True, slots=True)
class _TensorCores:
    """How tensor cores add up: their unit round-off, and after how many terms a sum goes to the float32 accumulator."""

    unit: float
    terms: int = 2**62


# They drop the low bits of what they add, which is a bias: errors grow a little faster than sqrt(k). Up to k = 262144
# an H200's were 38 units of 2^-24 for tf32 and 25 for f16 and bf16; 8-bit floats keep about 13 bits and are added to the
# accumulator every 128 terms, so that their errors do not grow.
_TENSOR_CORES = {
    ElementType.TF32: _TensorCores(2.0**-20),
    ElementType.F16: _TensorCores(2.0**-21),
    ElementType.BF16: _TensorCores(2.0**-21),
    ElementType.F8E4M3: _TensorCores(2.0**-14, 128),
    ElementType.F8E5M2: _TensorCores(2.0**-14, 128),
}

# Half the distance between the smallest numbers of types in which results of small scales lie among these.
_SMALLEST = {ElementType.F16: 2.0**-25, ElementType.F8E4M3: 2.0**-10, ElementType.F8E5M2: 2.0**-17}

# Multiplications up to which every element is compared: some milliseconds. Long double has no BLAS.
_EVERY_ELEMENT, _EVERY_ELEMENT_F64 = 2**24, 2**20
# Elements of a temporary in float64: 128 MiB.
_BLOCK = 2**24
# Types whose products are exact in float32.
_NARROW = {
    ElementType.F16,
    ElementType.BF16,
    ElementType.F8E4M3,
    ElementType.F8E5M2,
    ElementType.I8,
    ElementType.I4,
    ElementType.F4,
}

Indices = slice | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked, and the largest error seen, as a share of the result's scale."""

    error: float
    bound: float
    method: str  # elements | groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The largest error that an element may have, as shares of `result_scale`."""

    flat: float
    slope: float = 0.0
    """Times the element before an activation; with a gate, times both elements that are multiplied."""

    each: float = 0.0
    """With a gate, that of each of the two elements, times the largest slope of the activation."""

    def gated(self, gate: Any, up: Any) -> Any:
        """With a gate, the largest error of elements whose two elements have these sizes, as multiples of their root mean square."""
        return self.each * (gate + up + self.each) + self.slope * gate * up + self.flat


def error_bound(problem: Problem, rules: OperandRules = DEFAULT, roundings: int = 1) -> float:
    """The largest error that any element may have, as a share of `result_scale`, rounded so often to the type of D."""
    allowed, found = allowance(problem, rules, roundings), magnitudes(problem, rules)
    largest = found.reach * found.uneven
    return float(allowed.gated(largest, largest)) if problem.fused.gated else allowed.flat + allowed.slope * largest


def allowance(problem: Problem, rules: OperandRules = DEFAULT, roundings: int = 1) -> Allowance:
    """The largest error of an element that is rounded so often to the type of D.

    Roundings are independent, so their errors add up as their squares do.
    """
    types, found = problem.types, magnitudes(problem, rules)
    if is_exact(problem):
        return Allowance(flat=0.5 / found.scale)
    # Integers that are added up exactly are scaled in float32.
    unit = UNIT_ROUNDOFF[types.acc] or UNIT_ROUNDOFF[ElementType.F32]
    summed = SAFETY * math.sqrt(problem.shape.k + ROUNDINGS_OF_SCALARS) * unit
    cores = _TENSOR_CORES.get(types.ab.of_a)
    if cores is not None:
        terms = min(problem.shape.k, cores.terms) + ROUNDINGS_OF_SCALARS
        summed = max(summed, SAFETY * math.sqrt(terms) * cores.unit)
    if problem.scale.of_weights:
        summed += ROUNDED * UNIT_ROUNDOFF[types.ab.of_a]
    rounding = UNIT_ROUNDOFF[types.cd] if UNIT_ROUNDOFF[types.cd] > unit else 0.0
    rounded = found.reach / REACH * SAFETY * math.sqrt(roundings) * rounding
    growing = problem.shape.k / 2 * unit * found.growing
    vanishing = SAFETY * math.sqrt(problem.shape.k) * _SMALLEST.get(types.acc, 0)
    vanishing_result = SAFETY * _SMALLEST.get(types.cd, 0)
    if not _counts_own_size(problem):
        flat = (summed + rounded) * found.uneven + (growing + vanishing + vanishing_result) / found.scale
        return Allowance(flat=flat)
    if not checks_every_element(problem):
        if _wide_type(problem) is np.float32:
            summed += SAFETY * math.sqrt(problem.shape.k + ROUNDINGS_OF_SCALARS) * UNIT_ROUNDOFF[ElementType.F32]
        elif not reference_is_wider(problem):
            summed *= 2
    before = summed * found.uneven + (growing + vanishing) / found.scale
    between = rounded * found.uneven if roundings > 1 else 0.0  # of parts of the sum, which are not small where it is
    lipschitz, evaluated = errors_of(problem.fused.activation, types.acc)
    if problem.fused.gated:
        return Allowance(
            flat=vanishing_result / found.scale**2,
            slope=evaluated + ROUNDED_GATED * rounding,
            each=lipschitz * (before + between),
        )
    return Allowance(
        flat=lipschitz * (before + between) + vanishing_result / found.scale, slope=evaluated + ROUNDED * rounding
    )


def group_bound(problem: Problem, rules: OperandRules = DEFAULT, roundings: int = 1) -> float:
    """The largest error that a signed sum of `GROUP` neighbouring elements may have, as a share of `result_scale`."""
    bound = error_bound(problem, rules, roundings)
    if is_exact(problem):
        return bound
    # A reference in float64 has as many errors as a result in float64.
    return bound * math.sqrt(min(GROUP, problem.shape.n)) * (1 if reference_is_wider(problem) else 2)


def reference_is_wider(problem: Problem) -> bool:
    """Whether the error of float64 is negligible compared with that of the result. For float64 it is as large."""
    return problem.types.acc is not ElementType.F64


def checks_every_element(problem: Problem) -> bool:
    """Whether a problem is small enough to compare every element."""
    return problem.flops // 2 <= (_EVERY_ELEMENT if reference_is_wider(problem) else _EVERY_ELEMENT_F64)


def is_exact(problem: Problem) -> bool:
    """Whether a right result has no error at all: sums of integers in integers."""
    whole = problem.scale is Scale.NONE and problem.fused.activation in (None, Activation.RELU)
    return whole and UNIT_ROUNDOFF[problem.types.acc] == 0


def _counts_own_size(problem: Problem) -> bool:
    """Whether every element is compared, and its rounding is measured by its own size."""
    narrow = problem.scale is not Scale.NONE and _is_narrow(problem)
    return (narrow or problem.fused.activation is not None) and not is_exact(problem)


def _is_narrow(problem: Problem) -> bool:
    return {problem.types.ab.of_a, problem.types.ab.of_b} <= _NARROW


def _wide_type(problem: Problem) -> Any:
    """The type of the product that a large problem is compared with, where every element is."""
    return np.float32 if _is_narrow(problem) and not is_exact(problem) else np.float64


def verify(
    problem: Problem, operands: OperandSet, rules: OperandRules = DEFAULT, xp: Any = np, *, roundings: int = 1
) -> Verification:
    """Checks `operands.d` of each matrix, rounded so often; `d` was all poison before the kernel ran.

    Raises `ElementNotWritten` or `WrongResult`, with the first or the worst element.
    """
    # Operands of all groups are as large, so that moments of a file are those of the whole matrix.
    parts = [
        _verified(_Check(part, views, rules, xp, roundings, whole=problem, group=group))
        for group, part, views in products_of(problem, operands)
    ]
    methods = {part.method for part in parts}
    return Verification(
        error=max(part.error for part in parts),
        bound=parts[0].bound,
        method="groups" if "groups" in methods else "elements",
    )


def products_of(problem: Problem, operands: OperandSet) -> Iterator[tuple[int | None, Problem, OperandSet]]:
    """The products that are checked: each group with rows, and its number. Without groups, the problem."""
    if problem.groups is None:
        yield None, problem, operands
        return
    s = problem.shape
    for number, rows in problem.groups.with_rows():
        part = replace(problem, shape=Shape(rows.stop - rows.start, s.n, s.k), groups=None)
        yield number, part, operands.group(number, rows)


def _verified(check: _Check) -> Verification:
    problem, s = check.problem, check.problem.shape
    with np.errstate(invalid="ignore", over="ignore"):  # infinities in a wrong result are found, not warned of
        check.every_element_written()
        if checks_every_element(problem):
            return Verification(error=check.every_element(), bound=check.bound, method="elements")
        if _counts_own_size(problem) or problem.fused.activation is not None:
            return Verification(error=check.in_parts(), bound=check.bound, method="elements")
        error = check.groups()
        rows, columns, matrices = check.choice(s.m), check.choice(s.n), check.choice(problem.batch)
        error = max(error, *(check.exactly(matrix, rows, columns) for matrix in matrices))
        return Verification(error=error, bound=check.bound, method="groups")


def _blocks(start: int, stop: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _length(part: Indices) -> int:
    return part.stop - part.start if isinstance(part, slice) else len(part)


def _moved(part: Indices, by: int) -> Indices:
    """The same part that many places further."""
    return slice(part.start + by, part.stop + by) if isinstance(part, slice) else [index + by for index in part]


def _at(part: Indices, index: int) -> int:
    """The place of an element that is at `index` of a part."""
    return part.start + index if isinstance(part, slice) else part[index]


class _Check:
    def __init__(
        self, problem: Problem, operands: OperandSet, rules: OperandRules, xp: Any, roundings: int, *, whole: Problem,
        group: int | None,
    ) -> None:  # fmt: skip
        """`whole` is the problem with all groups, and `problem` the group of that number."""
        self.problem = problem
        self.whole = whole
        self.group = group
        self.operands = operands.stacked()
        self.rules = rules
        self.xp = xp
        self.random = np.random.default_rng(rules.seed)
        self.columns = problem.columns_of_d
        self.scale = result_scale(whole, rules)
        self.roundings = roundings
        self.bound = error_bound(whole, rules, roundings)
        self.allowance = allowance(whole, rules, roundings)

    def of_a(self, matrices: slice, rows: Indices, inner: slice, kind: Any = np.float64) -> Any:
        """A part of A times its factors, in a wider type: [matrices, rows, inner]."""
        o, wide = self.operands, self._wide(self.problem.types.ab.of_a, self.operands.a[matrices, :, inner], kind, rows)
        if o.a_factors is not None:
            wide *= self._factors(o.a_factors[matrices], self.problem.scale.of_a, rows, inner, kind)
        return wide

    def of_b(self, matrices: slice, inner: slice, columns: Indices, kind: Any = np.float64) -> Any:
        """As `of_a`: [matrices, inner, columns]."""
        o, kind_of_b = self.operands, self.problem.types.ab.of_b
        if kind_of_b.per_item == 1:
            wide = self._wide(kind_of_b, o.b[matrices, inner].swapaxes(1, 2), kind, columns)
        else:
            wide = self._wide(kind_of_b, self._unpacked(o.b[matrices], inner, columns), kind)
        if o.b_factors is not None:
            factors = o.b_factors[matrices].swapaxes(1, 2)
            wide *= self._factors(factors, self.problem.scale.of_b, columns, inner, kind)
        return wide.swapaxes(1, 2)

    def _unpacked(self, b: Any, inner: slice, columns: Indices) -> Any:
        """Elements of 4 bits, two in a byte along k or along n: [matrices, columns, inner]."""
        kind = self.problem.types.ab.of_b
        if self.problem.layout.b_transposed:
            bytes_along_k = b[:, inner.start // 2 : -(-inner.stop // 2)].swapaxes(1, 2)[:, columns]
            return unpacked(kind, bytes_along_k, self.xp)[:, :, inner.start % 2 :][:, :, : _length(inner)]
        place = self.xp.arange(columns.start, columns.stop) if isinstance(columns, slice) else self.xp.asarray(columns)
        found = b[:, inner][:, :, place // 2] >> (place % 2 * 4).astype(np.uint8) & np.uint8(15)
        return found.swapaxes(1, 2)

    def _wide(self, element_type: ElementType, part: Any, kind: Any, lines: Indices = slice(None)) -> Any:
        """Some lines of a part, in a wider type. Long double exists on the host only."""
        part = part[:, lines]
        if kind is np.longdouble:
            return _on_host(part).astype(kind)
        return decode(element_type, part, self.xp).astype(kind, copy=False)

    def _factors(self, factors: Any, blocks: Blocks | None, lines: Indices, inner: slice, kind: Any) -> Any:
        """The factor of each element of a part, from [matrices, lines, inner]; where all have one, an axis of 1."""
        assert blocks is not None
        part = factors[:, self._blocks_of(lines, blocks.lines)][:, :, self._blocks_of(inner, blocks.inner)]
        if self.problem.factor_type is not ElementType.F32:
            return decode(self.problem.factor_type, part, self.xp).astype(kind, copy=False)
        return _on_host(part) if kind is np.longdouble else part

    def _blocks_of(self, indices: Indices, size: int | None) -> Any:
        """The block that each index is in."""
        if size is None:
            return slice(None)
        if size == 1:
            return indices
        if isinstance(indices, slice):
            return self.xp.arange(indices.start, indices.stop) // size
        return [index // size for index in indices]

    def results(self, part: Any, kind: Any = np.float64) -> Any:
        """A part of C, D or a bias in a wider type."""
        return self._wide(self.problem.types.cd, part, kind)

    def every_element_written(self) -> None:
        s, n = self.problem.shape, self.columns
        d = self.operands.d.reshape(-1, n)
        for part in _blocks(0, len(d), _BLOCK // n):
            missing = unwritten(self.problem.types.cd, d[part], self.xp)
            if bool(missing.any()):
                row, column = divmod(int(missing.argmax()), n)
                matrix, row = divmod(part.start + row, s.m)
                raise ElementNotWritten(**self._place(matrix, row, column), error=math.nan, bound=self.bound)

    def _place(self, matrix: int, row: int, column: int) -> dict[str, int | None]:
        """Where an element is, as an error names it."""
        batched = self.problem.batch != 1
        return {"matrix": matrix if batched else None, "group": self.group, "row": row, "column": column}

    def choice(self, extent: int) -> list[int]:
        """First and last, and some between: the edges are where a guard goes wrong."""
        inner = self.random.integers(0, extent, SAMPLED - 2).tolist()
        return sorted({0, extent - 1, *inner})

    def every_element(self) -> float:
        """Compares all of d with a wider product and returns the largest error. Raises `WrongResult`."""
        s = self.problem.shape
        return self._compare(slice(0, self.problem.batch), slice(0, s.m), slice(0, self.columns))

    def exactly(self, matrix: int, rows: list[int], columns: list[int]) -> float:
        """As `every_element`, of d[matrix, rows, columns]."""
        return self._compare(slice(matrix, matrix + 1), rows, columns)

    def in_parts(self) -> float:
        """As `every_element`, of a large problem."""
        s, room = self.problem.shape, _BLOCK // 4  # comparing takes some temporaries
        width = max(math.isqrt(room), room // s.m)
        largest = 0.0
        for matrices in _blocks(0, self.problem.batch, room // max(s.m * s.k, s.k * s.n, s.m * s.n)):
            for rows in _blocks(0, s.m, room // min(width, self.columns)):
                for columns in _blocks(0, self.columns, width):
                    largest = max(largest, self._compare(matrices, rows, columns, _wide_type(self.problem)))
        return largest

    def _compare(self, matrices: slice, rows: Indices, columns: Indices, kind: Any = None) -> float:
        """Compares a part of d with a product in the type `kind`; by default, one that is wider than the accumulator."""
        if kind is None:
            kind = np.float64 if reference_is_wider(self.problem) else np.longdouble
        xp: Any = np if kind is np.longdouble else self.xp
        before = self._before(matrices, rows, columns, kind)
        expected, size = apply(self.problem.fused.activation, before, xp), xp.abs(before)
        if self.problem.fused.gated:
            up = self._before(matrices, rows, _moved(columns, self.columns), kind)
            each = math.sqrt(self.scale)
            expected, allowed = expected * up, self.allowance.gated(size / each, xp.abs(up) / each)
        else:
            allowed = self.allowance.flat + self.allowance.slope / self.scale * size
        d = self.results(self.operands.d[matrices][:, rows][:, :, columns], before.dtype.type)
        error = xp.abs(d - expected)
        error = xp.where(xp.isfinite(error), error, math.inf) / self.scale
        share = error / allowed
        share = xp.where(xp.isfinite(share), share, math.inf)
        matrix, row, column = (int(index) for index in np.unravel_index(int(share.argmax()), share.shape))
        if float(share[matrix, row, column]) > 1:
            place = self._place(matrices.start + matrix, _at(rows, row), _at(columns, column))
            worst, bound = float(error[matrix, row, column]), float(allowed[matrix, row, column])
            raise WrongResult(**place, error=worst, bound=bound)
        return float(error.max())

    def _before(self, matrices: slice, rows: Indices, columns: Indices, kind: Any) -> Any:
        """A part of alpha·a·b + beta·c + bias, before an activation. What it adds up is float64, or wider. With a gate, columns are
        those of B."""
        o, p = self.operands.matrices(matrices), self.problem
        total: Any = np.longdouble if kind is np.longdouble else np.float64
        sums: Any = 0
        for inner in _blocks(0, p.shape.k, _BLOCK // (_length(matrices) * max(_length(rows), _length(columns)))):
            product = self.of_a(matrices, rows, inner, kind) @ self.of_b(matrices, inner, columns, kind)
            sums = product.astype(total, copy=False) if inner.start == 0 else sums + product
        sums *= p.alpha
        if o.c is not None:
            sums += p.beta * self.results(o.c[:, rows][:, :, columns], total)
        if o.bias is not None:
            sums += self.results(o.bias[:, columns][:, None], total)
        return sums

    def groups(self) -> float:
        """Compares signed sums of 32 columns and returns the largest error per element. Raises `WrongResult`."""
        s = self.problem.shape
        signs = self.random.choice(np.array([-1.0, 1.0]), s.n)
        allowed = group_bound(self.whole, self.rules, self.roundings)
        largest = 0.0
        # Small matrices together; a matrix that is larger than a block alone, in parts.
        for matrices in _blocks(0, self.problem.batch, _BLOCK // max(s.m * s.k, s.k * s.n, s.m * s.n)):
            for rows in _blocks(0, s.m, _BLOCK):
                width = max(GROUP, _BLOCK * GROUP // _length(rows) // GROUP * GROUP)
                for columns in _blocks(0, s.n, min(width, _BLOCK // GROUP * GROUP)):
                    off = self._difference(matrices, rows, columns, self.xp.asarray(signs[columns]))
                    largest = max(largest, float(off.max()))
                    if largest > allowed:
                        self._look_into(off, matrices, rows, columns, allowed)
        return largest / math.sqrt(min(GROUP, s.n))

    def _difference(self, matrices: slice, rows: slice, columns: slice, signs: Any) -> Any:
        """|signed sums of d - signed sums of the expected| / scale for a block: [matrices, rows, groups of columns]."""
        o, p, xp = self.operands.matrices(matrices), self.problem, self.xp
        sums = xp.zeros((_length(matrices), _length(rows), -(-_length(columns) // GROUP)))
        for inner in _blocks(0, p.shape.k, _BLOCK // _length(columns)):
            right = _group_sums(self.of_b(matrices, inner, columns), signs, xp)
            for part in _blocks(rows.start, rows.stop, _BLOCK // _length(inner)):
                here = slice(part.start - rows.start, part.stop - rows.start)
                sums[:, here] += self.of_a(matrices, part, inner) @ right
        sums *= p.alpha
        if o.bias is not None:
            sums += _group_sums(self.results(o.bias[:, None, columns]), signs, xp)
        for part in _blocks(rows.start, rows.stop, _BLOCK // _length(columns)):
            here = slice(part.start - rows.start, part.stop - rows.start)
            if o.c is not None:
                sums[:, here] += p.beta * _group_sums(self.results(o.c[:, part, columns]), signs, xp)
            sums[:, here] -= _group_sums(self.results(o.d[:, part, columns]), signs, xp)
        off = xp.abs(sums)
        return xp.where(xp.isfinite(off), off, math.inf) / self.scale

    def _look_into(self, off: Any, matrices: slice, rows: slice, columns: slice, allowed: float) -> None:
        """Computes the groups that are furthest off exactly, which names the element or clears the group."""
        values = _on_host(off)
        worst_first = np.argsort(values, axis=None)[::-1][:SUSPECTS]
        for matrix, row, group in zip(*np.unravel_index(worst_first, values.shape), strict=True):
            if values[matrix, row, group] <= allowed:
                return
            first = columns.start + int(group) * GROUP
            here = [*range(first, min(first + GROUP, columns.stop))]
            self.exactly(matrices.start + int(matrix), [rows.start + int(row)], here)


def _group_sums(matrices: Any, signs: Any, xp: Any) -> Any:
    """[matrices, rows, columns] -> [matrices, rows, groups]: sums of 32 columns, each with its sign; the last may be short."""
    # Row-major for every layout of the operand; otherwise reshaping would copy again.
    signed = xp.ascontiguousarray(matrices) * signs
    count, rows, columns = signed.shape
    whole = columns // GROUP * GROUP
    sums = [signed[..., :whole].reshape(count, rows, -1, GROUP).sum(axis=3)] if whole else []
    if whole < columns:
        sums.append(signed[..., whole:].sum(axis=2, keepdims=True))
    return sums[0] if len(sums) == 1 else xp.concatenate(sums, axis=2)


def _on_host(array: Any) -> Any:
    """The array as NumPy's: CuPy's arrays have `get`."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
