"""Time compared with peers: slower than they are, or different from one other device without a third to decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Estimate, Finding, HealthVerdict
from farm.compare.health.finding_messages import DRAIN, factor, median_of, on_shapes
from farm.compare.health.fleet_rows import FleetRows
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import TIME, Sample
from farm.compare.health.window import Window, WindowDevice
from farm.compare.statistics import Floats


class Slow(HealthRule):
    """Finds devices that are slower than the majority, or than each of two or more others."""

    def samples(self, window: Window) -> Iterable[Sample]:
        return window.compared_with_peers(TIME, _log_time(window.now))

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        member = device.member
        if _is_slow(device):
            found = device.estimate(TIME)
            assert found is not None
            yield Finding(
                verdict=HealthVerdict.SLOW,
                evidence=f"takes {factor(found)} times as long as {median_of(found)} {on_shapes(found)}",
                advice=f"farm compare --by device --type {member.type} --top 10 shows the configurations. "
                + DRAIN.format(uuid=member.uuid),
                since=device.since_apart(np.log(found.value), _log_time),
                estimate=found,
            )
        elif apart := _apart(device):
            other, found = min(apart, key=lambda one: abs(math.log(one[1].value)))
            uuid = device.window.members[other].uuid
            yield Finding(
                verdict=HealthVerdict.DIFFERS,
                evidence=f"takes {factor(found)} times as long as {uuid}, and no third device shows which one is wrong; {on_shapes(found)}",
                advice=f"Measure a third {member.type}, or compare clocks, temperature and power limit of both: "
                f"farm compare {uuid} {member.uuid} --top 10",
                estimate=found,
            )


def _is_slow(device: WindowDevice) -> bool:
    told = [sample for sample in device.samples(TIME) if device.estimated(sample).low is not None]
    enough = bool(told) and (told[0].other is None or len(told) > 1)
    return enough and all(device.beyond(sample, device.window.query.tolerance) for sample in told)


def _apart(device: WindowDevice) -> list[tuple[int, Estimate]]:
    """The other devices that it differs from, if it differs from each one that is not slow."""
    tolerance = 1 + device.window.query.tolerance
    told = [
        (sample.other, found)
        for sample in device.samples(TIME)
        if sample.other is not None and (found := device.estimated(sample)).low is not None
    ]
    if len(told) > 1 and all(found.value < 1 for _, found in told):
        return []
    # A slow device has its own finding.
    left = [(other, found) for other, found in told if not _is_slow(device.other(other))]
    apart = [
        (other, found)
        for other, found in left
        if found.low is not None and found.high is not None and (found.low > tolerance or found.high < 1 / tolerance)
    ]
    return apart if len(apart) == len(left) else []


def _log_time(rows: FleetRows) -> Floats:
    return np.asarray(np.log(rows.runtime_ms))
