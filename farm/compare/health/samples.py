"""Samples for the statistical tests of a fleet, and the significance level of each test (pure)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from farm.compare.health.assessment import Estimate
from farm.compare.health.fleet_rows import stable_order
from farm.compare.statistics import Floats, Ints, median_interval


class AlphaShare(StrEnum):
    """A part of the allowed false alarms, shared by comparisons of one kind."""

    PEERS = "peers"
    PAST = "past"
    CONDITION = "condition"


_PARTS = {AlphaShare.PEERS: 0.5, AlphaShare.PAST: 0.25, AlphaShare.CONDITION: 0.25}
"""Half for the comparison with peers, which needs no past and covers all devices."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A kind of comparison of devices."""

    name: str
    group: AlphaShare
    # Whether its figures are logarithms of ratios instead of differences, shares or counts.
    factor: bool = True


TIME = Comparison("time", AlphaShare.PEERS)
PAST = Comparison("past", AlphaShare.PAST)
CHANGED = Comparison("changed", AlphaShare.PAST)
SENTINEL = Comparison("sentinel", AlphaShare.PAST)
ENERGY = Comparison("energy", AlphaShare.CONDITION)
TEMPERATURE = Comparison("temperature", AlphaShare.CONDITION, factor=False)
"""Comparisons in the health of a device: its time with that of peers, its own past, its previous environment and earlier
sentinels; its energy and temperature with those of peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Figures of one device for one comparison: logarithms of ratios, °C, or shares."""

    comparison: Comparison
    device: int
    by_shape: Floats
    rows: int
    against: str
    # The peer of a separate comparison.
    other: int | None = None
    # For CHANGED: the environments before and after. For SENTINEL: figures before the window.
    environments: tuple[int, int] | None = None
    earlier: Floats | None = None
    # Number of trials, where `by_shape` counts events.
    tries: int = 0


def levels(samples: Iterable[Sample], alpha: float) -> dict[Comparison, float]:
    """The one-sided error probability of each test, with a total of at most `alpha` (Bonferroni)."""
    compared = [sample.comparison for sample in samples]
    counts = Counter(one.group for one in compared)
    return {one: alpha * _PARTS[one.group] / counts[one.group] for one in compared}


TOLERATED_SHARE = 0.01
"""Tolerated share of shapes or jobs with an unwanted event."""


def min_shapes(level: float) -> int:
    """Smallest number of shapes with an interval: the lowest of n values exceeds the median with probability 2^-n."""
    return math.ceil(-math.log2(level))


def estimate(sample: Sample, level: float, *, logarithm: bool) -> Estimate:
    """The median, with bounds that are each wrong with a probability of at most `level`."""
    if sample.earlier is None:
        value = float(np.median(sample.by_shape))
        bounds = median_interval(sample.by_shape, 1 - 2 * level)
    else:
        value = float(np.median(sample.by_shape) - np.median(sample.earlier))
        bounds = _apart(sample.by_shape, sample.earlier, level)
    low, high = bounds or (None, None)

    def plain(number: float | None) -> float | None:
        return None if number is None else math.exp(number) if logarithm else number

    return Estimate(
        value=math.exp(value) if logarithm else value,
        low=plain(low),
        high=plain(high),
        confidence=1 - 2 * level,
        shapes=len(sample.by_shape),
        rows=sample.rows,
        against=sample.against,
    )


def _apart(now: Floats, earlier: Floats, level: float) -> tuple[float, float] | None:
    """Bounds of the difference of two medians, from the bounds of each."""
    one, other = median_interval(now, 1 - level), median_interval(earlier, 1 - level)
    return None if one is None or other is None else (one[0] - other[1], one[1] - other[0])


def by_device(device: Ints, which: Ints) -> Iterator[Ints]:
    """`which` in parts, one for each device; `device` has the device of each element."""
    order = stable_order(device)
    cuts = np.flatnonzero(np.diff(device[order])) + 1
    yield from (part for part in np.split(which[order], cuts) if len(part))


def binomial_tail(events: int, tries: int, share: float) -> float:
    """The probability of at least `events` events in `tries` trials, each with probability `share`."""
    if events <= 0:
        return 1.0
    first = math.lgamma(tries + 1) - math.lgamma(events + 1) - math.lgamma(tries - events + 1)
    first += events * math.log(share) + (tries - events) * math.log1p(-share)
    more = np.arange(events, tries)
    steps = np.log((tries - more) / (more + 1)) + math.log(share / (1 - share))
    return min(1.0, float(np.exp(first + np.append(0.0, np.cumsum(steps))).sum()))
