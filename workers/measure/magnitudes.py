"""How large the elements of a result are: what errors are compared with, and what fits into a type.

The moments of a matrix are those of its stored elements, so that rounding, clipping and vanishing count. They
come from quantiles of its distribution, or from the tensor itself where a file fills it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidOnDevice
from farm.fusion import Fusion
from farm.gemm import ElementType, Problem
from farm.operands import Distribution, MatrixRules, OperandRules
from farm.scale import Scale
from farm.sparsity import Sparsity
from workers.measure.elements import INTEGER_SPAN, INTEGERS, MAX_HALF, MAX_INTEGER, UNIT_ROUNDOFF, decode, encoded
from workers.measure.stored import stored_shapes
from workers.measure.weights import elements_of

Floats = NDArray[np.float64]

DEFAULT = OperandRules()

REACH = 8.0
"""Root mean squares that the largest of 10^8 elements of a result stays below, where many products add up."""

_HEAVY = 24.0
"""Where both matrices are normal and k is 1, the largest product is some 30 root mean squares; more terms even it out."""

FACTORS = 1.25, 2.0
"""Scale factors are uniform on it. It does not have 1, nor do products of two factors: that one is left out always shows."""

_FACTORS_OF_WEIGHTS = {ElementType.I8: 2.0**-6, ElementType.I4: 2.0**-2, ElementType.F4: 2.0**-2}
"""What `FACTORS` are multiplied with for weights of fewer bits than A, whose numbers are larger than 1."""

_MEAN_FACTOR = (FACTORS[0] + FACTORS[1]) / 2
_SQUARE_OF_FACTORS = (FACTORS[0] ** 2 + FACTORS[0] * FACTORS[1] + FACTORS[1] ** 2) / 3
"""Of a uniform number the mean of its square."""

_UNEVEN_FACTORS = FACTORS[1] / math.sqrt(_SQUARE_OF_FACTORS)
"""The largest factor as a multiple of their root mean square."""

_REACH_OF_GATED = 24.0
"""The largest of 10^10 products of two normal numbers, as a multiple of the product of their root mean squares, is about 21."""

_QUANTILES = 4096
_LINES = 32
"""Rows of A and columns of B that are multiplied to learn how far two files reach together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """Of the elements of alpha·A·B + beta·C + bias, with scale factors, before an activation."""

    # Root mean square; 1 where every element is 0.
    scale: float
    # The part of it that is the mean of alpha·A·B, at its largest: sums that only grow, whose rounding errors do not cancel.
    growing: float
    # The largest elements that occur, as a multiple of the scale: `REACH`, or more.
    reach: float
    # The root mean square of the largest row or column, as a multiple of that of all; 1 but for files and scale factors.
    uneven: float


@dataclass(frozen=True, slots=True)
class _Moments:
    mean: float
    mean_square: float
    peak: float = 1.0  # the largest number as a multiple of the root mean square
    uneven: float = 1.0

    @property
    def root_mean_square(self) -> float:
        return math.sqrt(self.mean_square)

    def pruned(self, share: float) -> _Moments:
        """Of the same matrix with that share of its elements, the others being 0."""
        return _Moments(self.mean * share, self.mean_square * share, self.peak / math.sqrt(share), self.uneven)

    def times_factors(self, unit: float) -> _Moments:
        """Of the same matrix with scale factors, which are `FACTORS` times the unit."""
        uneven = self.uneven * _UNEVEN_FACTORS
        mean, square = self.mean * _MEAN_FACTOR * unit, self.mean_square * _SQUARE_OF_FACTORS * unit**2
        return _Moments(mean, square, self.peak, uneven)


def factor_unit(problem: Problem) -> float:
    """What `FACTORS` are multiplied with."""
    return _FACTORS_OF_WEIGHTS[problem.types.ab.of_b] if problem.scale.of_weights else 1.0


def result_scale(problem: Problem, rules: OperandRules = DEFAULT) -> float:
    """Root mean square of an element of the result, before an activation, for operands of these rules; never 0. With a gate, two
    such elements are multiplied, and it is the square of that.

    An element of A·B is a sum of k products of independent numbers: its mean is k times the product of their means, and its
    variance k times that of a product. Means of A·B and of C are added up as if they had one sign. Scale factors are
    independent numbers too.
    """
    scale = magnitudes(problem, rules).scale
    return scale**2 if problem.fused.gated else scale


