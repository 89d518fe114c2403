"""The mean of a series of power readings, and how well it is known (pure).

The readings are samples of a driver's ring, each the average since the sample before, or steps of an energy counter. What
still settles at the beginning is cut off by the rule of MSER (White, Simulation 69, 1997): of all places to cut, the one
that leaves the smallest standard error of the mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

DROPPED_SECONDS = 0.1
"""Readings from the beginning of a window that are not used. After this time no reading contains power from before: work that
was still queued, or the longest averaging of a sensor."""

MIN_VALUES = 4
"""A standard error needs at least this many values."""

MIN_GAIN = 3
"""The beginning is cut off only if the error of the rest is this many times smaller. Noise rarely reaches that."""

DISAGREEMENT = 0.05
"""Two sources disagree if they are further apart than this share, and than their noise explains."""

UNSEEN_NOISE = 0.05
"""Relative error of a mean over a single step of a counter, which does not show how much the power varies."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of a source's readings after it settled, and its standard error, in watts."""

    watts: float
    error_w: float
    # How many values it is the mean of, and the largest of all since the window's dropped beginning.
    values: int
    peak_w: float

    @property
    def rse(self) -> float:
        return self.error_w / self.watts


def settled_from(values: Sequence[float]) -> int:
    """Where to cut the beginning off: the index after which the standard error of the mean is smallest (MSER).

    At least `MIN_VALUES` values and a third of them are kept; of equal cuts the one that keeps the most is taken. Nothing is
    cut where that would not make the error `MIN_GAIN` times smaller.
    """
    fewest = max(MIN_VALUES, math.ceil(len(values) / 3))
    best, smallest, mean, squares = 0, math.inf, 0.0, 0.0
    for kept, value in enumerate(reversed(values), start=1):  # Welford's sums, from the end
        off = value - mean
        mean += off / kept
        squares += off * (value - mean)
        if kept >= fewest and squares / kept**2 <= smallest:
            best, smallest = len(values) - kept, squares / kept**2
    whole = squares / max(len(values), 1) ** 2
    return best if smallest * MIN_GAIN**2 <= whole else 0


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of at least two values in the order of time, with correlated neighbours.

    The variance of the mean of a first-order autoregressive series, s²/n (1 + r)/(1 - r), with the bias of r at small n
    corrected (Marriott and Pope 1954), and widened like Student's t for few values. Half of the trend from the first to the last
    value is added, because the trend may continue.
    """
    n, mean = len(values), statistics.fmean(values)
    off = [value - mean for value in values]
    squares = sum(x * x for x in off)
    if squares == 0:
        return 0.0
    alike = sum(a * b for a, b in pairwise(off)) / squares
    alike = min(max(alike + (1 + 3 * alike) / n, 0.0), 0.9)
    noise = math.sqrt(squares / (n - 1) / n * (1 + alike) / (1 - alike)) * (1 + 0.8 / (n - 1))
    middle = (n - 1) / 2
    slope = sum((index - middle) * x for index, x in enumerate(off)) / (n * (n * n - 1) / 12)
    return math.hypot(noise, slope * middle)


def mean_of(values: Sequence[float]) -> Mean | None:
    """The settled mean of values at equal intervals. None with fewer than two values, or without any power."""
    kept = values[settled_from(values) :]
    if len(kept) < 2 or statistics.fmean(kept) <= 0:
        return None
    return Mean(statistics.fmean(kept), standard_error(kept), len(kept), max(values))


class EnergySteps:
    """The steps of an energy counter: value, time, and the precision of the time."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        # Middle and width of the time in which the step was made, and the energy after it.
        self.steps: list[tuple[float, float, int]] = []

    def add(self, began_s: float, ended_s: float, energy_mj: int) -> None:
        """A call that took from `began_s` to `ended_s`; its value is from somewhere inside it."""
        if self._last is not None and energy_mj != self._last[1]:
            earliest = self._last[0]
            self.steps.append(((earliest + ended_s) / 2, ended_s - earliest, energy_mj))
        self._last = (began_s, energy_mj)

    def after(self, seconds: float) -> list[tuple[float, float, int]]:
        """The steps that were surely made after that time."""
        return [step for step in self.steps if step[0] - step[1] / 2 >= seconds]

    def mean(self, after_s: float) -> Mean | None:
        """The mean power between the steps after that time. None with fewer than two steps, or without any power."""
        steps = self.after(after_s)
        if len(steps) < 2:
            return None
        powers = [power_between(a, b)[0] for a, b in pairwise(steps)]
        cut = settled_from(powers)
        watts, timing_w = power_between(steps[cut], steps[-1])
        kept = powers[cut:]
        if watts <= 0:
            return None
        # A single step does not show how much the power varies.
        noise_w = standard_error(kept) if len(kept) > 1 else UNSEEN_NOISE * watts
        return Mean(watts, math.hypot(timing_w, noise_w), len(kept), max(powers))


def power_between(first: tuple[float, float, int], last: tuple[float, float, int]) -> tuple[float, float]:
    """Watts between two steps of a counter, and their error: each step may be anywhere within its width."""
    seconds = last[0] - first[0]
    watts = (last[2] - first[2]) / 1e3 / seconds
    return watts, watts / seconds * math.sqrt((first[1] ** 2 + last[1] ** 2) / 12)


def averages(samples: Sequence[tuple[float, float]], after_s: float, until_s: float) -> list[float]:
    """The samples (s, W) that are averages over times between the two: each is over the time since the one before."""
    return [watts for (since_s, _), (at_s, watts) in pairwise(samples) if after_s <= since_s and at_s <= until_s]


def disagree(counter: EnergySteps, ring: Sequence[tuple[float, float]], after_s: float) -> bool | None:
    """Whether counter and ring differ over the same time, from `after_s` on, by more than `DISAGREEMENT` and twice their noise.

    None if either has too few readings.
    """
    steps = counter.after(after_s)
    values = averages(ring, steps[0][0], steps[-1][0]) if len(steps) > 1 else []
    if len(values) < MIN_VALUES:
        return None
    watts, timing_w = power_between(steps[0], steps[-1])
    ends_w = statistics.stdev(values) * math.sqrt(2) / len(values)  # of the samples across the first and the last step
    apart_w = abs(watts - statistics.fmean(values))
    return apart_w > DISAGREEMENT * watts and apart_w > 2 * math.hypot(timing_w, ends_w)


def better(counter: Mean | None, samples: Mean | None, *, apart: bool) -> Mean | None:
    """The source with the smaller error. Both read the same sensor, so they are not averaged.

    If they disagree (`apart`), the error is the distance between them.
    """
    both = sorted((mean for mean in (counter, samples) if mean is not None), key=lambda mean: mean.error_w)
    if not both:
        return None
    if apart and len(both) > 1:
        return replace(both[0], error_w=max(both[0].error_w, abs(both[0].watts - both[1].watts)))
    return both[0]
