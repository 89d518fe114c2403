"""Clocks that are reduced by heat or by the board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.finding_messages import DRAIN
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import TOLERATED_SHARE, AlphaShare, Comparison, Sample, binomial_tail, by_device
from farm.compare.health.window import Window, WindowDevice
from farm.vendors.nvidia import FAULTS, event_names

SLOWED = Comparison("slowed", AlphaShare.CONDITION, factor=False)


class Throttled(HealthRule):
    """Finds devices that heat or the board throttles on more than a few shapes."""

    def samples(self, window: Window) -> Iterable[Sample]:
        """By shape: 1 if a configuration was throttled, otherwise 0."""
        now = window.now
        known = np.flatnonzero((now.reasons >= 0) & window.wanted[now.device])
        for own in by_device(now.device[known], known):
            shapes = window.fleet.shapes[now.cell[own]]
            throttled = np.zeros(int(shapes.max()) + 1)
            seen = np.zeros(len(throttled), bool)
            np.maximum.at(throttled, shapes, (now.reasons[own] & FAULTS > 0).astype(np.float64))
            seen[shapes] = True
            yield Sample(
                comparison=SLOWED,
                device=int(now.device[own[0]]),
                by_shape=throttled[seen],
                rows=len(own),
                against="none at all",
                tries=int(seen.sum()),
            )

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        now, reasons = device.window.now, device.rows.reasons
        for sample in device.samples(SLOWED):
            throttled = int(sample.by_shape.sum())
            if binomial_tail(throttled, sample.tries, TOLERATED_SHARE) > device.level[SLOWED]:
                continue
            mine = now.reasons[(now.device == device.number) & (now.reasons >= 0)]
            faults = mine[mine & FAULTS > 0] & FAULTS
            seen = Counter(name for bits in faults.tolist() for name in event_names(bits).split(","))
            yield Finding(
                verdict=HealthVerdict.THROTTLED,
                evidence=f"its clocks were reduced on {throttled} of {sample.tries} shapes by "
                + ", ".join(f"{name} ({count} rows)" for name, count in seen.most_common()),
                advice="Thermal reasons indicate heat; hw_power_brake and hw_slowdown come from the board or the power supply. "
                + DRAIN.format(uuid=device.member.uuid),
                since=device.since_flag(reasons & FAULTS > 0, reasons >= 0, half=throttled / sample.tries / 2),
            )
