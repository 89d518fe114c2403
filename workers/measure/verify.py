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
of another is a wrong one.

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

The same code runs on NumPy and CuPy arrays: `xp` is the module that the arrays come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.errors import ElementNotWritten, WrongResult
from farm.gemm import ElementType, Problem
from farm.operands import OperandRules
from workers.measure.elements import UNIT_ROUNDOFF, decode, unwritten
from workers.measure.magnitudes import DEFAULT, REACH, magnitudes, result_scale
from workers.measure.operands import OperandSet

SAFETY = 8.0
ROUNDINGS_OF_SCALARS = 16
GROUP = 32
"""Columns in one signed sum."""

SAMPLED = 8
"""Rows, and columns, of the exact comparison of a large problem."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked, and the largest error seen, as a share of the result's scale."""

    error: float
    bound: float
    method: str  # elements | groups


def error_bound(problem: Problem, rules: OperandRules = DEFAULT, roundings: int = 1) -> float:
    """The largest error that an element may have, as a share of `result_scale`, rounded so often to the type of D.

    Roundings are independent, so their errors add up as their squares do.
    """
    types, found = problem.types, magnitudes(problem, rules)
    if is_exact(problem):
        return 0.5 / found.scale
    bound = SAFETY * math.sqrt(problem.shape.k + ROUNDINGS_OF_SCALARS) * UNIT_ROUNDOFF[types.acc]
    cores = _TENSOR_CORES.get(types.ab.of_a)
    if cores is not None:
        terms = min(problem.shape.k, cores.terms) + ROUNDINGS_OF_SCALARS
        bound = max(bound, SAFETY * math.sqrt(terms) * cores.unit)
    if UNIT_ROUNDOFF[types.cd] > UNIT_ROUNDOFF[types.acc]:
        bound += found.reach / REACH * SAFETY * math.sqrt(roundings) * UNIT_ROUNDOFF[types.cd]
    growing = problem.shape.k / 2 * UNIT_ROUNDOFF[types.acc] * found.growing
    vanishing = SAFETY * (math.sqrt(problem.shape.k) * _SMALLEST.get(types.acc, 0) + _SMALLEST.get(types.cd, 0))
    return bound * found.uneven + (growing + vanishing) / found.scale


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
    return UNIT_ROUNDOFF[problem.types.acc] == 0


def verify(
    problem: Problem, operands: OperandSet, rules: OperandRules = DEFAULT, xp: Any = np, *, roundings: int = 1
) -> Verification:
    """Checks `operands.d` = alpha·a·b + beta·c of each matrix, rounded so often; `d` was all poison before the kernel ran.

    Raises `ElementNotWritten` or `WrongResult`, with the first or the worst element.
    """
    check, s = _Check(problem, operands, rules, xp, roundings), problem.shape
    with np.errstate(invalid="ignore", over="ignore"):  # infinities in a wrong result are found, not warned of
        check.every_element_written()
        if checks_every_element(problem):
            return Verification(error=check.every_element(), bound=check.bound, method="elements")
        error = check.groups()
        rows, columns, matrices = check.choice(s.m), check.choice(s.n), check.choice(problem.batch)
        error = max(error, *(check.exactly(matrix, rows, columns) for matrix in matrices))
        return Verification(error=error, bound=check.bound, method="groups")