@lru_cache(maxsize=256)
def magnitudes(problem: Problem, rules: OperandRules = DEFAULT) -> Magnitudes:
    """Raises `InvalidOnDevice` where a file cannot be used, or the result would overflow."""
    p, k, scale_of, unit = problem, problem.shape.k, problem.scale, factor_unit(problem)
    of_a, of_b = _moments(problem, rules, "a"), _moments(problem, rules, "b")
    if p.sparsity is not Sparsity.NONE:
        of_b = of_b.pruned(p.sparsity.kept(k) / k)
    a = of_a if scale_of.of_a is None else of_a.times_factors(unit)
    b = of_b if scale_of.of_b is None else of_b.times_factors(unit)
    factors = (a is not of_a) + (b is not of_b)  # of each product
    c = _moments(problem, rules, "c") if p.beta else _Moments(0.0, 0.0)
    of_products = k * a.mean * b.mean
    variance = max(0.0, k * (a.mean_square * b.mean_square - (a.mean * b.mean) ** 2))
    mean = abs(p.alpha * of_products) + abs(p.beta * c.mean)
    squares = p.alpha**2 * variance + p.beta**2 * max(0.0, c.mean_square - c.mean**2) + mean**2
    squares += _square_of_bias(problem, rules)
    scale = math.sqrt(squares) or 1.0
    together = min(math.sqrt(k) * a.peak * b.peak, REACH + _HEAVY / math.sqrt(k))
    uneven = a.uneven * b.uneven
    matrices = rules.matrices
    if matrices["a"].file is not None and matrices["b"].file is not None:
        together_uneven = _uneven_together(problem, rules) / (of_a.root_mean_square * of_b.root_mean_square or 1.0)
        uneven = max(uneven, together_uneven * _UNEVEN_FACTORS**factors)
    largest_mean = (FACTORS[1] * unit) ** factors * k * of_a.mean * of_b.mean
    found = Magnitudes(
        scale=scale, growing=0.0 if _exact(p, rules, a, b) else abs(p.alpha * largest_mean),
        reach=max(REACH, together), uneven=max(uneven, c.uneven),
    )  # fmt: skip
    spread = uneven * math.sqrt(max(0.0, squares - mean**2))
    largest = mean + REACH * spread
    of_d = mean**2 + 2 * REACH * mean * spread + _REACH_OF_GATED * spread**2 if p.fused.gated else largest
    _check_fits(rules, {p.types.acc: largest, p.types.cd: of_d})
    return found


def bias_rules(problem: Problem, rules: OperandRules = DEFAULT) -> MatrixRules:
    """What a bias is filled with: uniform numbers whose root mean square is about that of the rest of the result.

    A bias of a fixed size would vanish in a sum of many terms. The factor is a power of two: hosts whose means differ in
    the last bit have the same numbers. Integers are those of `uniform`.
    """
    if problem.types.cd in INTEGERS:
        return MatrixRules(distribution="uniform")
    rest = magnitudes(replace(problem, fused=Fusion.NONE), rules).scale
    factor = 2.0 ** round(math.log2(math.sqrt(3) * rest))
    return MatrixRules.model_construct(distribution="uniform", scale=factor)


def _square_of_bias(problem: Problem, rules: OperandRules) -> float:
    """Its mean square."""
    if not problem.fused.bias:
        return 0.0
    factor = INTEGER_SPAN if problem.types.cd in INTEGERS else bias_rules(problem, rules).factor
    return factor**2 / 3


def _exact(problem: Problem, rules: OperandRules, a: _Moments, b: _Moments) -> bool:
    """Whether A and B are constants whose sums are exact in the accumulator."""
    if problem.scale is not Scale.NONE or {rules.matrices[name].distribution for name in "ab"} != {"ones"}:
        return False
    unit = UNIT_ROUNDOFF[problem.types.acc]
    mantissa = int(math.frexp(a.mean * b.mean)[0] * 2**53)
    digits = 53 - ((mantissa & -mantissa).bit_length() - 1) if mantissa else 0
    return digits + math.ceil(math.log2(problem.shape.k)) <= (53 if unit == 0 else -math.log2(unit))


def _check_fits(rules: OperandRules, largest_of: Mapping[ElementType, float]) -> None:
    """`largest_of`: the largest elements of the accumulator and of D, whose type counts where it is the same."""
    limits = {ElementType.F16: MAX_HALF}  # every other type of a result holds the largest that rules can ask for
    for kind, largest in largest_of.items():
        if largest > limits.get(kind, math.inf):
            raise InvalidOnDevice(
                why=f"operands of {rules.text} make results of about {largest:.3g}, and {kind} ends at {limits[kind]:g}; "
                "fill A with smaller numbers, as in a=uniform*0.01"
            )


