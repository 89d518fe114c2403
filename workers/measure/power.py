"""How much does a card draw while it does nothing but this GEMM?

Two sources, read together over one window in which the card is never idle. The energy counter steps about every
100 ms, so only its steps are used: energy between the first and the last, over the time between them. The driver's
ring of power samples has one about every 20 ms. The first 100 ms of the window are dropped from both, as what the card
drew before is still in them. "Part-time power measurements" (arXiv 2312.02741) shows what goes wrong otherwise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from workers.measure.nvml import APPLICATION_CLOCKS_EVENT, Telemetry, event_names

DROPPED_SECONDS = 0.1
SHORTEST_SPAN_SECONDS = 0.25
"""Steps of the counter closer together than this say too little: one step is 100 ms."""

TELEMETRY_SECONDS = 0.05
DISAGREEMENT = 0.05
"""Sources further apart than this share flag the row."""


class PowerMeter(Protocol):
    """What is read: see `nvml.Card`."""

    def total_energy_mj(self) -> int | None: ...

    def power_samples(self, since_us: int) -> list[tuple[int, float]]: ...

    def telemetry(self) -> Telemetry: ...


class EnergySteps:
    """The steps of an energy counter: when it was seen to change, and to what."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._steps: list[tuple[float, int]] = []

    def add(self, at_s: float, energy_mj: int) -> None:
        if self._last is not None and energy_mj != self._last:
            self._steps.append((at_s, energy_mj))
        self._last = energy_mj

    def mean_power_w(self, after_s: float) -> float | None:
        """Mean power between the first and the last step after that time; None where they are too close."""
        steps = [step for step in self._steps if step[0] >= after_s]
        if len(steps) < 2 or steps[-1][0] - steps[0][0] < SHORTEST_SPAN_SECONDS:
            return None
        return (steps[-1][1] - steps[0][1]) / 1e3 / (steps[-1][0] - steps[0][0])


@dataclass(slots=True)
class TelemetryLog:
    """Looks at a card while it works, summed up for a row."""

    looks: list[Telemetry] = field(default_factory=list)

    def add(self, look: Telemetry) -> None:
        self.looks.append(look)

    def _values(self, name: str) -> list[int]:
        return [value for look in self.looks if (value := getattr(look, name)) is not None]

    def _median(self, name: str) -> int | None:
        values = self._values(name)
        return round(statistics.median(values)) if values else None

    @property
    def clock_events(self) -> int | None:
        """Every reason that was seen at any time."""
        seen = self._values("clock_events")
        bits = 0
        for mask in seen:
            bits |= mask
        return bits if seen else None

    def columns(self) -> dict[str, Any]:
        """The columns of a measurement: median clocks, the last temperature, every reason seen."""
        temperatures, events = self._values("temperature_c"), self.clock_events
        return {
            "sm_clock_mhz": self._median("sm_clock_mhz"),
            "memory_clock_mhz": self._median("memory_clock_mhz"),
            "temperature_c": temperatures[-1] if temperatures else None,
            "throttle_reasons": None if events is None else event_names(events),
        }

    def clock_policy(self, application_mhz: int | None, default_mhz: int | None) -> str:
        """`locked:<MHz>` where a user set the clock, as far as a card lets it be seen, otherwise `default`.

        NVML does not tell of locked clocks as such: they show as a clock that is held below the default one by the
        applications-clocks reason.
        """
        if application_mhz is not None and application_mhz != default_mhz:
            return f"locked:{application_mhz}"
        clock = self._median("sm_clock_mhz")
        held = (self.clock_events or 0) & APPLICATION_CLOCKS_EVENT
        if held and clock is not None and (default_mhz is None or clock < default_mhz):
            return f"locked:{clock}"
        return "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """Mean power of a window, and what each source said."""

    power_w: float
    source: str  # nvml-counter+samples | nvml-counter | nvml-samples
    counter_w: float | None
    samples_w: float | None
    # Standard error of the mean of the ring's samples over that mean.
    samples_rse: float | None

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "power_counter_w": self.counter_w,
            "power_samples_w": self.samples_w,
            "power_samples_rse": self.samples_rse,
        }
        if self.counter_w is not None and self.samples_w is not None:
            found["power_sources_disagree"] = abs(self.counter_w - self.samples_w) > DISAGREEMENT * self.power_w
        return found


def combine(counter_w: float | None, samples_w: list[float]) -> PowerReading | None:
    """The mean of the two sources, or the one there is."""
    ring = statistics.fmean(samples_w) if len(samples_w) > 1 else None
    rse = statistics.stdev(samples_w) / len(samples_w) ** 0.5 / ring if ring else None
    both = [watts for watts in (counter_w, ring) if watts is not None and watts > 0]
    if not both:
        return None
    names = [name for name, watts in (("counter", counter_w), ("samples", ring)) if watts is not None and watts > 0]
    return PowerReading(
        power_w=statistics.fmean(both),
        source="nvml-" + "+".join(names),
        counter_w=counter_w,
        samples_w=ring,
        samples_rse=rse,
    )


def measure_power(
    meter: PowerMeter,
    keep_busy: Callable[[], None],
    seconds: float,
    log: TelemetryLog,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> PowerReading | None:
    """Reads the meter for `seconds`, while `keep_busy` puts work before the card whenever it is called.

    `keep_busy` returns at once and leaves enough queued for some 50 ms. None where the card measures no power.
    """
    if meter.total_energy_mj() is None and not meter.power_samples(0):
        return None
    keep_busy()
    start, wall_start = clock(), wall()
    steps, looked = EnergySteps(), -TELEMETRY_SECONDS
    counting = True
    while (elapsed := clock() - start) < seconds:
        keep_busy()
        if counting:
            before = clock()
            energy = meter.total_energy_mj()
            counting = energy is not None
            if energy is not None:
                # A call takes milliseconds; the value is from somewhere inside it.
                steps.add((before + clock()) / 2, energy)
        if elapsed - looked >= TELEMETRY_SECONDS:
            log.add(meter.telemetry())
            looked = elapsed
        if not counting:
            sleep(0.001)
    first_us, last_us = (int(1e6 * (wall_start + offset)) for offset in (DROPPED_SECONDS, clock() - start))
    ring = [watts for at_us, watts in meter.power_samples(first_us) if first_us <= at_us <= last_us]
    return combine(steps.mean_power_w(start + DROPPED_SECONDS), ring)
