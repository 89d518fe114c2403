"""Energy compared with peers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.finding_messages import factor, median_of, on_shapes
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import ENERGY, Sample
from farm.compare.health.window import Window, WindowDevice

ENERGY_TOLERANCE = 0.10
"""Equal cards differ more in energy than in time because of leakage and temperature: up to 1.6% on four H200s of one host."""


class Energy(HealthRule):
    """Finds devices that take more energy for the same work."""

    def samples(self, window: Window) -> Iterable[Sample]:
        return window.compared_with_peers(ENERGY, np.log(window.now.energy_mj))

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        if found := device.all_beyond(ENERGY, ENERGY_TOLERANCE):
            yield Finding(
                verdict=HealthVerdict.DIFFERS,
                evidence=f"takes {factor(found)} times the energy of {median_of(found)} {on_shapes(found)}",
                advice="Higher temperature or leakage increases power; its power and energy do not represent the type. "
                f"farm compare --by device --type {device.member.type}",
                since=device.since_apart(math.log(found.value), lambda rows: np.log(rows.energy_mj)),
                estimate=found,
            )
