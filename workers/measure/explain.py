"""The raw data of one measurement: samples, power readings, telemetry, and why it stopped. Collected only on request."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from workers.measure.nvml import Telemetry


@dataclass(slots=True)
class Explanation:
    """Filled by a device while it measures one configuration. Times are seconds from the beginning of their part."""

    # Milliseconds of one GEMM, in the order in which they were taken.
    warm_up_ms: list[float] = field(default_factory=list)
    burst_ms: list[float] = field(default_factory=list)
    samples_ms: list[float] = field(default_factory=list)
    warm_l2_ms: list[float] = field(default_factory=list)
    # Power: steps of the energy counter (s, mJ), samples of the driver's ring (s, W).
    energy_steps: list[tuple[float, int]] = field(default_factory=list)
    power_samples: list[tuple[float, float]] = field(default_factory=list)
    # Readings of clocks and temperature, in order.
    telemetry: list[Telemetry] = field(default_factory=list)
    # Decisions, as text, in order.
    notes: list[str] = field(default_factory=list)
    # Seconds spent: preparing, verifying, warming up, timing, power …
    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
