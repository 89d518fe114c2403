"""Diagnoses the devices of a fleet from their rows, by the rules of `farm.compare.health.rules` (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import numpy as np

from farm.compare.groups import Group
from farm.compare.health import finding_messages
from farm.compare.health.assessment import (
    DeviceHealth,
    Estimate,
    Finding,
    FleetReport,
    HealthQuery,
    Member,
    verdict_of,
    worst_first,
)
from farm.compare.health.fleet_rows import Fleet
from farm.compare.health.peers import medians_of_others
from farm.compare.health.rules import RULES
from farm.compare.health.samples import CHANGED, ENERGY, PAST, SENTINEL, TEMPERATURE, TIME, Comparison, Sample, levels
from farm.compare.health.window import POWER_LIMIT_TOLERANCE, Window, WindowDevice, default_limit
from farm.compare.statistics import Ints

_OF_TIME = (TIME, PAST, SENTINEL, CHANGED)


def diagnose(
    members: Sequence[Member], fleet: Fleet, query: HealthQuery, *, since: datetime, until: datetime
) -> FleetReport:
    """The health of the requested members; the others are their peers. `since` is the start of the window."""
    requested = Group(name="", type=query.device_type, host=query.host, device=query.device)
    wanted = np.array([requested.has(member) for member in members], bool)
    window = Window.of(members, fleet, query, wanted, since)
    samples = [sample for rule in RULES for sample in rule.samples(window)]
    of_device = defaultdict[int, list[Sample]](list)
    for sample in samples:
        of_device[sample.device].append(sample)
    level = levels(samples, query.alpha)
    rows = np.bincount(fleet.since(since.timestamp()).device, minlength=len(members))
    left_out = _left_out(window)
    numbers = np.flatnonzero(wanted).tolist()
    return FleetReport(
        since=since,
        until=until,
        tolerance=query.tolerance,
        alpha=query.alpha,
        tests=len(samples),
        devices=tuple(
            _health(WindowDevice(window, number, of_device, level), int(rows[number]), int(left_out[number]))
            for number in numbers
        ),
        notes=tuple(_notes(window, numbers)),
    )


def _health(device: WindowDevice, rows: int, left_out: int) -> DeviceHealth:
    member = device.member
    estimates = {comparison: device.estimate(comparison) for comparison in (*_OF_TIME, ENERGY, TEMPERATURE)}
    notes = list[str]()
    if left_out:
        notes.append(finding_messages.left_out(left_out))
    if member.state == "drained" and not member.foreign:
        notes.append(f"drained: {member.state_reason or 'no reason given'}")
    alarms = [finding for rule in RULES for finding in rule.findings(device)]
    found = worst_first(alarms) or (_without_alarm(device, rows, estimates),)
    findings = tuple(finding_messages.possible(member, one) for one in found)
    return DeviceHealth(
        uuid=member.uuid,
        type=member.type,
        host=member.host,
        verdict=verdict_of(findings),
        findings=findings,
        time=estimates[TIME],
        energy=estimates[ENERGY],
        temperature=estimates[TEMPERATURE],
        past=estimates[PAST] or estimates[SENTINEL] or estimates[CHANGED],
        rows=rows,
        notes=tuple(notes),
    )


def _without_alarm(device: WindowDevice, rows: int, estimates: Mapping[Comparison, Estimate | None]) -> Finding:
    """Healthy if some comparison of its time is within the tolerance, otherwise unknown."""
    of_time = [estimates[comparison] for comparison in _OF_TIME]
    compared = [one for one in of_time if one is not None and one.low is not None]
    tolerance = device.window.query.tolerance
    unsure = next((one for one in compared if not 1 / (1 + tolerance) <= one.value <= 1 + tolerance), None)
    if unsure is not None:
        return finding_messages.unsure(device.member, unsure, tolerance)
    if compared:
        return finding_messages.healthy(compared)
    any_of = next((one for one in of_time if one is not None), None)
    return finding_messages.too_little(device.member, rows, any_of, device.window.since)


def _left_out(window: Window) -> Ints:
    """Numbers of each device's configurations in the window that its peers have only under other conditions."""
    if len(window.fleet.shapes) == int(window.fleet.configurations.max(initial=-1)) + 1:
        return np.zeros(len(window.members), np.int64)  # a single condition
    cell, kind = window.now.cell, window.kinds[window.now.device]
    types = int(window.kinds.max(initial=0)) + 1
    configuration = window.fleet.configurations[cell]
    ones = np.zeros(len(cell))
    alone = medians_of_others(ones, cell * types + kind)[1] == 0
    # Configurations of other devices, not of the device itself under another condition.
    own = np.unique(np.stack([configuration, kind, window.now.device], axis=1), axis=0)
    many = np.bincount(own[:, 0] * types + own[:, 1], minlength=(int(configuration.max(initial=0)) + 1) * types)
    apart = alone & (many[configuration * types + kind] > 1)
    return np.bincount(window.now.device[apart], minlength=len(window.members))


def _notes(window: Window, numbers: Sequence[int]) -> Iterator[str]:
    for kind in sorted({window.members[number].type for number in numbers}):
        mine = [number for number, member in enumerate(window.members) if member.type == kind]
        limits = [limit for number in mine if (limit := window.limits[number]) is not None]
        default = default_limit(window.members[mine[0]])
        if len(limits) > 1 and default is not None and max(limits) < default * (1 - POWER_LIMIT_TOLERANCE):
            yield f"Every {kind} is limited to {max(limits):.0f} W or less; its maker says {default:.0f} W."
        versions = {
            int(window.now.environment[rows[window.now.when[rows].argmax()]])
            for number in mine
            if len(rows := np.flatnonzero(window.now.device == number))
        }
        if len(versions) > 1:
            difference = finding_messages.what_differs([window.fleet.environments[which] for which in sorted(versions)])
            yield f"Not every {kind} has the same environment: {difference}."
