"""The power of an NVIDIA card while it runs one kernel, from what its driver samples and counts.

The card is never idle in the window, and the window is no longer than the requested error needs. The driver offers three
readings of one sensor:

- A ring of power samples. On an H200, a sample comes about every 20 ms and is the average since the one before.
- An energy counter, the integral of the ring. It makes a step about every 100 ms.
- The instant field. It is used only if the other two are missing.

The ring is more precise in a short window, and the counter checks it. If one of them is missing, the other one answers alone.
How often a reading is updated is observed, not assumed. "Part-time power measurements" (arXiv 2312.02741) shows what goes
wrong otherwise.

Readings from the first `DROPPED_SECONDS` are not used. Clocks rise for about 0.2 s after a kernel that was held at the power
limit; `series.settled_from` cuts that off.

The power of a card that its power limiter holds varies by a tenth around the limit, with a period of about a second, which no
short window averages out. It settles at the limit, so the reading is the limit, and the row is marked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from farm.measurement import MeasuringRules
from farm.vendors.nvidia import ClockEvent
from workers.measure.explain import Explanation
from workers.measure.nvml import Telemetry
from workers.measure.power.series import (
    DROPPED_SECONDS,
    MIN_VALUES,
    UNSEEN_NOISE,
    EnergySteps,
    Mean,
    averages,
    better,
    disagree,
    mean_of,
)
from workers.measure.power.source import PowerReading
from workers.measure.telemetry import TelemetryLog

LOOK_SECONDS = 0.05
"""Time between two looks at clocks, ring and error."""

MIN_SECONDS = 0.3
"""The shortest window, the load before it included. By then the counter has made two steps after `DROPPED_SECONDS`, which can be
compared with the ring."""

CLOCK_SECONDS = 0.2
"""The share by which the SM clock changed in this time before the end of a window is added to the error."""

Regime = Literal["free", "limited", "swinging"]
"""What the power limiter does. `free`: nothing. `limited`: it holds the card at its limit. `swinging`: it is active, and the
power is below the limit or the limit is not known."""

REGIME_RSE: dict[Regime, float] = {"free": 0.0125, "limited": 0.01, "swinging": UNSEEN_NOISE}
"""Relative error that a short window does not show, from benchmarks/power_truth.py. Free: over seconds the die warms or cools,
and its leakage changes. Limited: the limit is the reading, and a card settles 0.1 to 1.3% below it. Swinging: the error of a
mean over less than a second."""


class PowerMeter(Protocol):
    """What is read of a card: see `workers.measure.nvml.Card`. None, or an empty list, if it does not support that."""

    @property
    def power_limit_w(self) -> float | None: ...

    def total_energy_mj(self) -> int | None: ...

    def power_samples(self, since_us: int) -> list[tuple[int, float]]: ...

    def instant_power_w(self) -> float | None: ...

    def telemetry(self) -> Telemetry: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading(PowerReading):
    """Mean power of a card over one window, and what each sensor read.

    `source` is one of nvml-counter+samples, nvml-counter, nvml-samples, nvml-instant and nvml-limit; `disagrees` as of
    `series.disagree`.
    """

    rse: float  # including what the window could not see
    seconds: float
    stop_reason: str  # converged | budget
    # Whether the power limiter held the card, so that `power_w` is its limit and not `window_w`.
    limited: bool
    # What the card drew in the window.
    window_w: float
    counter: Mean | None
    samples: Mean | None

    def details(self) -> dict[str, Any]:
        return {
            "power_window_w": self.window_w,
            "power_window_s": self.seconds,
            "power_stop_reason": self.stop_reason,
            "power_limited": self.limited,
            "power_counter_w": None if self.counter is None else self.counter.watts,
            "power_counter_rse": None if self.counter is None else self.counter.rse,
            "power_samples_w": None if self.samples is None else self.samples.watts,
            "power_samples_rse": None if self.samples is None else self.samples.rse,
        }


class _Window:
    """The readings of one window, in seconds from its beginning."""

    def __init__(
        self, meter: PowerMeter, log: TelemetryLog, clock: Callable[[], float], wall: Callable[[], float], ran_s: float
    ) -> None:
        self._dropped_s, self._shortest_s = (max(0.0, seconds - ran_s) for seconds in (DROPPED_SECONDS, MIN_SECONDS))
        self._meter, self._log, self._clock = meter, log, clock
        self._start, self._wall_start = clock(), wall()
        self._limit_w = meter.power_limit_w
        self._held = False
        self._clocks_mhz: list[tuple[float, int]] = []
        self.counts = True
        self.steps = EnergySteps()
        self.ring: list[tuple[float, float]] = []
        self._ring_until_us = int(1e6 * self._wall_start)
        # The instant field each time it changed. A value describes the time since the change before.
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
        """Reads everything but the counter."""
        seen = self._meter.telemetry()
        self._log.add(seen)
        now = self.seconds
        self._held = bool((seen.clock_events or 0) & ClockEvent.SW_POWER_CAP)
        if seen.sm_clock_mhz is not None and now >= self._dropped_s:
            self._clocks_mhz.append((now, seen.sm_clock_mhz))
        for at_us, watts in self._meter.power_samples(self._ring_until_us):
            if at_us > self._ring_until_us:
                self.ring.append((at_us / 1e6 - self._wall_start, watts))
                self._ring_until_us = at_us
        instant = self._meter.instant_power_w()
        if instant is not None and (not self.instants or instant != self.instants[-1][1]):
            self.instants.append((self.seconds, instant))

    def reading(self, target_rse: float) -> CardReading | None:
        """The reading so far. None without enough samples."""
        now = self.seconds
        counter = self.steps.mean(self._dropped_s)
        samples = mean_of(averages(self.ring, self._dropped_s, now))
        apart = disagree(self.steps, self.ring, self._dropped_s)
        mean, source = better(counter, samples, apart=bool(apart)), "nvml-counter+samples"
        if counter is None or samples is None:
            source = "nvml-samples" if counter is None else "nvml-counter"
        if mean is None:
            mean, source = mean_of(averages(self.instants, self._dropped_s, now)), "nvml-instant"
        if mean is None:
            return None
        regime = self._regime(mean)
        power_w, rse = mean.watts, math.hypot(mean.rse, REGIME_RSE[regime], self._clock_moved(now))
        if regime == "limited" and self._limit_w is not None:
            power_w, rse, source = self._limit_w, REGIME_RSE[regime], "nvml-limit"
        enough = now >= self._shortest_s and mean.values >= MIN_VALUES
        return CardReading(
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
        """The driver's reason alone is not enough, because it stays for half a second after a kernel that was limited."""
        if self._limit_w is None:
            return "swinging" if self._held else "free"
        if mean.watts >= self._limit_w:
            return "limited"
        if not self._held or mean.watts < (1 - 2 * REGIME_RSE["swinging"]) * self._limit_w:
            return "free"
        return "limited" if mean.peak_w >= self._limit_w else "swinging"

    def _clock_moved(self, now: float) -> float:
        """The share by which the SM clock changed in the last `CLOCK_SECONDS`."""
        clocks = [mhz for at_s, mhz in self._clocks_mhz if at_s >= now - CLOCK_SECONDS]
        return max(clocks) / min(clocks) - 1 if clocks and min(clocks) > 0 else 0.0

    def explain(self, explanation: Explanation, reading: CardReading | None) -> None:
        explanation.energy_steps = [(at_s, energy_mj) for at_s, _, energy_mj in self.steps.steps]
        explanation.power_samples = list(self.ring)
        if reading is None:
            explanation.note(f"power: no sensor had a new reading in {self.seconds:.2f} s")
            return
        held = f", held at its limit (the window: {reading.window_w:.0f} W)" if reading.limited else ""
        explanation.note(
            f"power: {reading.power_w:.0f} W ± {reading.rse:.1%} from {reading.source}{held};"
            f" {reading.stop_reason} after {reading.seconds:.2f} s"
        )


