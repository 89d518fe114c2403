"""Sampling until a stopping rule is reached.

The rules are small objects after those of nvbench: a target precision, noise that has settled, a time budget, and a
cap on samples. The clock and the sampler are passed in, so that this module needs no device.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from farm.errors import MeasurementFailed
from farm.measurement import TimingRules
from workers.measure.explain import Explanation

Clock = Callable[[], float]
"""Seconds that never go backwards."""

Sampler = Callable[[], Sequence[float]]
"""Runs the GEMM some times and returns one or more samples: milliseconds per GEMM."""


class Spread:
    """Mean and variance of samples as they come, by Welford's recurrence: one addition is a handful of operations."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, sample: float) -> None:
        self.count += 1
        step = sample - self.mean
        self.mean += step / self.count
        self._squares += step * (sample - self.mean)

    @property
    def noise(self) -> float:
        """Standard deviation of the samples over their mean; infinite before there are two."""
        if self.count < 2:
            return math.inf
        return math.sqrt(self._squares / (self.count - 1)) / self.mean

    @property
    def relative_standard_error(self) -> float:
        """Standard error of the mean over the mean; infinite before there are two samples."""
        return self.noise / math.sqrt(self.count) if self.count else math.inf


class StoppingRule(Protocol):
    """Decides when to stop sampling. Called once after every sample."""

    reason: str

    def reached(self, spread: Spread) -> bool: ...


class TargetPrecision:
    """The relative standard error of the mean is at the target."""

    reason = "converged"

    def __init__(self, target: float) -> None:
        self._target = target

    def reached(self, spread: Spread) -> bool:
        return spread.relative_standard_error <= self._target


class NoiseSettled:
    """The noise has stayed within 5% of itself for a window of samples, so more samples would not change it.

    Without this rule a device that is always noisy uses its whole budget for every configuration. nvbench's rule, with
    a shorter window (it keeps 512), since a sample here is already a group of GEMMs.
    """

    reason = "settled"
    WINDOW = 128
    TOLERANCE = 0.05

    def __init__(self) -> None:
        self._noise: deque[float] = deque(maxlen=self.WINDOW)

    def reached(self, spread: Spread) -> bool:
        self._noise.append(spread.noise)
        if len(self._noise) < self.WINDOW or spread.count % 16:  # the window is costly to look through each time
            return False
        return max(self._noise) - min(self._noise) <= self.TOLERANCE * spread.noise


class TimeBudget:
    """The time for this configuration is used up."""

    reason = "budget"

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def reached(self, _: Spread) -> bool:
        return self._clock() >= self._end


class SampleCap:
    """There are as many samples as a row may rest on."""

    reason = "max_samples"

    def __init__(self, most: int) -> None:
        self._most = most

    def reached(self, spread: Spread) -> bool:
        return spread.count >= self._most


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The distribution of the time of one GEMM, in milliseconds."""

    median_ms: float
    q1_ms: float
    q3_ms: float
    min_ms: float
    # Standard error of the mean over the mean.
    rse: float
    samples: int
    stop_reason: str  # converged | settled | budget | max_samples

    @classmethod
    def of(cls, samples: Sequence[float], stop_reason: str, *, rse: float | None = None) -> Timing:
        """Of at least one sample, with the relative standard error of their mean where none is given."""
        spread = Spread()
        for sample in samples:
            spread.add(sample)
        q1_ms, median_ms, q3_ms = (
            statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else 3 * [samples[0]]
        )
        if rse is None:
            rse = spread.relative_standard_error if len(samples) > 1 else 0.0
        return cls(
            median_ms=median_ms,
            q1_ms=q1_ms,
            q3_ms=q3_ms,
            min_ms=min(samples),
            rse=rse,
            samples=len(samples),
            stop_reason=stop_reason,
        )

    def columns(self) -> dict[str, Any]:
        """The columns of a `Measurement` that it fills."""
        return {
            "runtime_ms": self.median_ms,
            "runtime_q1_ms": self.q1_ms,
            "runtime_q3_ms": self.q3_ms,
            "runtime_min_ms": self.min_ms,
            "runtime_rse": self.rse,
            "samples": self.samples,
            "stop_reason": self.stop_reason,
        }


def stopping_rules(rules: TimingRules, clock: Clock) -> list[StoppingRule]:
    """The rules of a campaign's `timing` section; the budget starts now."""
    return [
        TargetPrecision(rules.target_rse),
        NoiseSettled(),
        SampleCap(rules.max_samples),
        TimeBudget(rules.max_seconds, clock),
    ]


def warm_up(
    sample: Sampler, seconds: float, clock: Clock = time.perf_counter, explanation: Explanation | None = None
) -> float:
    """Runs for at least `seconds`, and on until two samples agree within 10%, up to five times as long.

    Returns the median of what it saw, in milliseconds per GEMM: an estimate to size groups by.
    """
    start = clock()
    seen: list[float] = []
    while True:
        seen.extend(sample())
        elapsed = clock() - start
        stable = len(seen) > 1 and abs(seen[-1] - seen[-2]) <= 0.1 * seen[-2]
        if elapsed >= seconds and (stable or elapsed >= 5 * seconds):
            if explanation is not None:
                explanation.warm_up_ms = seen
                explanation.note(f"warm-up: {len(seen)} samples, {'stable' if stable else 'not stable yet'}")
            return statistics.median(seen)


def time_samples(
    sample: Sampler,
    rules: TimingRules,
    clock: Clock = time.perf_counter,
    explanation: Explanation | None = None,
) -> Timing:
    """Samples until a rule is reached, but never fewer than `rules.min_samples`.

    Raises `MeasurementFailed` where the clock did not move during a sample.
    """
    stops = stopping_rules(rules, clock)
    spread, samples = Spread(), list[float]()
    while True:
        for time_ms in sample():
            if not (math.isfinite(time_ms) and time_ms > 0):
                raise MeasurementFailed(why=f"a sample took {time_ms} ms: the clock cannot resolve it")
            spread.add(time_ms)
            samples.append(time_ms)
            # All rules are called, in order, because each keeps its own history.
            reached = [stop.reason for stop in stops if stop.reached(spread)]
            if reached and spread.count >= rules.min_samples:
                if explanation is not None:
                    explanation.samples_ms = samples
                    explanation.note(_WHY_STOPPED[reached[0]].format(rse=spread.relative_standard_error, rules=rules))
                return Timing.of(samples, reached[0])


_WHY_STOPPED = {
    "converged": "timing stopped: the standard error of the mean, {rse:.3%}, is at the target of {rules.target_rse:.3%}",
    "settled": "timing stopped: the noise has settled (standard error {rse:.3%})",
    "max_samples": "timing stopped: {rules.max_samples} samples are the maximum of a row (standard error {rse:.3%})",
    "budget": "timing stopped: its {rules.max_seconds:g} s are used up (standard error {rse:.3%})",
}
