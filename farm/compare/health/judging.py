"""From rows of a fleet to a verdict for each device (pure)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from farm.compare.health import past, words
from farm.compare.health.document import (
    DeviceHealth,
    Estimate,
    Finding,
    Health,
    Member,
    Question,
    Since,
    verdict_of,
    worst_first,
)
from farm.compare.health.past import Before
from farm.compare.health.peers import medians_of_others
from farm.compare.health.rows import POWER_CAP, UNWELL_REASONS, Bools, Fleet, Rows, latest
from farm.compare.health.samples import (
    Asked,
    Sample,
    estimate,
    fewest_shapes,
    levels,
    of_failures,
    of_past,
    of_peers,
    of_reasons,
    of_sentinels,
    tail,
)
from farm.compare.statistics import Floats, Ints, medians_at
from farm.gpus import find_gpu

ENERGY_TOLERANCE = 0.10
"""Equal cards differ more in energy than in time, as their leakage and temperature do: by up to 1.6% on four H200s of one host."""

HOT_C = 10.0
"""Cards of one chassis differ by how the air reaches them: by up to 9 °C on four H200s of one host, 5 °C from their median."""

SLOWDOWN_MARGIN_C = 3.0
"""This close to the temperature at which the driver slows a card down there is nothing left for a warmer day."""

SELDOM = 0.01
"""A share of shapes, or of jobs, in which what should not happen may: more must be shown for an alarm."""

CAPPED_MORE = 0.2
"""A share of shapes on which a card is held by its power limit and its peers are not, less those the other way round."""

LIMIT_APART = 0.01
"""Power limits that are closer are the same."""


def judge(members: Sequence[Member], fleet: Fleet, question: Question, *, since: datetime, until: datetime) -> Health:
    """The health of the members that the question is about; the others are their peers. `since` begins the window."""
    wanted = np.array([_is_asked_for(member, question) for member in members], bool)
    return _Judge.of(members, fleet, question, wanted, since).health(until)


def _is_asked_for(member: Member, question: Question) -> bool:
    return (
        question.device_type in (None, member.type)
        and question.host in (None, member.host)
        and question.device in (None, member.uuid)
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    members: Sequence[Member]
    fleet: Fleet
    question: Question
    wanted: Bools
    since: datetime
    kinds: Ints  # of each member: which type
    now: Rows
    before: Before
    samples: Mapping[int, Sequence[Sample]]  # by device
    level: Mapping[Asked, float]
    # Of the last row of each member in the window, None where there is none or it does not say.
    limits: Sequence[float | None]
    clocks: Sequence[str | None]

    @classmethod
    def of(cls, members: Sequence[Member], fleet: Fleet, question: Question, wanted: Bools, since: datetime) -> _Judge:
        start = since.timestamp()
        now = latest(fleet.since(start))
        types = sorted({member.type for member in members})
        kinds = np.array([types.index(member.type) for member in members], np.int64)
        before = past.before(fleet.rows, now, since=start)
        fewest = fewest_shapes(question.alpha / 2 / max(1, int(wanted.sum())))
        values = {
            Asked.TIME: np.log(now.runtime_ms),
            Asked.ENERGY: np.log(now.energy_mj),
            Asked.TEMPERATURE: now.temperature_c,
            Asked.CAPPED: _capped(now),
        }
        samples = [
            sample
            for asked, figures in values.items()
            for sample in of_peers(fleet, now, kinds, asked, figures, fewest=fewest, wanted=wanted)
        ]
        samples += of_past(fleet, now, before, wanted=wanted)
        samples += of_sentinels(fleet.sentinels, since=start, wanted=wanted)
        samples += of_reasons(fleet, now, UNWELL_REASONS, wanted=wanted)
        samples += of_failures(members, wanted=wanted)
        by_device = defaultdict[int, list[Sample]](list)
        for sample in samples:
            by_device[sample.device].append(sample)
        limited = _last(now, np.isfinite(now.power_limit_w), len(members))
        any_row = _last(now, now.clocks >= 0, len(members))
        return cls(
            members,
            fleet,
            question,
            wanted,
            since,
            kinds,
            now,
            before,
            by_device,
            levels(samples, question.alpha),
            [None if row is None else float(now.power_limit_w[row]) for row in limited],
            [None if row is None else fleet.clocks[int(now.clocks[row])] for row in any_row],
        )

    def health(self, until: datetime) -> Health:
        named = {number for number in self._devices() if self._is_slow(number)}
        counts = np.bincount(self.fleet.since(self.since.timestamp()).device, minlength=len(self.members))
        left_out = self._left_out()
        return Health(
            since=self.since,
            until=until,
            tolerance=self.question.tolerance,
            alpha=self.question.alpha,
            tests=sum(map(len, self.samples.values())),
            devices=tuple(self._device(number, named, int(counts[number]), left_out) for number in self._devices()),
            notes=tuple(self._notes()),
        )

    def _devices(self) -> list[int]:
        return np.flatnonzero(self.wanted).tolist()

    # --- one device ------------------------------------------------------------------------------------

    def _device(self, number: int, named: set[int], rows: int, left_out: Ints) -> DeviceHealth:
        member = self.members[number]
        alarms = [
            *words.of_state(member, since=self.since),
            *self._of_peers(number, named),
            *self._of_past(number),
            *self._of_energy(number),
            *self._of_heat(number),
            *self._of_reasons(number),
            *self._of_limits(number),
            *self._of_failures(number),
        ]
        estimates = {asked: self._estimate(number, asked) for asked in _SHOWN}
        notes = list[str]()
        if left_out[number]:
            notes.append(words.left_out(int(left_out[number])))
        if member.state == "drained" and not member.foreign:
            notes.append(f"drained: {member.state_reason or 'no reason given'}")
        found = worst_first(alarms) or (self._without_alarm(member, rows, estimates),)
        findings = tuple(words.possible(member, one) for one in found)
        past_one = estimates[Asked.PAST] or estimates[Asked.SENTINEL] or estimates[Asked.CHANGED]
        return DeviceHealth(
            uuid=member.uuid,
            type=member.type,
            host=member.host,
            verdict=verdict_of(findings),
            findings=findings,
            time=estimates[Asked.TIME],
            energy=estimates[Asked.ENERGY],
            temperature=estimates[Asked.TEMPERATURE],
            past=past_one,
            rows=rows,
            notes=tuple(notes),
        )

    def _without_alarm(self, member: Member, rows: int, estimates: Mapping[Asked, Estimate | None]) -> Finding:
        """Well, where its time was compared with anything and is within the tolerance; otherwise unknown."""
        of_time = [estimates[asked] for asked in (Asked.TIME, Asked.PAST, Asked.SENTINEL, Asked.CHANGED)]
        told = [one for one in of_time if one is not None and one.low is not None]
        tolerance = 1 + self.question.tolerance
        unsure = next((one for one in told if not 1 / tolerance <= one.value <= tolerance), None)
        if unsure is not None:
            return words.unsure(member, unsure, self.question.tolerance)
        if told:
            return words.healthy(told)
        return words.too_little(member, rows, next((one for one in of_time if one is not None), None), self.since)

    def _found(self, number: int, *asked: Asked) -> list[Sample]:
        return [sample for sample in self.samples.get(number, ()) if sample.asked in asked]

    def _estimate(self, number: int, asked: Asked) -> Estimate | None:
        """Of the question about a device: beside single peers that of the nearest one that is told well enough."""
        found = [self._estimated(sample) for sample in self._found(number, asked)]
        told = [one for one in found if one.low is not None] or found[:1]
        return min(told, key=lambda one: abs(math.log(one.value) if asked in _FACTORS else one.value), default=None)

    def _estimated(self, sample: Sample) -> Estimate:
        return estimate(sample, self.level[sample.asked], logarithm=sample.asked in _FACTORS)

    # --- time ------------------------------------------------------------------------------------------

    def _beyond(self, sample: Sample, tolerance: float) -> bool:
        """Whether its figures are shown to be larger than the tolerance."""
        low = self._estimated(sample).low
        return low is not None and low > (1 + tolerance if sample.asked in _FACTORS else tolerance)

    def _is_slow(self, number: int) -> bool:
        """Slower than the majority, or than each of two and more others."""
        found = self._found(number, Asked.TIME)
        told = [sample for sample in found if self._estimated(sample).low is not None]
        enough = bool(told) and (told[0].other is None or len(told) > 1)
        return enough and all(self._beyond(sample, self.question.tolerance) for sample in told)

    def _of_peers(self, number: int, named: set[int]) -> Iterator[Finding]:
        if number in named:
            found = self._estimate(number, Asked.TIME)
            assert found is not None
            yield words.slow(self.members[number], found, self._since_apart(number, np.log(found.value), _log_time))
            return
        tolerance = 1 + self.question.tolerance
        told = [
            (sample.other, found)
            for sample in self._found(number, Asked.TIME)
            if sample.other is not None and (found := self._estimated(sample)).low is not None
        ]
        if len(told) > 1 and all(found.value < 1 for _, found in told):
            return
        # That the other one is slower than this one is this one's lower side.
        left = [(other, found) for other, found in told if other not in named]
        apart = [
            (other, found)
            for other, found in left
            if found.low is not None
            and found.high is not None
            and (found.low > tolerance or found.high < 1 / tolerance)
        ]
        if apart and len(apart) == len(left):
            other, found = min(apart, key=lambda one: abs(math.log(one[1].value)))
            yield words.differs(self.members[number], self.members[other], found)

    def _of_past(self, number: int) -> Iterator[Finding]:
        member, tolerance = self.members[number], self.question.tolerance
        for sample in self._found(number, Asked.PAST, Asked.SENTINEL):
            if self._beyond(sample, tolerance):
                found = self._estimated(sample)
                yield words.drifting(member, found, self._since_drift(number, sample, math.log(found.value)))
                break
        for sample in self._found(number, Asked.CHANGED):
            if self._beyond(sample, tolerance) and sample.environments is not None:
                old, new = (self.fleet.environments[which] for which in sample.environments)
                rows = self.fleet.rows
                here = rows.when[(rows.device == number) & (rows.environment == sample.environments[1])]
                at = Since(at=_moment(float(here.min())))
                yield words.regressed(member, self._estimated(sample), at, old, new)

    # --- condition -------------------------------------------------------------------------------------

    def _all_beyond(self, number: int, asked: Asked, tolerance: float) -> Estimate | None:
        """The estimate that is nearest to its peers, where the device is beyond the tolerance from all of them."""
        told = [s for s in self._found(number, asked) if self._estimated(s).low is not None]
        if told and all(self._beyond(sample, tolerance) for sample in told):
            return self._estimate(number, asked)
        return None

    def _of_energy(self, number: int) -> Iterator[Finding]:
        if found := self._all_beyond(number, Asked.ENERGY, ENERGY_TOLERANCE):
            since = self._since_apart(number, math.log(found.value), lambda rows: np.log(rows.energy_mj))
            yield words.draws_more(self.members[number], found, since)

    def _of_heat(self, number: int) -> Iterator[Finding]:
        member = self.members[number]
        if found := self._all_beyond(number, Asked.TEMPERATURE, HOT_C):
            yield words.hotter(member, found, self._since_apart(number, found.value, lambda rows: rows.temperature_c))
        if member.slowdown_c is None:
            return
        limit = member.slowdown_c - SLOWDOWN_MARGIN_C
        warm = self.now.temperature_c[self.now.device == number]
        if np.any(warm >= limit):
            rows = self._rows_of(number)
            known = np.isfinite(rows.temperature_c)
            at = past.began(_shares(rows.temperature_c >= limit)[known], rows.when[known], half=0, shares=True)
            yield words.near_slowdown(member, float(np.nanmax(warm)), member.slowdown_c, _since(at))

    def _of_reasons(self, number: int) -> Iterator[Finding]:
        member, rows = self.members[number], self._rows_of(number)
        known = rows.reasons >= 0
        for sample in self._found(number, Asked.SLOWED):
            held = int(sample.by_shape.sum())
            if tail(held, sample.tries, SELDOM) <= self.level[Asked.SLOWED]:
                flags = _shares(rows.reasons & UNWELL_REASONS > 0)[known]
                at = past.began(flags, rows.when[known], half=held / sample.tries / 2, shares=True)
                mine = self.now.reasons[(self.now.device == number) & (self.now.reasons >= 0)]
                yield words.throttled(member, held, sample.tries, mine, _since(at))
        told = self._found(number, Asked.CAPPED)
        more = [(int((s.by_shape > 0).sum()), int((s.by_shape < 0).sum()), len(s.by_shape)) for s in told]
        if more and all(
            up - down > CAPPED_MORE * shapes and tail(up, up + down, 0.5) <= self.level[Asked.CAPPED]
            for up, down, shapes in more
        ):
            up, down, shapes = min(more, key=lambda one: (one[0] - one[1]) / one[2])
            since = self._since_apart(number, (up - down) / shapes, _capped, shares=True)
            yield words.held_by_power(member, up, down, shapes, told[0].against, since)

    def _of_limits(self, number: int) -> Iterator[Finding]:
        member, mine = self.members[number], self.limits[number]
        if mine is None:
            return
        others = [limit for peer in self._peers(number) if (limit := self.limits[peer]) is not None]
        usual = float(np.median(others)) if others else _default_limit(member)
        if usual is not None and mine < usual * (1 - LIMIT_APART):
            rows = self._rows_of(number)
            known = np.isfinite(rows.power_limit_w)
            flags = (rows.power_limit_w < usual * (1 - LIMIT_APART))[known]
            yield words.power_capped(member, mine, usual, len(others), _since(_run(flags, rows.when[known])))
        clocks = self.clocks[number]
        of_others = Counter(c for peer in self._peers(number) if (c := self.clocks[peer]) is not None)
        if clocks is not None and of_others:
            most, count = of_others.most_common(1)[0]
            if clocks != most and count > 1 and 2 * count > of_others.total():
                rows = self._rows_of(number)
                flags = np.array([self.fleet.clocks[which] == clocks for which in rows.clocks], bool)
                yield words.other_clocks(member, clocks, most, count, _since(_run(flags, rows.when)))

    def _of_failures(self, number: int) -> Iterator[Finding]:
        member = self.members[number]
        for sample in self._found(number, Asked.FAILURES):
            if tail(member.refuted, sample.tries, SELDOM) <= self.level[Asked.FAILURES]:
                yield words.failing(member)

    def _peers(self, number: int) -> list[int]:
        return [peer for peer in np.flatnonzero(self.kinds == self.kinds[number]).tolist() if peer != number]

    # --- since when ------------------------------------------------------------------------------------

    def _rows_of(self, number: int) -> Rows:
        return self.fleet.rows.taken(self.fleet.rows.device == number)

    def _since_apart(self, number: int, apart: float, figure: _Figure, *, shares: bool = False) -> Since | None:
        """Since when its rows are about that far from what its peers have now, or had last."""
        rows = self._rows_of(number)
        peers = np.flatnonzero(self.kinds[self.now.device] == self.kinds[number])
        others = self.now.taken(peers[self.now.device[peers] != number])
        cells = len(self.fleet.shapes)
        theirs = figure(others)
        known = np.isfinite(theirs)
        usual = medians_at(theirs[known], others.cell[known], cells)
        values = figure(rows) - usual[rows.cell]
        told = np.isfinite(values)
        return _since(past.began(values[told], rows.when[told], half=apart / 2, shares=shares))

    def _since_drift(self, number: int, sample: Sample, apart: float) -> Since | None:
        source = self.fleet.sentinels if sample.asked is Asked.SENTINEL else self.fleet.rows
        rows = source.taken(source.device == number)
        if not len(rows):
            return None
        rows = rows.taken(rows.environment == rows.environment[rows.when.argmax()])
        earlier = rows.taken(rows.when < self.since.timestamp())
        usual = medians_at(np.log(earlier.runtime_ms), earlier.cell, int(source.cell.max()) + 1)
        values = np.log(rows.runtime_ms) - usual[rows.cell]
        told = np.isfinite(values)
        return _since(past.began(values[told], rows.when[told], half=apart / 2))

    # --- the fleet -------------------------------------------------------------------------------------

    def _left_out(self) -> Ints:
        """Of each device the configurations of the window that its peers have under other conditions alone."""
        if len(self.fleet.shapes) == int(self.fleet.configurations.max(initial=-1)) + 1:
            return np.zeros(len(self.members), np.int64)  # there is one condition
        cell, kind = self.now.cell, self.kinds[self.now.device]
        types = int(self.kinds.max(initial=0)) + 1
        configuration = self.fleet.configurations[cell]
        ones = np.zeros(len(cell))
        alone = medians_of_others(ones, cell * types + kind)[1] == 0
        # Others, not the device itself under another condition.
        own = np.unique(np.stack([configuration, kind, self.now.device], axis=1), axis=0)
        many = np.bincount(own[:, 0] * types + own[:, 1], minlength=(int(configuration.max(initial=0)) + 1) * types)
        apart = alone & (many[configuration * types + kind] > 1)
        return np.bincount(self.now.device[apart], minlength=len(self.members))

    def _notes(self) -> Iterator[str]:
        for kind in sorted({self.members[number].type for number in self._devices()}):
            mine = [number for number, member in enumerate(self.members) if member.type == kind]
            limits = [limit for number in mine if (limit := self.limits[number]) is not None]
            default = _default_limit(self.members[mine[0]])
            if len(limits) > 1 and default is not None and max(limits) < default * (1 - LIMIT_APART):
                yield f"Every {kind} is limited to {max(limits):.0f} W or less; its maker says {default:.0f} W."
            versions = {
                int(self.now.environment[rows[self.now.when[rows].argmax()]])
                for number in mine
                if len(rows := np.flatnonzero(self.now.device == number))
            }
            if len(versions) > 1:
                said = words.what_differs([self.fleet.environments[which] for which in sorted(versions)])
                yield f"Not every {kind} has the same environment: {said}."


_Figure = Callable[[Rows], Floats]
_FACTORS = (Asked.TIME, Asked.PAST, Asked.CHANGED, Asked.SENTINEL, Asked.ENERGY)
_SHOWN = (Asked.TIME, Asked.ENERGY, Asked.TEMPERATURE, Asked.PAST, Asked.SENTINEL, Asked.CHANGED)


def _log_time(rows: Rows) -> Floats:
    return np.asarray(np.log(rows.runtime_ms))


def _capped(rows: Rows) -> Floats:
    """1 where its power limit held it, 0 where not, NaN where it does not say."""
    return np.where(rows.reasons < 0, np.nan, rows.reasons & POWER_CAP > 0)


def _shares(flags: Bools) -> Floats:
    return flags.astype(np.float64)


def _last(rows: Rows, which: Bools, devices: int) -> list[int | None]:
    """Of each device the last of these rows, None where it has none."""
    at = np.flatnonzero(which)
    in_time = at[np.argsort(rows.when[at], kind="stable")]
    last = np.full(devices, -1)
    last[rows.device[in_time]] = in_time
    return [None if one < 0 else one for one in last.tolist()]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _since(began: past.Began | None) -> Since | None:
    if began is None:
        return None
    after = None if began.after is None else _moment(began.after)
    return Since(at=_moment(began.at), after=after, confidence=began.confidence)


def _run(flags: Bools, when: Floats) -> past.Began | None:
    """Since when the flag is up without a break."""
    if not len(flags):
        return None
    order = np.argsort(when, kind="stable")
    down = np.flatnonzero(~flags[order])
    at = min(int(down[-1]) + 1, len(order) - 1) if len(down) else 0
    return past.Began(at=float(when[order[at]]), after=float(when[order[at - 1]]) if at else None, confidence=None)


def _default_limit(member: Member) -> float | None:
    """What its driver says that it comes with, or else its maker."""
    if member.default_limit_w is not None:
        return member.default_limit_w
    gpu = find_gpu(member.type)
    return None if gpu is None else float(gpu.power_w)
