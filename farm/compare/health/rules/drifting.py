"""Time compared with the device's past in the same environment, and sentinels compared with earlier hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health import history
from farm.compare.health.assessment import Finding, HealthVerdict, Since
from farm.compare.health.finding_messages import DRAIN, factor, percent
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import PAST, SENTINEL, Sample, by_device
from farm.compare.health.window import Window, WindowDevice, since
from farm.compare.statistics import medians_at, medians_by


class Drifting(HealthRule):
    """Finds devices that became slower."""

    def samples(self, window: Window) -> Iterable[Sample]:
        yield from _of_past(window)
        yield from _of_sentinels(window)

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        slower = [s for s in device.samples(PAST, SENTINEL) if device.beyond(s, device.window.query.tolerance)]
        for sample in slower[:1]:
            found = device.estimated(sample)
            what, unit = ("its sentinel takes", "hours") if sample.comparison is SENTINEL else ("takes", "shapes")
            yield Finding(
                verdict=HealthVerdict.DRIFTING,
                evidence=f"{what} {factor(found)} times as long as before, in the same environment; {found.shapes} {unit}, "
                f"{percent(found.confidence)} confidence",
                advice="Check its clocks and its temperature. Repeat the measurements since then. "
                + DRAIN.format(uuid=device.member.uuid),
                since=_since_drift(device, sample, math.log(found.value)),
                estimate=found,
            )


def _of_past(window: Window) -> Iterator[Sample]:
    now, values = window.now, window.before.same
    known = np.flatnonzero(np.isfinite(values) & window.wanted[now.device])
    for own in by_device(now.device[known], known):
        by_shape = medians_by(values[own], window.fleet.shapes[now.cell[own]])
        if len(by_shape) > 1:
            device = int(now.device[own[0]])
            yield Sample(comparison=PAST, device=device, by_shape=by_shape, rows=len(own), against="its own past")


def _of_sentinels(window: Window) -> Iterator[Sample]:
    """Compares a device's current sentinel in the window with the hours before it."""
    sentinels = window.fleet.sentinels
    at = np.flatnonzero(window.wanted[sentinels.device])
    for every in by_device(sentinels.device[at], at):
        last = every[sentinels.when[every].argmax()]
        same = (sentinels.cell[every] == sentinels.cell[last]) & (
            sentinels.environment[every] == sentinels.environment[last]
        )
        own = every[same]
        hours = history.by_hour(np.log(sentinels.runtime_ms[own]), sentinels.when[own])
        recent = hours.first >= window.since.timestamp()
        if recent.sum() > 1 and (~recent).sum() > 1:
            yield Sample(
                comparison=SENTINEL,
                device=int(sentinels.device[own[0]]),
                by_shape=hours.value[recent],
                earlier=hours.value[~recent],
                rows=len(own),
                against="hours before",
            )


def _since_drift(device: WindowDevice, sample: Sample, apart: float) -> Since | None:
    fleet = device.window.fleet
    source = fleet.sentinels if sample.comparison is SENTINEL else fleet.rows
    rows = source.taken(source.device == device.number)
    if not len(rows):
        return None
    rows = rows.taken(rows.environment == rows.environment[rows.when.argmax()])
    earlier = rows.taken(rows.when < device.window.since.timestamp())
    usual = medians_at(np.log(earlier.runtime_ms), earlier.cell, int(source.cell.max()) + 1)
    values = np.log(rows.runtime_ms) - usual[rows.cell]
    told = np.isfinite(values)
    return since(history.onset(values[told], rows.when[told], half=apart / 2))
