"""The energy of processor packages, from Linux's RAPL counters (/sys/class/powercap/intel-rapl:N, AMD's too).

A package's counter covers everything that runs on it, so a reading says what the machine drew while the kernel ran.
Most systems let only root read the counters; where they cannot be read there is no power, and no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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


def mean_power_w(
    counters: list[Package], run: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float | None:
    """Mean power of all packages in watts while `run` is called again and again for `seconds`.

    A package's counter turns over after some ten minutes at full load at the earliest, a window takes a minute at most.
    """
    if not counters:
        return None
    before, start = [package.read() for package in counters], clock()
    while clock() - start < seconds:
        run()
    after, elapsed = [package.read() for package in counters], clock() - start
    joules = sum(p.since(b, a) for p, b, a in zip(counters, before, after, strict=True)) / 1e6
    return joules / elapsed if joules > 0 else None
