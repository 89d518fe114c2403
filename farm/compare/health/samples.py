"""What the tests of a fleet have in common: comparisons, their figures, and how strict each test must be (pure)."""

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
    """Comparisons of a group share a part of the false alarms that may be."""

    PEERS = "peers"
    PAST = "past"
    CONDITION = "condition"


_PARTS = {AlphaShare.PEERS: 0.5, AlphaShare.PAST: 0.25, AlphaShare.CONDITION: 0.25}
"""Half for the comparison that needs no past and is made for all."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What of a device is compared with what."""

    name: str
    group: AlphaShare
    # Whether its figures are logarithms of factors, and not differences, shares or counts.
    factor: bool = True


TIME = Comparison("time", AlphaShare.PEERS)
PAST = Comparison("past", AlphaShare.PAST)
CHANGED = Comparison("changed", AlphaShare.PAST)
SENTINEL = Comparison("sentinel", AlphaShare.PAST)
ENERGY = Comparison("energy", AlphaShare.CONDITION)
TEMPERATURE = Comparison("temperature", AlphaShare.CONDITION, factor=False)
"""Those that the health of a device shows: its time beside its peers, its own past, itself under the environment before
and earlier sentinels; its energy and temperature beside its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Figures of one comparison of one device: logarithms of ratios, °C, or shares."""

    comparison: Comparison
    device: int
    by_shape: Floats
    rows: int
    against: str
    # The one peer that it is beside, where it is one.
    other: int | None = None
    # Of CHANGED: the environments before and after. Of SENTINEL: figures before the window.
    environments: tuple[int, int] | None = None
    earlier: Floats | None = None
    # Of how many tries `by_shape` holds what happened, where it is counted.
    tries: int = 0


def levels(samples: Iterable[Sample], alpha: float) -> dict[Comparison, float]:
    """How often each test may be wrong on its side, so that all of them together are at most `alpha` (Bonferroni)."""
    compared = [sample.comparison for sample in samples]
    counts = Counter(one.group for one in compared)
    return {one: alpha * _PARTS[one.group] / counts[one.group] for one in compared}


TOLERATED_SHARE = 0.01
"""A share of shapes, or of jobs, in which what should not happen may: more must be shown for an alarm."""


def min_shapes(level: float) -> int:
    """Fewer have no interval: the lowest of n lies above the median with 2^-n."""
    return math.ceil(-math.log2(level))


def estimate(sample: Sample, level: float, *, logarithm: bool) -> Estimate:
    """The median with bounds of which each is wrong with at most `level`."""
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
    """Bounds of the difference of two medians, from those of each."""
    one, other = median_interval(now, 1 - level), median_interval(earlier, 1 - level)
    return None if one is None or other is None else (one[0] - other[1], one[1] - other[0])


def by_device(device: Ints, which: Ints) -> Iterator[Ints]:
    """`which` in parts, one for each device; `device` says whose each is."""
    order = stable_order(device)
    cuts = np.flatnonzero(np.diff(device[order])) + 1
    yield from (part for part in np.split(which[order], cuts) if len(part))


def binomial_tail(happened: int, tries: int, share: float) -> float:
    """The probability that of so many tries at least that many happen, each with probability `share`."""
    if happened <= 0:
        return 1.0
    first = math.lgamma(tries + 1) - math.lgamma(happened + 1) - math.lgamma(tries - happened + 1)
    first += happened * math.log(share) + (tries - happened) * math.log1p(-share)
    more = np.arange(happened, tries)
    steps = np.log((tries - more) / (more + 1)) + math.log(share / (1 - share))
    return min(1.0, float(np.exp(first + np.append(0.0, np.cumsum(steps))).sum()))