def measure_power(
    meter: PowerMeter,
    keep_busy: Callable[[], object],
    *,
    target_rse: float,
    max_seconds: float,
    log: TelemetryLog,
    ran_s: float = 0.0,
    explanation: Explanation | None = None,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> CardReading | None:
    """Reads the meter until the relative standard error is at most `target_rse`, or for `max_seconds` seconds.

    `keep_busy` returns at once and leaves some milliseconds of work queued. It is called every few milliseconds. Work that is queued
    before may be the same kernel, or at most `DROPPED_SECONDS` of another one. `ran_s`: seconds for which the same kernel ran
    before; so much less is dropped, and needed.
    Returns None if the card measures no power, or had no new reading in that time.
    """
    if meter.total_energy_mj() is None and not meter.power_samples(0) and meter.instant_power_w() is None:
        return None
    keep_busy()
    window = _Window(meter, log, clock, wall, ran_s)
    reading, looked_s = None, -LOOK_SECONDS
    while (now := window.seconds) < max_seconds and (reading is None or reading.stop_reason != "converged"):
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


class NvmlPower:
    """Reads the power of one card."""

    def __init__(self, meter: PowerMeter) -> None:
        self._meter = meter

    def measure(
        self,
        keep_busy: Callable[[], object],
        rules: MeasuringRules,
        *,
        ran_s: float = 0.0,
        log: TelemetryLog | None = None,
        explanation: Explanation | None = None,
    ) -> CardReading | None:
        return measure_power(
            self._meter,
            keep_busy,
            target_rse=rules.power_rse,
            max_seconds=rules.power_seconds,
            log=TelemetryLog() if log is None else log,
            ran_s=ran_s,
            explanation=explanation,
            clock=time.perf_counter,
            wall=time.time,
            sleep=time.sleep,
        )
