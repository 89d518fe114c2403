"""How far measurements of two sides are apart: medians over shapes with intervals, and verdicts on single pairs (pure).

Everything is in logarithms of ratios: a ratio of 0.5 and one of 2 are as far from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from statistics import NormalDist
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

CONFIDENCE = 0.95

BOUNDS_CONFIDENCE = 0.9
"""What a model's bounds hold, as they were calibrated: nine measurements of ten."""

TIE = 0.01
"""A difference that nobody needs to know of, as a share: clocks and temperatures move a time by as much from run to run."""

RUN_ERROR = 0.003
"""Standard error of a ratio beside what the samples of its two times scatter: the same again, on the same card, is not quite the same."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One figure of a side for each configuration: [configurations], medians over its rows, NaN where it has none."""

    runtime_ms: Floats
    runtime_rse: Floats  # the largest of its rows
    power_w: Floats
    energy_mj: Floats

    def at(self, which: Ints) -> Reduced:
        return Reduced(*(getattr(self, name)[which] for name in self.__slots__))


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Two of the values between which the median of what they are drawn from lies with at least that probability.

    values [n], independent, of any continuous distribution. None where no two of so few values reach it (n < 6 for 95%). It is
    the interval of order statistics (David and Nagaraja, Order Statistics, 3rd edition, 7.1), to which that of the bootstrap of
    a median tends (Efron, Annals of Statistics 7, 1979); it needs no draws and holds for few values too.
    """
    rank = _rank(len(values), confidence)
    if rank is None:
        return None
    ordered = np.partition(values, (rank, len(values) - 1 - rank))
    return float(ordered[rank]), float(ordered[len(values) - 1 - rank])


def _rank(n: int, confidence: float) -> int | None:
    """The largest r for which at most (1 - confidence) / 2 of Binomial(n, 1/2) lies at or below r; None where none does."""
    log_each = np.concatenate([[0.0], np.cumsum(np.log(np.arange(n, n // 2, -1) / np.arange(1, n - n // 2 + 1)))])
    below = np.cumsum(np.exp(log_each - n * math.log(2)))
    found = int(np.searchsorted(below, (1 - confidence) / 2, side="right")) - 1
    return found if found >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """By what factor one side's figures are those of another: the median over shapes of the median over a shape's pairs."""

    ratio: float
    # The interval of the median over shapes; None where there are too few of them.
    low: float | None
    high: float | None
    shapes: int
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def ratio_of(
    log_ratios: Floats,
    shapes: Ints,
    confidence: float = CONFIDENCE,
    *,
    bounds: tuple[Floats, Floats] | None = None,
) -> Ratio | None:
    """log_ratios [pairs]; shapes [pairs] says which shape a pair is of. None without a pair.

    `bounds`: what each of them is at the least and at the most, [pairs] each. The interval then goes from the beginning of that
    of the least to the end of that of the most, as what they are off by may be the same everywhere: more shapes do not make it
    narrower. Without it where a bound is NaN.
    """
    by_shape = medians_by(log_ratios, shapes)
    if not len(by_shape):
        return None
    low, high = median_interval(by_shape, confidence) or (None, None)
    if bounds is not None:
        least, most = (median_interval(medians_by(bound, shapes), confidence) for bound in bounds)
        known = bool(np.isfinite(bounds).all())
        low, high = (least[0], most[1]) if known and least is not None and most is not None else (None, None)
    return Ratio(
        ratio=math.exp(float(np.median(by_shape))),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        shapes=len(by_shape),
        pairs=len(log_ratios),
    )


def medians_by(values: Floats, groups: Ints) -> Floats:
    """The median of the values of each group, in the order of the groups' numbers (from 0)."""
    if int(groups.max(initial=-1)) >= 4 * len(groups):  # few of many groups
        _, groups = np.unique(groups, return_inverse=True)
    held = np.bincount(groups)
    found = _medians(values, groups, held)
    return found if (held > 0).all() else found[held > 0]


