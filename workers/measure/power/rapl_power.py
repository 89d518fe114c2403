"""The power of processor packages, from Linux's RAPL counters (/sys/class/powercap/intel-rapl:N, on AMD too).

A package's counter covers everything that runs on it, so a reading is the power of the machine while the kernel ran. On most
systems only root may read the counters. If they cannot be read, there is no power and no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farm.measurement import MeasuringRules
from workers.measure.explain import Explanation
from workers.measure.power.source import PowerReading
from workers.measure.telemetry import TelemetryLog

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Package:
    """One counter: microjoules, starting again at 0 after `range_uj`."""

    counter: Path
    range_uj: int

    def read(self) -> int:
        return int(self.counter.read_text())

    def since(self, before_uj: int, now_uj: int) -> int:
        """Microjoules between two readings that lie less than one turn of the counter apart."""
        return now_uj - before_uj if now_uj >= before_uj else now_uj - before_uj + self.range_uj


def packages(root: Path = POWERCAP) -> list[Package]:
    """The packages whose counters this process may read. Zones inside a package are part of it and left out."""
    found = []
    for zone in sorted(root.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):
                package = Package(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
                package.read()
                found.append(package)
        except (OSError, ValueError):
            continue
    return found


class RaplPower:
    """Reads the power of all packages of this host."""

    def __init__(self, root: Path = POWERCAP, clock: Callable[[], float] = time.perf_counter) -> None:
        self._packages = packages(root)
        self._clock = clock

    def measure(
        self,
        keep_busy: Callable[[], object],
        rules: MeasuringRules,
        *,
        ran_s: float = 0.0,
        log: TelemetryLog | None = None,
        explanation: Explanation | None = None,
    ) -> PowerReading | None:
        """Always reads for `rules.power_seconds`.

        That is a minute at most. A counter wraps after ten minutes at full load at the earliest.
        """
        if not self._packages:
            return None
        before, start = [package.read() for package in self._packages], self._clock()
        while self._clock() - start < rules.power_seconds:
            keep_busy()
        after, elapsed = [package.read() for package in self._packages], self._clock() - start
        joules = sum(p.since(b, a) for p, b, a in zip(self._packages, before, after, strict=True)) / 1e6
        return PowerReading(power_w=joules / elapsed, source="rapl") if joules > 0 else None
