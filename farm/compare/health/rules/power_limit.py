"""Power limits below those of peers, or below the default."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.window import POWER_LIMIT_TOLERANCE, WindowDevice, default_limit, since_unbroken
from farm.vendors import vendor_of_type


class PowerLimit(HealthRule):
    """Finds devices with a lower power limit than usual."""

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        member, limits = device.member, device.window.limits
        mine = limits[device.number]
        others = [limit for peer in device.peers if (limit := limits[peer]) is not None]
        usual = float(np.median(others)) if others else default_limit(member)
        if mine is None or usual is None or mine >= usual * (1 - POWER_LIMIT_TOLERANCE):
            return
        rows = device.rows
        known = np.isfinite(rows.power_limit_w)
        flags = (rows.power_limit_w < usual * (1 - POWER_LIMIT_TOLERANCE))[known]
        have = f"its {len(others)} peer{'s have' if len(others) > 1 else ' has'}" if others else "the default is"
        yield Finding(
            verdict=HealthVerdict.POWER_CAPPED,
            evidence=f"its power limit is {mine:.0f} W, {have} {usual:.0f} W",
            advice=vendor_of_type(member.type).advice_on_power_limit(member.uuid, member.host, usual),
            since=since_unbroken(flags, rows.when[known]),
        )
