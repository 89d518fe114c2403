"""Time compared with the previous environment, after a change of the driver, CUDA or another library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict, Since
from farm.compare.health.finding_messages import factor, on_shapes, what_differs
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import CHANGED, Sample, by_device
from farm.compare.health.window import Window, WindowDevice, utc_time
from farm.compare.statistics import medians_by


class Regressed(HealthRule):
    """Finds devices that are slower since their environment changed."""

    def samples(self, window: Window) -> Iterable[Sample]:
        now, before = window.now, window.before
        known = np.flatnonzero(np.isfinite(before.changed) & window.wanted[now.device])
        for own in by_device(now.device[known], known):
            pairs = np.stack([before.environment[own], now.environment[own]], axis=1)
            listed, which, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
            most = int(counts.argmax())
            chosen = own[which.reshape(-1) == most]
            by_shape = medians_by(before.changed[chosen], window.fleet.shapes[now.cell[chosen]])
            if len(by_shape) > 1:
                yield Sample(
                    comparison=CHANGED,
                    device=int(now.device[own[0]]),
                    by_shape=by_shape,
                    rows=len(chosen),
                    against="itself before",
                    environments=(int(listed[most][0]), int(listed[most][1])),
                )

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        window, rows = device.window, device.window.fleet.rows
        for sample in device.samples(CHANGED):
            if sample.environments is None or not device.beyond(sample, window.query.tolerance):
                continue
            here = rows.when[(rows.device == device.number) & (rows.environment == sample.environments[1])]
            at, found = utc_time(float(here.min())), device.estimated(sample)
            change = what_differs([window.fleet.environments[which] for which in sample.environments])
            yield Finding(
                verdict=HealthVerdict.REGRESSED,
                evidence=f"takes {factor(found)} times as long since {change}, {on_shapes(found)}",
                advice="The card itself may be healthy: compare before and after on all cards, "
                f"farm compare until={at:%Y-%m-%dT%H:%M} since={at:%Y-%m-%dT%H:%M} --type {device.member.type} --top 10",
                since=Since(at=at),
                estimate=found,
            )
