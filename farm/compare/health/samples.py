"""What of a fleet can be tested: of each device and each question the figures, and how strict a test of them must be (pure)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from farm.compare.health import past
from farm.compare.health.document import Estimate, Member
from farm.compare.health.past import Before
from farm.compare.health.peers import Deviation, Shared, deviations
from farm.compare.health.rows import Bools, Fleet, Rows, in_parts
from farm.compare.statistics import Floats, Ints, median_interval, medians_by


class Asked(StrEnum):
    """What is asked of a device."""

    TIME = "time"  # beside its peers
    PAST = "past"  # time beside its own past
    CHANGED = "changed"  # time beside that under the environment before
    SENTINEL = "sentinel"
    ENERGY = "energy"
    TEMPERATURE = "temperature"
    CAPPED = "capped"  # held by its power limit where peers are not
    SLOWED = "slowed"  # held by heat or by the board
    FAILURES = "failures"


_PART = {
    **dict.fromkeys((Asked.ENERGY, Asked.TEMPERATURE, Asked.CAPPED, Asked.SLOWED, Asked.FAILURES), (0.25, "condition")),
    **dict.fromkeys((Asked.PAST, Asked.CHANGED, Asked.SENTINEL), (0.25, "past")),
    Asked.TIME: (0.5, "peers"),
}
"""Which part of the false alarms that may be the tests of a kind share: half for the one that needs no past and is asked of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Figures by which one question about one device is answered: logarithms of ratios, °C, or shares."""

    asked: Asked
    device: int
    by_shape: Floats
    rows: int
    against: str
    # The one peer that it is beside, where it is one.
    other: int | None = None
    # Of CHANGED: the environments before and after. Of SENTINEL: figures before the window.
    environments: tuple[int, int] | None = None
    earlier: Floats | None = None
    # Of how many tries `by_shape` holds what happened, where it is counted.
    tries: int = 0


def levels(samples: Iterable[Sample], alpha: float) -> dict[Asked, float]:
    """How often each test may be wrong on its side, so that all of them together are at most `alpha` (Bonferroni)."""
    counts = Counter(_PART[sample.asked][1] for sample in samples)
    return {asked: alpha * part / max(1, counts[group]) for asked, (part, group) in _PART.items()}


def fewest_shapes(level: float) -> int:
    """Fewer have no interval: the lowest of n lies above the median with 2^-n."""
    return math.ceil(-math.log2(level))


def estimate(sample: Sample, level: float, *, logarithm: bool) -> Estimate:
    """The median with bounds of which each is wrong with at most `level`."""
    if sample.earlier is None:
        value = float(np.median(sample.by_shape))
        bounds = median_interval(sample.by_shape, 1 - 2 * level)
    else:
        value = float(np.median(sample.by_shape) - np.median(sample.earlier))
        bounds = _apart(sample.by_shape, sample.earlier, level)
    low, high = bounds or (None, None)

    def plain(number: float | None) -> float | None:
        return None if number is None else math.exp(number) if logarithm else number

    return Estimate(
        value=math.exp(value) if logarithm else value,
        low=plain(low),
        high=plain(high),
        confidence=1 - 2 * level,
        shapes=len(sample.by_shape),
        rows=sample.rows,
        against=sample.against,
    )


def _apart(now: Floats, earlier: Floats, level: float) -> tuple[float, float] | None:
    """Bounds of the difference of two medians, from those of each."""
    one, other = median_interval(now, 1 - level), median_interval(earlier, 1 - level)
    return None if one is None or other is None else (one[0] - other[1], one[1] - other[0])


# --- beside peers --------------------------------------------------------------------------------------


def of_peers(
    fleet: Fleet, now: Rows, kinds: Ints, asked: Asked, values: Floats, *, fewest: int, wanted: Bools
) -> list[Sample]:
    """Of each wanted device how far its values are from those of its peers; `kinds` has the type of each device."""
    known = np.flatnonzero(np.isfinite(values))
    shared = Shared(
        device=now.device[known],
        cell=now.cell[known],
        shape=fleet.shapes[now.cell[known]],
        kind=kinds[now.device[known]],
        value=values[known],
    )
    return [
        _beside(asked, one)
        for listed in deviations(shared, fewest=fewest)
        if wanted[listed[0].device]
        for one in listed
        if len(one.by_shape) > 1
    ]


def _beside(asked: Asked, one: Deviation) -> Sample:
    return Sample(
        asked=asked,
        device=one.device,
        by_shape=one.by_shape,
        rows=one.rows,
        against=f"{one.peers} peer{'s' if one.peers > 1 else ''}",
        other=one.other,
    )


# --- beside the past -----------------------------------------------------------------------------------


def of_past(fleet: Fleet, now: Rows, found: Before, *, wanted: Bools) -> Iterator[Sample]:
    for asked, values in ((Asked.PAST, found.same), (Asked.CHANGED, found.changed)):
        known = np.flatnonzero(np.isfinite(values) & wanted[now.device])
        for own in by_device(now.device[known], known):
            chosen, environments = own, None
            if asked is Asked.CHANGED:
                pairs = np.stack([found.environment[own], now.environment[own]], axis=1)
                listed, which, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
                most = int(counts.argmax())
                chosen = own[which.reshape(-1) == most]
                environments = (int(listed[most][0]), int(listed[most][1]))
            by_shape = medians_by(values[chosen], fleet.shapes[now.cell[chosen]])
            if len(by_shape) > 1:
                yield Sample(
                    asked=asked,
                    device=int(now.device[own[0]]),
                    by_shape=by_shape,
                    rows=len(chosen),
                    against="its own past" if environments is None else "itself before",
                    environments=environments,
                )


def of_sentinels(sentinels: Rows, *, since: float, wanted: Bools) -> Iterator[Sample]:
    """Hours of the window beside hours before it, of the sentinel that a device measures now."""
    at = np.flatnonzero(wanted[sentinels.device])
    for every in by_device(sentinels.device[at], at):
        last = every[sentinels.when[every].argmax()]
        same = (sentinels.cell[every] == sentinels.cell[last]) & (
            sentinels.environment[every] == sentinels.environment[last]
        )
        own = every[same]
        looks = past.by_hour(np.log(sentinels.runtime_ms[own]), sentinels.when[own])
        recent = looks.first >= since
        if recent.sum() > 1 and (~recent).sum() > 1:
            yield Sample(
                asked=Asked.SENTINEL,
                device=int(sentinels.device[own[0]]),
                by_shape=looks.value[recent],
                earlier=looks.value[~recent],
                rows=len(own),
                against="hours before",
            )


# --- counted -------------------------------------------------------------------------------------------


def of_failures(members: Sequence[Member], *, wanted: Bools) -> Iterator[Sample]:
    for number, member in enumerate(members):
        if wanted[number] and member.done + member.refuted:
            yield Sample(
                asked=Asked.FAILURES,
                device=number,
                by_shape=np.array([float(member.refuted)]),
                rows=member.done + member.refuted,
                against="other devices",
                tries=member.done + member.refuted,
            )


def of_reasons(fleet: Fleet, now: Rows, bits: int, *, wanted: Bools) -> Iterator[Sample]:
    """Of each device the shapes of which a configuration was held by one of these reasons, as 1, and the others, as 0."""
    known = np.flatnonzero((now.reasons >= 0) & wanted[now.device])
    for own in by_device(now.device[known], known):
        shapes = fleet.shapes[now.cell[own]]
        held = np.zeros(int(shapes.max()) + 1)
        seen = np.zeros(len(held), bool)
        np.maximum.at(held, shapes, (now.reasons[own] & bits > 0).astype(np.float64))
        seen[shapes] = True
        yield Sample(
            asked=Asked.SLOWED,
            device=int(now.device[own[0]]),
            by_shape=held[seen],
            rows=len(own),
            against="none at all",
            tries=int(seen.sum()),
        )


def by_device(device: Ints, which: Ints) -> Iterator[Ints]:
    """`which` in parts, one for each device; `device` says whose each is."""
    order = in_parts(device)
    cuts = np.flatnonzero(np.diff(device[order])) + 1
    yield from (part for part in np.split(which[order], cuts) if len(part))


def tail(happened: int, tries: int, share: float) -> float:
    """The probability that of so many tries at least that many happen, each with probability `share`."""
    if happened <= 0:
        return 1.0
    first = math.lgamma(tries + 1) - math.lgamma(happened + 1) - math.lgamma(tries - happened + 1)
    first += happened * math.log(share) + (tries - happened) * math.log1p(-share)
    more = np.arange(happened, tries)
    steps = np.log((tries - more) / (more + 1)) + math.log(share / (1 - share))
    return min(1.0, float(np.exp(first + np.append(0.0, np.cumsum(steps))).sum()))
