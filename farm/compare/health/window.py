"""The input of health rules: the rows of a window, and one of its devices (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from farm.compare.health import history
from farm.compare.health.assessment import Estimate, HealthQuery, Member, Since
from farm.compare.health.fleet_rows import Bools, Fleet, FleetRows, latest
from farm.compare.health.history import Baseline
from farm.compare.health.peers import Shared, deviations
from farm.compare.health.samples import Comparison, Sample, estimate, min_shapes
from farm.compare.statistics import Floats, Ints, medians_at
from farm.gpus import find_gpu

Figure = Callable[[FleetRows], Floats]

POWER_LIMIT_TOLERANCE = 0.01
"""Relative difference up to which power limits are equal."""


@dataclass(frozen=True, slots=True)
class Window:
    """The devices of a fleet, their rows in a window of time, and their earlier rows."""

    members: Sequence[Member]
    fleet: Fleet
    query: HealthQuery
    wanted: Bools  # by member: whether it was requested
    since: datetime
    kinds: Ints  # by member: the number of its type
    now: FleetRows  # the latest row of each device and cell
    before: Baseline
    min_shapes: int  # with fewer shapes there is no estimate
    # From the latest row of each member; None if unknown.
    limits: Sequence[float | None]
    clocks: Sequence[str | None]

    @classmethod
    def of(cls, members: Sequence[Member], fleet: Fleet, query: HealthQuery, wanted: Bools, since: datetime) -> Window:
        start = since.timestamp()
        now = latest(fleet.since(start))
        types = sorted({member.type for member in members})
        limited = _last(now, np.isfinite(now.power_limit_w), len(members))
        any_row = _last(now, now.clocks >= 0, len(members))
        return cls(
            members=members,
            fleet=fleet,
            query=query,
            wanted=wanted,
            since=since,
            kinds=np.array([types.index(member.type) for member in members], np.int64),
            now=now,
            before=history.compare_with_past(fleet.rows, now, since=start),
            min_shapes=min_shapes(query.alpha / 2 / max(1, int(wanted.sum()))),
            limits=[None if row is None else float(now.power_limit_w[row]) for row in limited],
            clocks=[None if row is None else fleet.clocks[int(now.clocks[row])] for row in any_row],
        )

    def compared_with_peers(self, comparison: Comparison, values: Floats) -> Iterable[Sample]:
        """Deviations of the wanted devices' values, one for each row of `now`, from those of their peers."""
        known = np.flatnonzero(np.isfinite(values))
        shared = Shared(
            device=self.now.device[known],
            cell=self.now.cell[known],
            shape=self.fleet.shapes[self.now.cell[known]],
            kind=self.kinds[self.now.device[known]],
            value=values[known],
        )
        return [
            Sample(
                comparison=comparison,
                device=one.device,
                by_shape=one.by_shape,
                rows=one.rows,
                against=f"{one.peers} peer{'s' if one.peers > 1 else ''}",
                other=one.other,
            )
            for listed in deviations(shared, min_shapes=self.min_shapes)
            if self.wanted[listed[0].device]
            for one in listed
            if len(one.by_shape) > 1
        ]


class WindowDevice:
    """One device of a window, with its samples."""

    def __init__(
        self,
        window: Window,
        number: int,
        samples: Mapping[int, Sequence[Sample]],
        level: Mapping[Comparison, float],
    ) -> None:
        self.window = window
        self.number = number
        self.level = level
        self._samples = samples

    @property
    def member(self) -> Member:
        return self.window.members[self.number]

    def other(self, number: int) -> WindowDevice:
        """Another device of the window."""
        return WindowDevice(self.window, number, self._samples, self.level)

    @property
    def peers(self) -> list[int]:
        """The other devices of its type."""
        kinds = self.window.kinds
        return [peer for peer in np.flatnonzero(kinds == kinds[self.number]).tolist() if peer != self.number]

    @cached_property
    def rows(self) -> FleetRows:
        """Its rows, including those before the window."""
        rows = self.window.fleet.rows
        return rows.taken(rows.device == self.number)

    def samples(self, *comparisons: Comparison) -> list[Sample]:
        return [sample for sample in self._samples.get(self.number, ()) if sample.comparison in comparisons]

    def estimated(self, sample: Sample) -> Estimate:
        return estimate(sample, self.level[sample.comparison], logarithm=sample.comparison.factor)

    def estimate(self, comparison: Comparison) -> Estimate | None:
        """The estimate. With separate comparisons, the one for the nearest peer that has an interval."""
        found = [self.estimated(sample) for sample in self.samples(comparison)]
        known = [one for one in found if one.low is not None] or found[:1]
        return min(known, key=lambda one: abs(math.log(one.value) if comparison.factor else one.value), default=None)

    def beyond(self, sample: Sample, tolerance: float) -> bool:
        """Whether the lower bound exceeds the tolerance."""
        low = self.estimated(sample).low
        return low is not None and low > (1 + tolerance if sample.comparison.factor else tolerance)

    def all_beyond(self, comparison: Comparison, tolerance: float) -> Estimate | None:
        """The estimate for the nearest peer, if the device is beyond the tolerance from all peers."""
        known = [sample for sample in self.samples(comparison) if self.estimated(sample).low is not None]
        if known and all(self.beyond(sample, tolerance) for sample in known):
            return self.estimate(comparison)
        return None

    # --- since when ------------------------------------------------------------------------------------

    def since_apart(self, apart: float, figure: Figure, *, share: bool = False) -> Since | None:
        """The time since which its rows are about that far from the latest rows of its peers."""
        now, kinds = self.window.now, self.window.kinds
        peers = np.flatnonzero(kinds[now.device] == kinds[self.number])
        others = now.taken(peers[now.device[peers] != self.number])
        theirs = figure(others)
        known = np.isfinite(theirs)
        usual = medians_at(theirs[known], others.cell[known], len(self.window.fleet.shapes))
        values = figure(self.rows) - usual[self.rows.cell]
        known = np.isfinite(values)
        return since(history.onset(values[known], self.rows.when[known], half=apart / 2, shares=share))

    def since_flag(self, flags: Bools, known: Bools, *, half: float) -> Since | None:
        """The time since which more than `half` of its known rows have the flag."""
        return since(history.onset(flags[known].astype(np.float64), self.rows.when[known], half=half, shares=True))


def default_limit(member: Member) -> float | None:
    """The default power limit in W, from the driver or from the data sheet."""
    if member.default_limit_w is not None:
        return member.default_limit_w
    gpu = find_gpu(member.type)
    return None if gpu is None else float(gpu.power_w)


def utc_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def since(began: history.Onset | None) -> Since | None:
    if began is None:
        return None
    after = None if began.after is None else utc_time(began.after)
    return Since(at=utc_time(began.at), after=after, confidence=began.confidence)


def since_unbroken(flags: Bools, when: Floats) -> Since | None:
    """The start of the current unbroken phase with the flag."""
    if not len(flags):
        return None
    order = np.argsort(when, kind="stable")
    down = np.flatnonzero(~flags[order])
    at = min(int(down[-1]) + 1, len(order) - 1) if len(down) else 0
    return Since(at=utc_time(float(when[order[at]])), after=utc_time(float(when[order[at - 1]])) if at else None)


def _last(rows: FleetRows, which: Bools, devices: int) -> list[int | None]:
    """The position of each device's latest row among the chosen ones; None without any."""
    at = np.flatnonzero(which)
    in_time = at[np.argsort(rows.when[at], kind="stable")]
    last = np.full(devices, -1)
    last[rows.device[in_time]] = in_time
    return [None if one < 0 else one for one in last.tolist()]
