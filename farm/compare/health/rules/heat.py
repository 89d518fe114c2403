"""Temperature compared with peers, and with the slowdown temperature of the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.finding_messages import DRAIN, degrees, median_of, on_shapes
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import TEMPERATURE, Sample
from farm.compare.health.window import Window, WindowDevice

HOT_C = 10.0
"""Cards of one chassis differ by their airflow: up to 9 °C on four H200s of one host, 5 °C from their median."""

SLOWDOWN_MARGIN_C = 3.0
"""Margin below the slowdown temperature for warmer days."""

_ADVICE = "Check its fans, its filters and its place in the chassis."


class Heat(HealthRule):
    """Finds devices that are hotter under the same work, or near their slowdown temperature."""

    def samples(self, window: Window) -> Iterable[Sample]:
        return window.compared_with_peers(TEMPERATURE, window.now.temperature_c)

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        if found := device.all_beyond(TEMPERATURE, HOT_C):
            yield Finding(
                verdict=HealthVerdict.HOT,
                evidence=f"{degrees(found)} compared with {median_of(found)} under the same work, {on_shapes(found)}",
                advice=_ADVICE,
                since=device.since_apart(found.value, lambda rows: rows.temperature_c),
                estimate=found,
            )
        slowdown_c, now = device.member.slowdown_c, device.window.now
        if slowdown_c is None:
            return
        limit = slowdown_c - SLOWDOWN_MARGIN_C
        warm = now.temperature_c[now.device == device.number]
        if np.any(warm >= limit):
            figures = device.rows.temperature_c
            yield Finding(
                verdict=HealthVerdict.HOT,
                evidence=f"reached {float(np.nanmax(warm)):.0f} °C; it slows down at {slowdown_c:.0f} °C",
                advice=f"{_ADVICE} " + DRAIN.format(uuid=device.member.uuid),
                since=device.since_flag(figures >= limit, np.isfinite(figures), half=0),
            )
