"""A device beside its own past, and since when it is as it is (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.compare.health.fleet_rows import FleetRows, positions
from farm.compare.statistics import Floats, Ints, medians_at

HOUR_S = 3600.0
"""FleetRows within an hour share the temperature and the neighbours of a card: together they are one look at it."""

MAX_HOURS = 400
"""HourlySeries of a device that a change is searched among, the latest."""

PERMUTATIONS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What each of the latest rows is beside: logarithms of ratios, now over then, NaN where there is nothing to compare."""

    # FleetRows compare_with_past the window, in the same environment.
    same: Floats
    # FleetRows in the environment compare_with_past this one, where the device came into this one within the window.
    changed: Floats
    # Which environment that was; -1 where `changed` is NaN.
    environment: Ints


def compare_with_past(rows: FleetRows, now: FleetRows, *, since: float) -> Baseline:
    """Compares `now`, as `latest` has it, with what the same device took for the same cell earlier: medians over rows."""
    count = len(now)
    nothing = Baseline(same=np.full(count, np.nan), changed=np.full(count, np.nan), environment=np.full(count, -1))
    if not count or not len(rows):
        return nothing
    devices = int(max(rows.device.max(), now.device.max())) + 1
    at = positions(now.cell * devices + now.device, rows.cell * devices + rows.device)
    known = at >= 0
    environments = int(max(rows.environment.max(), now.environment.max())) + 1
    # Since when the device is in an environment.
    first = np.full((int(rows.device.max()) + 1) * environments, np.inf)
    np.minimum.at(first, rows.device * environments + rows.environment, rows.when)
    came = first[now.device * environments + now.environment]
    same_one = known & (rows.environment == now.environment[at])
    same = _ratios(rows, now, np.flatnonzero(same_one & (rows.when < since)), at)
    earlier = np.flatnonzero(known & ~same_one & (rows.when < came[at]) & (came[at] >= since))
    environment = np.full(count, -1)
    in_time = earlier[np.argsort(rows.when[earlier], kind="stable")]
    environment[at[in_time]] = rows.environment[in_time]  # the last one stays
    last = earlier[rows.environment[earlier] == environment[at[earlier]]]
    return Baseline(same=same, changed=_ratios(rows, now, last, at), environment=environment)


def _ratios(rows: FleetRows, now: FleetRows, which: Ints, at: Ints) -> Floats:
    then = medians_at(np.log(rows.runtime_ms[which]), at[which], len(now))
    return np.asarray(np.log(now.runtime_ms) - then)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Where a series is most likely to have changed: compare_with_past its value at `index`, with that confidence that it did at all."""

    index: int
    confidence: float


def change_point(values: Floats, *, seed: int = 0) -> Change | None:
    """The split of a series that leaves least in its two parts, as absolute deviations; None for fewer than four values.

    That there is a change at all is told by the largest standardised Wilcoxon-Mann-Whitney statistic over all splits (Hawkins
    and Deng, A nonparametric change-point control chart, Journal of Quality Technology 42, 2010): its confidence is one less
    the share of random orders of the same values in which it is as large, so without a change any order must be as likely.
    """
    count = len(values)
    if count < 4:
        return None
    ranks = _ranks(values)
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1)
    found, chance = _standardised(ranks[None, :]).max(), _standardised(orders).max(axis=1)
    as_large = int((chance >= found - 1e-9).sum())
    left = [_scatter(values[:index]) + _scatter(values[index:]) for index in range(1, count)]
    return Change(index=int(np.argmin(left)) + 1, confidence=1 - (as_large + 1) / (PERMUTATIONS + 1))


def _scatter(values: Floats) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _standardised(ranks: Floats) -> Floats:
    """Of each split after 1, 2 … n - 1 values how unlike the parts are: ranks [series, n], result [series, n - 1]."""
    count = ranks.shape[1]
    first = np.arange(1, count)
    apart = np.abs(np.cumsum(ranks, axis=1)[:, :-1] - first * (count + 1) / 2)
    return np.asarray(apart / np.sqrt(first * (count - first) * (count + 1) / 12))


def _ranks(values: Floats) -> Floats:
    """From 1; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[which], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySeries:
    """A series by hours: one value for each hour in which there was anything, and when its first and last row landed."""

    value: Floats
    first: Floats
    last: Floats


def by_hour(values: Floats, when: Floats, *, shares: bool = False, most: int = MAX_HOURS) -> HourlySeries:
    """Medians of the hours, or means where the values are shares: values, when [rows], in seconds since 1970."""
    hour = np.floor(when / HOUR_S)
    order = np.lexsort((when, hour))
    values, when, hour = values[order], when[order], hour[order]
    begins = np.append(True, np.diff(hour) > 0)
    starts, which = np.flatnonzero(begins), np.cumsum(begins) - 1
    ends = np.append(starts[1:], len(hour)) - 1
    found = np.bincount(which, values) / np.bincount(which) if shares else medians_at(values, which, len(starts))
    return HourlySeries(value=found[-most:], first=when[starts][-most:], last=when[ends][-most:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """Since when a series is high, in seconds since 1970: after `after` (None: it was from its first value on), by `at`."""

    at: float
    after: float | None
    # That it changed at all; None where it did not, or there is too little to tell.
    confidence: float | None


def onset(values: Floats, when: Floats, *, half: float, shares: bool = False) -> Onset | None:
    """Since when a series that is high now is: above `half`. None for an empty one."""
    if not len(values):
        return None
    looks = by_hour(values, when, shares=shares)
    found = change_point(looks.value)
    if found is not None and np.median(looks.value[found.index :]) > half >= np.median(looks.value[: found.index]):
        return Onset(
            at=float(looks.first[found.index]),
            after=float(looks.last[found.index - 1]),
            confidence=found.confidence,
        )
    low = np.flatnonzero(looks.value <= half)
    if found is not None and np.median(looks.value) > half:  # high all along, but for an hour now and then
        low = low[:0]
    at = min(int(low[-1]) + 1, len(looks.value) - 1) if len(low) else 0
    return Onset(at=float(looks.first[at]), after=float(looks.last[at - 1]) if at else None, confidence=None)
