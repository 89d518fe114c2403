"""Clocks that heat or the board hold down."""

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
    """Held by heat or by the board on more than a few shapes."""

    def samples(self, window: Window) -> Iterable[Sample]:
        """Of each device the shapes of which a configuration was held, as 1, and the others, as 0."""
        now = window.now
        known = np.flatnonzero((now.reasons >= 0) & window.wanted[now.device])
        for own in by_device(now.device[known], known):
            shapes = window.fleet.shapes[now.cell[own]]
            held = np.zeros(int(shapes.max()) + 1)
            seen = np.zeros(len(held), bool)
            np.maximum.at(held, shapes, (now.reasons[own] & FAULTS > 0).astype(np.float64))
            seen[shapes] = True
            yield Sample(
                comparison=SLOWED,
                device=int(now.device[own[0]]),
                by_shape=held[seen],
                rows=len(own),
                against="none at all",
                tries=int(seen.sum()),
            )

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        now, reasons = device.window.now, device.rows.reasons
        for sample in device.samples(SLOWED):
            held = int(sample.by_shape.sum())
            if binomial_tail(held, sample.tries, TOLERATED_SHARE) > device.level[SLOWED]:
                continue
            mine = now.reasons[(now.device == device.number) & (now.reasons >= 0)]
            faults = mine[mine & FAULTS > 0] & FAULTS
            seen = Counter(name for bits in faults.tolist() for name in event_names(bits).split(","))
            yield Finding(
                verdict=HealthVerdict.THROTTLED,
                evidence=f"its clocks were held on {held} of {sample.tries} shapes by "
                + ", ".join(f"{name} ({count} rows)" for name, count in seen.most_common()),
                advice="Thermal reasons are heat; hw_power_brake and hw_slowdown come from the board or the power supply. "
                + DRAIN.format(uuid=device.member.uuid),
                since=device.since_flag(reasons & FAULTS > 0, reasons >= 0, half=held / sample.tries / 2),
            )