def _blocks(start: int, stop: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _length(part: slice) -> int:
    return int(part.stop - part.start)


class _Check:
    def __init__(self, problem: Problem, operands: OperandSet, rules: OperandRules, xp: Any, roundings: int) -> None:
        self.problem = problem
        self.operands = operands.stacked()
        self.rules = rules
        self.xp = xp
        self.random = np.random.default_rng(rules.seed)
        self.scale = result_scale(problem, rules)
        self.roundings = roundings
        self.bound = error_bound(problem, rules, roundings)

    def of_a(self, part: Any) -> Any:
        """A part of A in float64."""
        return decode(self.problem.types.ab.of_a, part, self.xp)

    def of_b(self, part: Any) -> Any:
        """A part of B in float64."""
        return decode(self.problem.types.ab.of_b, part, self.xp)

    def results(self, part: Any) -> Any:
        """A part of C or D in float64."""
        return decode(self.problem.types.cd, part, self.xp)

    def every_element_written(self) -> None:
        s = self.problem.shape
        d = self.operands.d.reshape(-1, s.n)
        for part in _blocks(0, len(d), _BLOCK // s.n):
            missing = unwritten(self.problem.types.cd, d[part], self.xp)
            if bool(missing.any()):
                row, column = divmod(int(missing.argmax()), s.n)
                matrix, row = divmod(part.start + row, s.m)
                raise ElementNotWritten(**self._place(matrix, row, column), error=math.nan, bound=self.bound)

    def _place(self, matrix: int, row: int, column: int) -> dict[str, int | None]:
        """Where an element is, as an error names it."""
        return {"matrix": matrix if self.problem.batch != 1 else None, "row": row, "column": column}

    def choice(self, extent: int) -> list[int]:
        """First and last, and some between: the edges are where a guard goes wrong."""
        inner = self.random.integers(0, extent, SAMPLED - 2).tolist()
        return sorted({0, extent - 1, *inner})

    def every_element(self) -> float:
        """Compares all of d with a wider product and returns the largest error. Raises `WrongResult`."""
        s = self.problem.shape
        return self._compare(self.operands, range(self.problem.batch), range(s.m), range(s.n))

    def exactly(self, matrix: int, rows: Iterable[int], columns: Iterable[int]) -> float:
        """As `every_element`, of d[matrix, rows, columns]."""
        o, rows, columns = self.operands.matrices(matrix), list(rows), list(columns)
        c = None if o.c is None else o.c[rows][:, columns]
        part = OperandSet(o.a[rows], o.b[:, columns], c, o.d[rows][:, columns])
        return self._compare(part.stacked(), [matrix], rows, columns)

    def _compare(self, part: OperandSet, matrices: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> float:
        p, a, b, c, d = self.problem, part.a, part.b, part.c, part.d
        xp: Any = self.xp
        if reference_is_wider(p):
            a, b, c, d = self.of_a(a), self.of_b(b), None if c is None else self.results(c), self.results(d)
        else:  # long double exists on the host only
            xp = np
            a, b, c, d = (None if x is None else _on_host(x).astype(np.longdouble) for x in (a, b, c, d))
        expected = p.alpha * (a @ b)
        if c is not None:
            expected += p.beta * c
        error = xp.abs(d - expected)
        error = xp.where(xp.isfinite(error), error, math.inf) / self.scale
        matrix, row, column = (int(index) for index in np.unravel_index(int(error.argmax()), error.shape))
        worst = float(error[matrix, row, column])
        if worst > self.bound:
            place = self._place(matrices[matrix], rows[row], columns[column])
            raise WrongResult(**place, error=worst, bound=self.bound)
        return worst

    def groups(self) -> float:
        """Compares signed sums of 32 columns and returns the largest error per element. Raises `WrongResult`."""
        s = self.problem.shape
        signs = self.random.choice(np.array([-1.0, 1.0]), s.n)
        allowed = group_bound(self.problem, self.rules, self.roundings)
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
        """|signed sums of d - signed sums of alpha·a·b + beta·c| / scale for a block: [matrices, rows, groups of columns]."""
        o, p, xp = self.operands.matrices(matrices), self.problem, self.xp
        sums = xp.zeros((_length(matrices), _length(rows), -(-_length(columns) // GROUP)))
        for inner in _blocks(0, p.shape.k, _BLOCK // _length(columns)):
            right = _group_sums(self.of_b(o.b[:, inner, columns]), signs, xp)
            for part in _blocks(rows.start, rows.stop, _BLOCK // _length(inner)):
                here = slice(part.start - rows.start, part.stop - rows.start)
                sums[:, here] += self.of_a(o.a[:, part, inner]) @ right
        sums *= p.alpha
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
            here = range(first, min(first + GROUP, columns.stop))
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
