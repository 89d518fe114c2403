"""Compares a device with its own past, and finds the start of a condition (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.compare.health.fleet_rows import FleetRows, positions
from farm.compare.statistics import Floats, Ints, medians_at

HOUR_S = 3600.0
"""Rows within an hour share a card's temperature and neighbours, so they count as one observation."""

MAX_HOURS = 400
"""Number of latest hours that are searched for a change."""

PERMUTATIONS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Logarithms of the ratios of the latest rows to earlier ones; NaN without earlier rows."""

    # To rows before the window, in the same environment.
    same: Floats
    # To rows in the previous environment, where the environment changed within the window.
    changed: Floats
    # The previous environment; -1 where `changed` is NaN.
    environment: Ints


def compare_with_past(rows: FleetRows, now: FleetRows, *, since: float) -> Baseline:
    """Compares the latest rows with medians of earlier rows of the same device and cell."""
    count = len(now)
    nothing = Baseline(same=np.full(count, np.nan), changed=np.full(count, np.nan), environment=np.full(count, -1))
    if not count or not len(rows):
        return nothing
    devices = int(max(rows.device.max(), now.device.max())) + 1
    at = positions(now.cell * devices + now.device, rows.cell * devices + rows.device)
    known = at >= 0
    environments = int(max(rows.environment.max(), now.environment.max())) + 1
    # First row of each device in each environment.
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
    """The most likely change of a series, before its value at `index`, and the confidence that there is one."""

    index: int
    confidence: float


def change_point(values: Floats, *, seed: int = 0) -> Change | None:
    """The split with the smallest sum of absolute deviations in its two parts; None for fewer than four values.

    The test for a change is the largest standardised Wilcoxon-Mann-Whitney statistic over all splits (Hawkins and Deng, A
    nonparametric change-point control chart, Journal of Quality Technology 42, 2010). Its confidence is one minus the share of
    random permutations of the values in which the statistic is as large.
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
    """The statistic of each split after 1, 2 … n - 1 values: ranks [series, n], result [series, n - 1]."""
    count = ranks.shape[1]
    first = np.arange(1, count)
    apart = np.abs(np.cumsum(ranks, axis=1)[:, :-1] - first * (count + 1) / 2)
    return np.asarray(apart / np.sqrt(first * (count - first) * (count + 1) / 12))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[which], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySeries:
    """A series with one value per hour that has rows, and the times of the first and last row of the hour."""

    value: Floats
    first: Floats
    last: Floats


def by_hour(values: Floats, when: Floats, *, shares: bool = False, most: int = MAX_HOURS) -> HourlySeries:
    """Medians by hour, or means of shares: values, when [rows], in seconds since 1970."""
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
    """The start of a condition in seconds since 1970: after `after` (None: from the first value) and no later than `at`."""

    at: float
    after: float | None
    # Confidence of a change; None without a change or with too few values.
    confidence: float | None


def onset(values: Floats, when: Floats, *, half: float, shares: bool = False) -> Onset | None:
    """The start of the current phase of a series above `half`. None for an empty series."""
    if not len(values):
        return None
    hours = by_hour(values, when, shares=shares)
    found = change_point(hours.value)
    if found is not None and np.median(hours.value[found.index :]) > half >= np.median(hours.value[: found.index]):
        return Onset(
            at=float(hours.first[found.index]),
            after=float(hours.last[found.index - 1]),
            confidence=found.confidence,
        )
    low = np.flatnonzero(hours.value <= half)
    if found is not None and np.median(hours.value) > half:  # high throughout, except for single hours
        low = low[:0]
    at = min(int(low[-1]) + 1, len(hours.value) - 1) if len(low) else 0
    return Onset(at=float(hours.first[at]), after=float(hours.last[at - 1]) if at else None, confidence=None)
