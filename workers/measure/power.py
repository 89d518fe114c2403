"""How much does a card draw while it does nothing but this GEMM?

Over one window in which the card is never idle, and no longer than the wanted error needs. Two sources say it, and both
come from the same sensor: the driver's ring of power samples (on an H200 one about every 20 ms, the average since the one
before), and an energy counter (one step about every 100 ms, the integral of the ring). So the ring says more in a short
window, and the counter is held against it; where only one of them is there, it answers alone. The instant field is the
last resort. How often a source has something new is seen in what it says. "Part-time power measurements"
(arXiv 2312.02741) shows what goes wrong otherwise.

Nothing from the first `DROPPED_SECONDS` is used. What still settles after that (clocks go up for some 0.2 s after
a kernel that was held at the power limit) is cut off by the rule of MSER (White, Simulation 69, 1997): of all places to
cut, the one that leaves the smallest standard error of the mean.

A card that its power limiter holds swings by a tenth around the limit, with a period of about a second: no short window
averages that out. What it settles at is known, it is the limit; so the limit is the reading, and the row says so.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

from workers.measure.explain import Explanation
from workers.measure.nvml import Telemetry
from workers.measure.telemetry import TelemetryLog

DROPPED_SECONDS = 0.1
"""What the card drew before is in no sample from after this: work still queued, and the longest known averaging."""

LOOK_SECONDS = 0.05
"""From one look at clocks, ring and error to the next."""

SHORTEST_SECONDS = 0.3
"""No window is shorter: by then the counter has made two steps after the dropped beginning, to hold against the ring."""

CLOCK_SECONDS = 0.2
"""A share by which the SM clock moved in so long before the end of a window is one by which the draw may be off."""

Regime = Literal["free", "limited", "swinging"]
"""How the power limiter has to do with the draw: not at all; it holds the card, which has reached the limit; it works, and
the draw is below the limit or the limit is not known."""

REGIME_RSE: dict[Regime, float] = {"free": 0.0125, "limited": 0.01, "swinging": 0.05}
"""What a short window does not show, from benchmarks/power_truth.py. Free: over seconds a die warms or cools, and its
leakage with it. Limited: the limit is the reading, and a card settles 0.1 to 1.3% below. Swinging: how far a mean over less
than a second is off."""

FEWEST = 4
"""Values that a standard error is believed of."""

CUT_GAIN = 3
"""A beginning is cut off where the rest is this much better known: a quiet stretch of noise is hardly ever."""

DISAGREEMENT = 0.05
"""Sources further apart than this share, and than their noise explains, flag the row."""

POWER_CAP_EVENT = 0x4


class PowerMeter(Protocol):
    """What is read: see `nvml.Card`. None and nothing: the card does not say."""

    @property
    def power_limit_w(self) -> float | None: ...

    def total_energy_mj(self) -> int | None: ...

    def power_samples(self, since_us: int) -> list[tuple[int, float]]: ...

    def instant_power_w(self) -> float | None: ...

    def telemetry(self) -> Telemetry: ...


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of what a source said after it settled, and the standard error of it, in watts."""

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

    At least `FEWEST` values and a third of them are kept; of equal cuts the one that keeps the most is taken. Nothing is
    cut where that would not make the error `CUT_GAIN` times smaller.
    """
    fewest = max(FEWEST, math.ceil(len(values) / 3))
    best, smallest, mean, squares = 0, math.inf, 0.0, 0.0
    for kept, value in enumerate(reversed(values), start=1):  # Welford's sums, from the end
        off = value - mean
        mean += off / kept
        squares += off * (value - mean)
        if kept >= fewest and squares / kept**2 <= smallest:
            best, smallest = len(values) - kept, squares / kept**2
    whole = squares / max(len(values), 1) ** 2
    return best if smallest * CUT_GAIN**2 <= whole else 0


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values in the order of time, neighbours of which are alike.

    The variance of the mean of a first-order autoregressive series, s²/n (1 + r)/(1 - r), with the bias of r at small n
    put right (Marriott and Pope 1954); widened as Student's t is for few values; and half of what the values rise or
    fall by from the first to the last, as who knows where they go from there.
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
    """The settled mean of values equally far apart in time. None of less than two, or where nothing is drawn."""
    kept = values[settled_from(values) :]
    if len(kept) < 2 or statistics.fmean(kept) <= 0:
        return None
    return Mean(statistics.fmean(kept), standard_error(kept), len(kept), max(values))


class EnergySteps:
    """The steps of an energy counter: to what, when, and how well that is known."""

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
        """Of the power between the steps after that time. None of less than two steps, or where nothing is drawn."""
        steps = self.after(after_s)
        if len(steps) < 2:
            return None
        powers = [power_between(a, b)[0] for a, b in pairwise(steps)]
        cut = settled_from(powers)
        watts, timing_w = power_between(steps[cut], steps[-1])
        kept = powers[cut:]
        if watts <= 0:
            return None
        # Of one step it is not seen how much the draw swings.
        noise_w = standard_error(kept) if len(kept) > 1 else REGIME_RSE["swinging"] * watts
        return Mean(watts, math.hypot(timing_w, noise_w), len(kept), max(powers))


def power_between(first: tuple[float, float, int], last: tuple[float, float, int]) -> tuple[float, float]:
    """Watts between two steps of a counter, and their error: each step may be anywhere within its width."""
    seconds = last[0] - first[0]
    watts = (last[2] - first[2]) / 1e3 / seconds
    return watts, watts / seconds * math.sqrt((first[1] ** 2 + last[1] ** 2) / 12)


def averages(samples: Sequence[tuple[float, float]], after_s: float, until_s: float) -> list[float]:
    """The samples (s, W) that are averages over times between the two: each is over the time since the one before."""
    return [watts for (since_s, _), (at_s, watts) in pairwise(samples) if after_s <= since_s and at_s <= until_s]


def disagree(counter: EnergySteps, ring: Sequence[tuple[float, float]]) -> bool | None:
    """Whether counter and ring tell different powers of the same time, by `DISAGREEMENT` and twice their noise.

    None where there is not enough of both.
    """
    steps = counter.after(DROPPED_SECONDS)
    values = averages(ring, steps[0][0], steps[-1][0]) if len(steps) > 1 else []
    if len(values) < FEWEST:
        return None
    watts, timing_w = power_between(steps[0], steps[-1])
    ends_w = statistics.stdev(values) * math.sqrt(2) / len(values)  # of the samples across the first and the last step
    apart_w = abs(watts - statistics.fmean(values))
    return apart_w > DISAGREEMENT * watts and apart_w > 2 * math.hypot(timing_w, ends_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """Mean power of a window, and what each source said."""

    power_w: float
    # Relative standard error of `power_w`, with what the window could not see.
    rse: float
    # What `power_w` rests on: nvml-counter+samples | nvml-counter | nvml-samples | nvml-instant | nvml-limit
    source: str
    # See `disagree`.
    disagrees: bool | None
    seconds: float
    stop_reason: str  # converged | budget
    # Whether the power limiter held the card, so that `power_w` is its limit and not `window_w`.
    limited: bool
    # What the card drew in the window.
    window_w: float
    counter: Mean | None
    samples: Mean | None

    @property
    def counter_w(self) -> float | None:
        return None if self.counter is None else self.counter.watts

    @property
    def samples_w(self) -> float | None:
        return None if self.samples is None else self.samples.watts

    def details(self) -> dict[str, Any]:
        return {
            "power_window_w": self.window_w,
            "power_window_s": self.seconds,
            "power_stop_reason": self.stop_reason,
            "power_limited": self.limited,
            "power_counter_w": self.counter_w,
            "power_counter_rse": None if self.counter is None else self.counter.rse,
            "power_samples_w": self.samples_w,
            "power_samples_rse": None if self.samples is None else self.samples.rse,
        }


def better(counter: Mean | None, samples: Mean | None, *, apart: bool) -> Mean | None:
    """The source with the smaller error; not a mean of both, as both are the same draw through the same sensor.

    Where they are `apart`, its error is the distance between them.
    """
    both = sorted((mean for mean in (counter, samples) if mean is not None), key=lambda mean: mean.error_w)
    if not both:
        return None
    if apart and len(both) > 1:
        return replace(both[0], error_w=max(both[0].error_w, abs(both[0].watts - both[1].watts)))
    return both[0]


class _Window:
    """What was seen of one window, in seconds from its beginning."""

    def __init__(self, meter: PowerMeter, log: TelemetryLog, clock: Callable[[], float], wall: Callable[[], float]):
        self._meter, self._log, self._clock = meter, log, clock
        self._start, self._wall_start = clock(), wall()
        self._limit_w = meter.power_limit_w
        self._held = False
        self._clocks_mhz: list[tuple[float, int]] = []
        self.counts = True
        self.steps = EnergySteps()
        self.ring: list[tuple[float, float]] = []
        self._ring_until_us = int(1e6 * self._wall_start)
        # The instant field where it was seen to change: what it says is then of the time since it changed before.
        self.instants: list[tuple[float, float]] = []

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def poll_counter(self) -> None:
        began = self.seconds
        energy = self._meter.total_energy_mj()
        self.counts = energy is not None
        if energy is not None:
            self.steps.add(began, self.seconds, energy)

    def look(self) -> None:
        """At everything but the counter."""
        seen = self._meter.telemetry()
        self._log.add(seen)
        now = self.seconds
        self._held = bool((seen.clock_events or 0) & POWER_CAP_EVENT)
        if seen.sm_clock_mhz is not None and now >= DROPPED_SECONDS:
            self._clocks_mhz.append((now, seen.sm_clock_mhz))
        for at_us, watts in self._meter.power_samples(self._ring_until_us):
            if at_us > self._ring_until_us:
                self.ring.append((at_us / 1e6 - self._wall_start, watts))
                self._ring_until_us = at_us
        instant = self._meter.instant_power_w()
        if instant is not None and (not self.instants or instant != self.instants[-1][1]):
            self.instants.append((self.seconds, instant))

    def reading(self, target_rse: float) -> PowerReading | None:
        """What is known by now. None where nothing is."""
        now = self.seconds
        counter = self.steps.mean(DROPPED_SECONDS)
        samples = mean_of(averages(self.ring, DROPPED_SECONDS, now))
        apart = disagree(self.steps, self.ring)
        mean, source = better(counter, samples, apart=bool(apart)), "nvml-counter+samples"
        if counter is None or samples is None:
            source = "nvml-samples" if counter is None else "nvml-counter"
        if mean is None:
            mean, source = mean_of(averages(self.instants, DROPPED_SECONDS, now)), "nvml-instant"
        if mean is None:
            return None
        regime = self._regime(mean)
        power_w, rse = mean.watts, math.hypot(mean.rse, REGIME_RSE[regime], self._clock_moved(now))
        if regime == "limited" and self._limit_w is not None:
            power_w, rse, source = self._limit_w, REGIME_RSE[regime], "nvml-limit"
        enough = now >= SHORTEST_SECONDS and mean.values >= FEWEST
        return PowerReading(
            power_w=power_w,
            rse=rse,
            source=source,
            disagrees=apart,
            seconds=now,
            stop_reason="converged" if enough and rse <= target_rse else "budget",
            limited=regime == "limited",
            window_w=mean.watts,
            counter=counter,
            samples=samples,
        )

    def _regime(self, mean: Mean) -> Regime:
        """The driver's reason alone does not say it: that stays for half a second after a kernel which was limited."""
        if self._limit_w is None:
            return "swinging" if self._held else "free"
        if mean.watts >= self._limit_w:
            return "limited"
        if not self._held or mean.watts < (1 - 2 * REGIME_RSE["swinging"]) * self._limit_w:
            return "free"
        return "limited" if mean.peak_w >= self._limit_w else "swinging"

    def _clock_moved(self, now: float) -> float:
        """By what share the SM clock moved lately."""
        clocks = [mhz for at_s, mhz in self._clocks_mhz if at_s >= now - CLOCK_SECONDS]
        return max(clocks) / min(clocks) - 1 if clocks and min(clocks) > 0 else 0.0

    def explain(self, explanation: Explanation, reading: PowerReading | None) -> None:
        explanation.energy_steps = [(at_s, energy_mj) for at_s, _, energy_mj in self.steps.steps]
        explanation.power_samples = list(self.ring)
        if reading is None:
            explanation.note(f"power: nothing new was said in {self.seconds:.2f} s")
            return
        held = f", held at its limit (the window: {reading.window_w:.0f} W)" if reading.limited else ""
        explanation.note(
            f"power: {reading.power_w:.0f} W ± {reading.rse:.1%} from {reading.source}{held};"
            f" {reading.stop_reason} after {reading.seconds:.2f} s"
        )


