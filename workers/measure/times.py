"""The times of a row: that of its protocol, and the burst and the settled time where the protocol has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workers.measure.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What a device measured of one configuration's time."""

    timing: Timing  # by the rules of the protocol
    burst: Timing | None = None
    settled: Timing | None = None
    power_limited: bool | None = None  # None where the device cannot tell

    def columns(self) -> dict[str, Any]:
        """The columns of a `Measurement` that they fill."""
        found = {**self.timing.columns(), "power_limited": self.power_limited}
        for name, timing in (("burst", self.burst), ("settled", self.settled)):
            if timing is not None:
                found |= {
                    f"runtime_{name}_ms": timing.median_ms,
                    f"runtime_{name}_rse": timing.rse,
                    f"{name}_samples": timing.samples,
                }
        return found
