"""Clocks that the power limit reduces on this device and not on its peers."""

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
"""Limit for the share of shapes where only this card is power-limited, minus the share where only its peers are."""


class PowerThrottled(HealthRule):
    """Finds devices that are power-limited where their peers are not."""

    def samples(self, window: Window) -> Iterable[Sample]:
        return window.compared_with_peers(CAPPED, _capped(window.now))

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        samples = device.samples(CAPPED)
        more = [(int((s.by_shape > 0).sum()), int((s.by_shape < 0).sum()), len(s.by_shape)) for s in samples]
        if not more or not all(
            up - down > CAPPED_MORE * shapes and binomial_tail(up, up + down, 0.5) <= device.level[CAPPED]
            for up, down, shapes in more
        ):
            return
        up, down, shapes = min(more, key=lambda one: (one[0] - one[1]) / one[2])
        other_way = f", and the reverse on {down}" if down else ""
        yield Finding(
            verdict=HealthVerdict.THROTTLED,
            evidence=f"power-limited on {up} of {shapes} shapes where {samples[0].against} are not{other_way} ({_told_by(device)})",
            advice="It draws more power for the same work, or its limit is lower: check its power limit and its temperature.",
            since=device.since_apart((up - down) / shapes, _capped, share=True),
        )


def _capped(rows: FleetRows) -> Floats:
    """1 for power-limited rows, 0 for others, NaN if unknown.

    The clock event is also set for short kernels that are not slowed down, so it counts only for rows without `power_limited`.
    """
    by_event = np.where(rows.reasons < 0, np.nan, rows.reasons & ClockEvent.SW_POWER_CAP > 0)
    return np.where(rows.power_limited < 0, by_event, rows.power_limited)


def _told_by(device: WindowDevice) -> str:
    """What says that the device's rows are power-limited."""
    now = device.window.now
    known = now.power_limited[now.device == device.number] >= 0
    if known.all():
        return "by power_limited"
    rest = "the clock event sw_power_cap"
    return (
        f"by power_limited in {int(known.sum())} of {len(known)} rows, otherwise {rest}"
        if known.any()
        else f"by {rest}"
    )