def measure_power(
    meter: PowerMeter,
    keep_busy: Callable[[], None],
    *,
    target_rse: float,
    longest_s: float,
    log: TelemetryLog,
    explanation: Explanation | None = None,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> PowerReading | None:
    """Reads the meter until the relative standard error is at most `target_rse`, or for `longest_s` seconds.

    `keep_busy` returns at once and leaves 50 to 100 ms of work queued; it is called every few milliseconds. What it
    finds running may be the same kernel or `DROPPED_SECONDS` of another one at the most.
    None where the card measures no power, or said nothing new in that time.
    """
    if meter.total_energy_mj() is None and not meter.power_samples(0) and meter.instant_power_w() is None:
        return None
    keep_busy()
    window = _Window(meter, log, clock, wall)
    reading, looked_s = None, -LOOK_SECONDS
    while (now := window.seconds) < longest_s and (reading is None or reading.stop_reason != "converged"):
        keep_busy()
        if window.counts:
            window.poll_counter()
        else:
            sleep(0.001)
        if now - looked_s >= LOOK_SECONDS:
            window.look()
            reading, looked_s = window.reading(target_rse), now
    if reading is None or reading.stop_reason != "converged":
        window.look()
        reading = window.reading(target_rse)
    if explanation is not None:
        window.explain(explanation, reading)
    return reading
