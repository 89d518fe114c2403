"""Statistics of comparisons: medians over shapes with intervals, and verdicts on single pairs (pure).

Differences are logarithms of ratios, so ratios of 0.5 and 2 are equally far from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from statistics import NormalDist
from typing import Any

import numpy as np

from farm.compare.summaries import Ratio

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

CONFIDENCE = 0.95

BOUNDS_CONFIDENCE = 0.9
"""Share of measurements between the bounds of a model, by their calibration."""

TIE = 0.01
"""A smaller difference is a tie, as a fraction: clocks and temperatures vary a time by as much from run to run."""

RUN_ERROR = 0.003
"""Standard error of a ratio from run to run on the same card, in addition to the scatter of the samples."""


@dataclass(frozen=True, slots=True)
class Medians:
    """Medians of a group's rows for each configuration: [configurations] each, NaN where it has none."""

    runtime_ms: Floats
    runtime_rse: Floats  # the largest of its rows
    power_w: Floats
    energy_mj: Floats
    burst_ms: Floats

    def at(self, which: Ints) -> Medians:
        return Medians(*(getattr(self, name)[which] for name in self.__slots__))


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Confidence interval of a median, between two of the values; None for too few values (n < 6 for 95%).

    values [n] are independent, of any continuous distribution. This is the interval of order statistics (David and Nagaraja,
    Order Statistics, 3rd edition, 7.1). The bootstrap interval of a median tends to it (Efron, Annals of Statistics 7, 1979),
    but it needs no draws and holds for few values too.
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


def ratio_of(
    log_ratios: Floats,
    shapes: Ints,
    confidence: float = CONFIDENCE,
    *,
    bounds: tuple[Floats, Floats] | None = None,
) -> Ratio | None:
    """The median over shapes of each shape's median ratio. None without a pair.

    Args:
        log_ratios: [pairs].
        shapes: The number of each pair's shape, [pairs].
        bounds: The smallest and the largest log ratios, [pairs] each. The interval then reaches from the start of the smallest
            ones' interval to the end of the largest ones': a model's error may be the same for all shapes, so more shapes do
            not narrow it. There is no interval where a bound is NaN.
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
    if int(groups.max(initial=-1)) >= 4 * len(groups):  # most numbers are unused
        _, groups = np.unique(groups, return_inverse=True)
    counts = np.bincount(groups)
    found = _medians(values, groups, counts)
    return found if (counts > 0).all() else found[counts > 0]


def medians_at(values: Floats, groups: Ints, count: int) -> Floats:
    """The median of the values of each group from 0 to `count`: [count], NaN where a group has none."""
    return _medians(values, groups, np.bincount(groups, minlength=count))


def _medians(values: Floats, groups: Ints, counts: Ints) -> Floats:
    """counts [groups] has the number of values of each group. Groups of one size form a matrix, which sorts fast."""
    found = np.full(len(counts), np.nan)
    if counts.max(initial=0) <= 1:  # nothing to sort
        found[groups] = values
        return found
    if (groups[1:] < groups[:-1]).any():
        values = values[np.argsort(groups, kind="stable")]
    starts = np.cumsum(counts) - counts
    for size in np.unique(counts[counts > 0]):
        of_size = np.flatnonzero(counts == size)
        alike = values[starts[of_size][:, None] + np.arange(size)]
        alike.sort(axis=1)
        found[of_size] = (alike[:, (size - 1) // 2] + alike[:, size // 2]) / 2
    return found


class PairVerdict(IntEnum):
    """A group compared with the baseline on one configuration."""

    FASTER = 0  # by more than the noise and more than a tie
    TIE = 1
    SLOWER = 2
    UNSURE = 3  # the noise is too large to tell


def verdicts(log_ratios: Floats, errors: Floats, *, tie: float = TIE, confidence: float = CONFIDENCE) -> Ints:
    """A `PairVerdict` for each pair: log_ratios [pairs], errors [pairs] their standard errors; `tie` is a fraction.

    A difference counts where it exceeds both a tie and its confidence interval. A pair is a tie where difference and interval
    are both smaller than a tie. All others are unsure, like nvbench's AMBIGUOUS.
    """
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    limit, apart, half = math.log1p(tie), np.abs(log_ratios), quantile * errors
    found = np.full(len(log_ratios), PairVerdict.UNSURE, dtype=np.int64)
    found[(apart <= limit) & (half <= limit)] = PairVerdict.TIE
    differs = (apart > limit) & (apart > half)
    found[differs & (log_ratios < 0)] = PairVerdict.FASTER
    found[differs & (log_ratios > 0)] = PairVerdict.SLOWER
    return found


def verdicts_within(middle: Floats, low: Floats, high: Floats, errors: Floats, *, tie: float = TIE) -> Ints:
    """A `PairVerdict` for each pair with one predicted figure, from logarithms of its ratio and its bounds, [pairs] each.

    As `verdicts`, but the interval is the distance to the bounds, widened by the standard error of the measurement at the same
    confidence. A pair without bounds (NaN) is unsure.
    """
    limit, noise = math.log1p(tie), NormalDist().inv_cdf((1 + BOUNDS_CONFIDENCE) / 2) * errors
    below, above = np.hypot(middle - low, noise), np.hypot(high - middle, noise)
    found = np.full(len(middle), PairVerdict.UNSURE, dtype=np.int64)
    found[(np.abs(middle) <= limit) & (below <= limit) & (above <= limit)] = PairVerdict.TIE
    found[(middle < -limit) & (middle + above < 0)] = PairVerdict.FASTER
    found[(middle > limit) & (middle - below > 0)] = PairVerdict.SLOWER
    return found


def ratio_of_sums(
    above: Floats, below: Floats, *, draws: int = 1000, seed: int = 0, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """sum(above) / sum(below) with the interval of the bootstrap over rows (Efron, 1979): above, below [shapes].

    For totals: a few large shapes decide them, and a median would hide those.
    """
    ratio = float(above.sum() / below.sum())
    rng = np.random.default_rng(seed)

    def draw(count: int) -> Floats:
        chosen = rng.integers(0, len(above), (count, len(above)))
        result: Floats = above[chosen].sum(axis=1) / below[chosen].sum(axis=1)
        return result

    per_step = max(1, _MAX_DRAWN_VALUES // max(1, len(above)))
    found = np.concatenate([draw(min(per_step, draws - done)) for done in range(0, draws, per_step)])
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return ratio, float(low), float(high)


_MAX_DRAWN_VALUES = 1 << 20
