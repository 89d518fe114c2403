"""Clocks that the power limit holds down where it does not hold those of peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.fleet_rows import FleetRows
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import AlphaShare, Comparison, Sample, binomial_tail
from farm.compare.health.window import Window, WindowDevice
from farm.compare.statistics import Floats
from farm.vendors.nvidia import ClockEvent

CAPPED = Comparison("capped", AlphaShare.CONDITION, factor=False)

CAPPED_MORE = 0.2
"""A share of shapes on which a card is held by its power limit and its peers are not, less those the other way round."""


class PowerThrottled(HealthRule):
    """Held by its power limit where its peers are not."""

    def samples(self, window: Window) -> Iterable[Sample]:
        return window.beside_peers(CAPPED, _capped(window.now))

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        told = device.samples(CAPPED)
        more = [(int((s.by_shape > 0).sum()), int((s.by_shape < 0).sum()), len(s.by_shape)) for s in told]
        if not more or not all(
            up - down > CAPPED_MORE * shapes and binomial_tail(up, up + down, 0.5) <= device.level[CAPPED]
            for up, down, shapes in more
        ):
            return
        up, down, shapes = min(more, key=lambda one: (one[0] - one[1]) / one[2])
        other_way = f", the other way round on {down}" if down else ""
        yield Finding(
            verdict=HealthVerdict.THROTTLED,
            evidence=f"held by its power limit on {up} of {shapes} shapes on which {told[0].against} are not{other_way}",
            advice="It draws more for the same work, or has less to draw: look at its power limit and its heat.",
            since=device.since_apart((up - down) / shapes, _capped, share=True),
        )


def _capped(rows: FleetRows) -> Floats:
    """1 where its power limit held it, 0 where not, NaN where it does not say."""
    return np.where(rows.reasons < 0, np.nan, rows.reasons & ClockEvent.SW_POWER_CAP > 0)
