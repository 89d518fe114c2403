"""Readings of a card's telemetry while it works, summarised for a row."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from farm.vendors.nvidia import ClockEvent, event_names
from workers.measure.nvml import Telemetry


@dataclass(slots=True)
class TelemetryLog:
    """Readings of a card's telemetry while it works, summarised for a row."""

    looks: list[Telemetry] = field(default_factory=list)
    before: Telemetry | None = None  # the last reading before the work began; its clocks are not those of the work
    application_clocks_mhz: tuple[int | None, int | None] = (None, None)  # as set, and by default

    def add(self, look: Telemetry) -> None:
        self.looks.append(look)

    def _values(self, name: str) -> list[int]:
        return [value for look in self.looks if (value := getattr(look, name)) is not None]

    def _median(self, name: str) -> int | None:
        values = self._values(name)
        return round(statistics.median(values)) if values else None

    @property
    def clock_events(self) -> int | None:
        """All events that any reading had."""
        seen = self._values("clock_events")
        bits = 0
        for mask in seen:
            bits |= mask
        return bits if seen else None

    def columns(self, power_limited: bool | None = None) -> dict[str, Any]:
        """The columns of a measurement: median clocks, the temperature before and after, every reason seen.

        The driver tells of its power limiter for half a second after a kernel that was held. Where `power_limited` is false,
        that reason is left out.
        """
        temperatures, events = self._values("temperature_c"), self.clock_events
        if events is not None and power_limited is False:
            events &= ~ClockEvent.SW_POWER_CAP
        before = None if self.before is None else self.before.temperature_c
        return {
            "sm_clock_mhz": self._median("sm_clock_mhz"),
            "memory_clock_mhz": self._median("memory_clock_mhz"),
            "temperature_before_c": next((value for value in (before, *temperatures) if value is not None), None),
            "temperature_c": temperatures[-1] if temperatures else None,
            "throttle_reasons": None if events is None else event_names(events),
            "clock_policy": self.clock_policy,
        }

    @property
    def clock_policy(self) -> str:
        """`locked:<MHz>` where a user set the clock, as far as a card lets it be seen, otherwise `default`.

        NVML does not tell of locked clocks as such: they show as a clock that is held below the default one by the
        applications-clocks reason.
        """
        application_mhz, default_mhz = self.application_clocks_mhz
        if application_mhz is not None and application_mhz != default_mhz:
            return f"locked:{application_mhz}"
        clock = self._median("sm_clock_mhz")
        held = (self.clock_events or 0) & ClockEvent.APPLICATIONS_CLOCKS
        if held and clock is not None and (default_mhz is None or clock < default_mhz):
            return f"locked:{clock}"
        return "default"