def medians_at(values: Floats, groups: Ints, count: int) -> Floats:
    """The median of the values of each group from 0 to `count`: [count], NaN where a group has none."""
    return _medians(values, groups, np.bincount(groups, minlength=count))


def _medians(values: Floats, groups: Ints, held: Ints) -> Floats:
    """held [groups] says how many values each has. Groups of one size are a matrix, which sorts fast."""
    found = np.full(len(held), np.nan)
    if held.max(initial=0) <= 1:  # nothing need be sorted
        found[groups] = values
        return found
    if (groups[1:] < groups[:-1]).any():
        values = values[np.argsort(groups, kind="stable")]
    starts = np.cumsum(held) - held
    for size in np.unique(held[held > 0]):
        of_size = np.flatnonzero(held == size)
        alike = values[starts[of_size][:, None] + np.arange(size)]
        alike.sort(axis=1)
        found[of_size] = (alike[:, (size - 1) // 2] + alike[:, size // 2]) / 2
    return found


class Verdict(IntEnum):
    """What a pair of measurements says of a side beside the baseline."""

    LESS = 0  # beyond the noise and beyond a tie
    TIE = 1
    MORE = 2
    UNSURE = 3  # the noise is larger than what it would have to tell


def verdicts(log_ratios: Floats, errors: Floats, *, tie: float = TIE, confidence: float = CONFIDENCE) -> Ints:
    """A `Verdict` for each pair: log_ratios [pairs], errors [pairs] their standard errors; `tie` is a share.

    A difference counts where it is larger than a tie and than the interval of its error; a tie is a smaller difference that is
    known well enough to be none. The rest is unsure, as nvbench's AMBIGUOUS is.
    """
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    limit, apart, half = math.log1p(tie), np.abs(log_ratios), quantile * errors
    found = np.full(len(log_ratios), Verdict.UNSURE, dtype=np.int64)
    found[(apart <= limit) & (half <= limit)] = Verdict.TIE
    differs = (apart > limit) & (apart > half)
    found[differs & (log_ratios < 0)] = Verdict.LESS
    found[differs & (log_ratios > 0)] = Verdict.MORE
    return found


def verdicts_within(middle: Floats, low: Floats, high: Floats, errors: Floats, *, tie: float = TIE) -> Ints:
    """A `Verdict` for each pair of which one figure is predicted: logarithms of its ratio with its bounds, [pairs] each.

    As `verdicts`, with the distances to the bounds as the interval, which the standard errors of what was measured widen at the
    same confidence. Without bounds (NaN) all is unsure.
    """
    limit, noise = math.log1p(tie), NormalDist().inv_cdf((1 + BOUNDS_CONFIDENCE) / 2) * errors
    below, above = np.hypot(middle - low, noise), np.hypot(high - middle, noise)
    found = np.full(len(middle), Verdict.UNSURE, dtype=np.int64)
    found[(np.abs(middle) <= limit) & (below <= limit) & (above <= limit)] = Verdict.TIE
    found[(middle < -limit) & (middle + above < 0)] = Verdict.LESS
    found[(middle > limit) & (middle - below > 0)] = Verdict.MORE
    return found


def ratio_of_sums(
    above: Floats, below: Floats, *, draws: int = 1000, seed: int = 0, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """sum(above) / sum(below) with the interval of the bootstrap over rows (Efron, 1979): above, below [shapes].

    For totals, which a few large shapes decide: a median would not see them.
    """
    ratio = float(above.sum() / below.sum())
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> Floats:
        chosen = rng.integers(0, len(above), (count, len(above)))
        result: Floats = above[chosen].sum(axis=1) / below[chosen].sum(axis=1)
        return result

    at_once = max(1, _DRAWN_AT_ONCE // max(1, len(above)))
    found = np.concatenate([drawn(min(at_once, draws - done)) for done in range(0, draws, at_once)])
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return ratio, float(low), float(high)


_DRAWN_AT_ONCE = 1 << 20
