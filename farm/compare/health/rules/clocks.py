"""Clock policies that differ from those of most peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.window import WindowDevice, since_unbroken
from farm.vendors import vendor_of_type


class Clocks(HealthRule):
    """Finds devices at other clocks than most of their peers."""

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        member, clocks = device.member, device.window.clocks
        mine = clocks[device.number]
        of_others = Counter(c for peer in device.peers if (c := clocks[peer]) is not None)
        vendor = vendor_of_type(member.type)
        if not vendor.locks_clocks or mine is None or not of_others:
            return
        usual, count = of_others.most_common(1)[0]
        if mine == usual or count < 2 or 2 * count <= of_others.total():
            return
        flags = np.array([device.window.fleet.clocks[which] == mine for which in device.rows.clocks], bool)
        yield Finding(
            verdict=HealthVerdict.DIFFERS,
            evidence=f"its clocks are {mine}, those of {count} of its peers {usual}",
            advice=f"{vendor.advice_on_clocks(member.uuid, member.host)} Rows at other clocks are not compared.",
            since=since_unbroken(flags, device.rows.when),
        )