def _moments(problem: Problem, rules: OperandRules, name: str) -> _Moments:
    types, layout = problem.types, problem.layout
    kind = {"a": types.ab.of_a, "b": types.ab.of_b, "c": types.cd}[name]
    matrix = rules.matrices[name]
    if matrix.file is None:
        return _of_distribution(kind, matrix)
    along = {"a": int(not layout.a_transposed), "b": int(layout.b_transposed), "c": None}[name]
    return _of_file(kind, matrix, stored_shapes(problem)[name], along)


@cache
def _of_distribution(kind: ElementType, rules: MatrixRules) -> _Moments:
    assert rules.distribution is not None
    dtype: Any = np.float64 if kind is ElementType.F64 else np.float32
    numbers = (_SAMPLES[rules.distribution]() * rules.factor).astype(dtype)
    stored = decode(kind, encoded(kind, numbers, rules))
    square = float((stored**2).mean())
    peak = _PEAKS.get(rules.distribution, 1.0)
    return _Moments(_symmetric(float(stored.mean()), square), square, peak)


def _symmetric(mean: float, square: float) -> float:
    """0 for the mean of a symmetric distribution, which quantiles leave near 0."""
    return mean if mean**2 > 1e-6 * square else 0.0


def _steps() -> Floats:
    return (np.arange(_QUANTILES) + 0.5) / _QUANTILES


def _uniform() -> Floats:
    return 2 * _steps() - 1


_SAMPLES: dict[Distribution, Callable[[], Floats]] = {
    "uniform": _uniform,
    "normal": lambda: np.array([NormalDist().inv_cdf(step) for step in _steps()]),
    "zeros": lambda: np.zeros(1),
    "ones": lambda: np.ones(1),
    "sparse": lambda: np.concatenate([_uniform(), np.zeros(_QUANTILES)]),
    "integers": lambda: np.arange(-MAX_INTEGER, MAX_INTEGER + 1.0),
}
_PEAKS: dict[Distribution, float] = {"normal": 6.0, "uniform": 3**0.5, "sparse": 6**0.5, "integers": 2**0.5}


@lru_cache(maxsize=64)
def _of_file(kind: ElementType, rules: MatrixRules, stored: tuple[int, int, int], along: int | None) -> _Moments:
    """`along`: the axis of k, whose sums decide how large a row of A or a column of B makes results. None for C."""
    _, rows, columns = stored
    total, square = 0.0, 0.0
    by_row, by_column = np.zeros(rows), np.zeros(columns)
    elements, step = elements_of(rules, kind, *stored), max(1, 2**22 // columns)
    for first in range(0, rows, step):
        numbers = decode(kind, elements[first : first + step])
        total += float(numbers.sum())
        np.square(numbers, out=numbers)
        square += float(numbers.sum())
        by_row[first : first + step] = numbers.mean(axis=1)
        by_column += numbers.sum(axis=0) / rows
    mean_square = square / (rows * columns)
    largest = {0: by_column, 1: by_row, None: np.zeros(1)}[along].max()
    uneven = math.sqrt(max(1.0, float(largest) / mean_square)) if mean_square else 1.0
    return _Moments(total / (rows * columns), mean_square, uneven=uneven)


def _uneven_together(problem: Problem, rules: OperandRules) -> float:
    """How far results of two files reach, times the root mean squares of both: from their largest rows and columns.

    Numbers of two files are not independent of each other. Large ones may meet, as activations and weights of one channel.
    """
    types, stored = problem.types, stored_shapes(problem)
    lines = list[Floats]()
    for name, kind, transposed in (
        ("a", types.ab.of_a, problem.layout.a_transposed),
        ("b", types.ab.of_b, not problem.layout.b_transposed),
    ):
        elements = elements_of(rules.matrices[name], kind, *stored[name])
        by_line = decode(kind, elements.T if transposed else elements)
        largest = {*np.argsort((by_line**2).sum(axis=1))[-_LINES:], *np.argsort(np.abs(by_line).max(axis=1))[-_LINES:]}
        lines.append(by_line[sorted(largest)])
    a, b = lines
    spread = np.sqrt((a**2) @ (b**2).T).max()
    largest_result = np.abs(a @ b.T).max() / REACH
    return float(max(spread, largest_result) / math.sqrt(problem.shape.k))
