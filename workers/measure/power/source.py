"""What every power source does: read the mean power of a device while it runs one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from farm.measurement import MeasuringRules
from workers.measure.explain import Explanation
from workers.measure.telemetry import TelemetryLog


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """Mean power of a device over one window."""

    power_w: float
    # Names the sensor that `power_w` comes from, for the column `power_source`.
    source: str
    # Relative standard error of `power_w`, and whether sensors disagree. None if the source does not know.
    rse: float | None = None
    disagrees: bool | None = None

    def columns(self) -> dict[str, Any]:
        """The columns of a measurement."""
        return {
            "power_w": self.power_w,
            "power_source": self.source,
            "power_rse": self.rse,
            "power_disagrees": self.disagrees,
        }

    def details(self) -> dict[str, Any]:
        """What else the row keeps of the window."""
        return {}


class PowerSource(Protocol):
    """Reads the power of one device."""

    def measure(
        self,
        keep_busy: Callable[[], object],
        rules: MeasuringRules,
        *,
        ran_s: float = 0.0,
        log: TelemetryLog | None = None,
        explanation: Explanation | None = None,
    ) -> PowerReading | None:
        """Reads power for at most `rules.power_seconds`, and may stop at a relative error of `rules.power_rse`.

        Args:
            keep_busy: is called again and again, and keeps the device at work. On a GPU it returns at once, with
                some milliseconds of work queued; on a CPU it returns after some work.
            ran_s: seconds for which the device has done the same work already.
            log: receives the clocks, temperatures and events that the source sees on the way.
            explanation: receives the raw readings.

        Returns:
            None if the device measures no power, or had no new reading in that time.
        """
