"""Comparing sides: their rows reduced to one figure for each configuration, paired, and what the pairs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import Engine

from farm.compare import comparable, costs, groups, reading
from farm.compare.arrow import Words
from farm.compare.costs import Cost
from farm.compare.groups import Grouping, Problems
from farm.compare.reading import Asked, Rows
from farm.compare.sides import (
    MOST_SIDES,
    Device,
    Kind,
    Side,
    check_environment,
    parse,
    prices_of,
    settle,
    sides_by,
    takes,
    times_of,
)
from farm.compare.statistics import (
    RUN_ERROR,
    TIE,
    Floats,
    Ints,
    Ratio,
    Verdict,
    medians_at,
    medians_by,
    ratio_of,
    verdicts,
)
from farm.db import campaigns
from farm.errors import BadInput, NothingShared, SideWithoutRows
from farm.gemm import ElementTypes
from farm.gpus import Gpu, find_gpu
from farm.kernels.families import family_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be compared, and how. `sides`, the first of them the baseline, or `by`: one side for each value of it."""

    sides: Sequence[str] = ()
    by: str | None = None
    # Of every side.
    campaign: str | None = None
    device_type: str | None = None
    family: str | None = None
    dtype: str | None = None
    any_source: bool = False
    mixed: bool = False
    tie: float = TIE
    prices: Sequence[str] = ()
    grams_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class Reduced:
    """One figure of a side for each configuration: [configurations], medians over its rows, NaN where it has none."""

    runtime_ms: Floats
    runtime_rse: Floats  # the largest of its rows
    power_w: Floats
    energy_mj: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the pairs of some configurations say: by what factor the side's figures are the baseline's."""

    configurations: int
    shapes: int
    time: Ratio
    tflops: Ratio
    power: Ratio | None
    energy: Ratio | None
    # Configurations on which the side takes less time, as much, more, or nobody can tell.
    faster: int
    ties: int
    slower: int
    unsure: int
    # Median over shapes of the share of the roofline that is reached; None where a card has no figures.
    baseline_roofline: float | None
    roofline: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What there is of a side."""

    name: str
    rows: int
    configurations: int
    devices: tuple[Device, ...]
    gpu: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The configurations that a side shares with the baseline: [pairs] each, ratios are side / baseline."""

    ids: Words
    baseline: Reduced
    side: Reduced
    verdict: Ints

    def most_different(self, count: int) -> Ints:
        """Which pairs differ most in time, the most different first."""
        apart = np.abs(np.log(self.side.runtime_ms / self.baseline.runtime_ms))
        return np.argsort(-apart, kind="stable")[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One side beside the baseline."""

    held: Held
    overall: Figures
    by_type: Mapping[str, Figures]
    by_size: Mapping[str, Figures]
    by_bound: Mapping[str, Figures]
    money: Cost | None
    carbon: Cost | None
    pairs: Pairs = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    baseline: Held
    sides: tuple[Beside, ...]
    # What is not the same on all sides though it is compared, and what was left out.
    notes: tuple[str, ...]
    tie: float


def compare(engine: Engine, question: Question) -> Comparison:
    """Answers the question from the database. Raises `BadInput`, `NotFound`."""
    if bool(question.sides) == (question.by is not None) or len(question.sides) == 1:
        raise BadInput(
            detail="Name two or more sides, as in: farm compare SIDE SIDE; or say --by type, host, device, day …"
        )
    if len(question.sides) > MOST_SIDES:
        raise BadInput(detail=f"{len(question.sides)} sides; {MOST_SIDES} can be compared at a time.")
    if len(set(question.sides)) < len(question.sides):
        raise BadInput(detail="Two sides are the same.")
    _check_filters(question)
    chosen, asked, notes = _chosen(engine, question)
    prices = prices_of(question.prices, list(chosen))
    wanted = list(dict.fromkeys(kind for kinds in chosen.values() for kind in kinds))
    rows = reading.rows(engine, wanted, asked)
    problems: Problems | None = None
    if question.family is not None or question.dtype is not None:
        problems = reading.problems(engine, rows.ids)
        rows = rows.taken(_filtered(problems, question)[rows.configuration])
    counts = np.bincount(rows.kind, minlength=len(wanted))
    of_side = {name: set(kinds) for name, kinds in chosen.items()}
    mine = {name: np.array([kind in kinds for kind in wanted]) for name, kinds in of_side.items()}
    held = {
        name: [(kind, int(n)) for kind, n, own in zip(wanted, counts, of, strict=True) if own and n]
        for name, of in mine.items()
    }
    for name, kinds in held.items():
        if not kinds:
            raise SideWithoutRows(side=name, why="none of its rows is of that --family or --dtype")
    notes += comparable.refuse(held, mixed=question.mixed)
    notes += comparable.labels(held)
    reduced = {name: _reduced(rows.taken(of[rows.kind]), len(rows.ids)) for name, of in mine.items()}
    first, *others = reduced
    has = {name: np.isfinite(one.runtime_ms) for name, one in reduced.items()}
    any_shared = np.flatnonzero(has[first] & np.logical_or.reduce([has[name] for name in others]))
    if not len(any_shared):
        raise _nothing_shared(first, others, has)
    problems = (
        reading.problems(engine, rows.ids[any_shared]) if problems is None else _problems_at(problems, any_shared)
    )
    order = np.argsort(groups.shapes_of(problems), kind="stable")  # medians by shape need not sort then
    any_shared, problems = any_shared[order], _problems_at(problems, order)
    about = _About.of(problems, _card(held[first]))
    beside = list[Beside]()
    for name in others:
        shared = has[name][any_shared]
        if not shared.any():
            if question.by is None:
                raise _nothing_shared(first, [name], has)
            notes.append(f"{name} shares no configuration with {first} and is left out.")
            continue
        at = any_shared[shared]
        pairs = _paired(rows.ids[at], _at(reduced[first], at), _at(reduced[name], at), question.tie)
        beside.append(
            _beside(
                pairs,
                about.taken(shared),
                _held(name, held[name], has[name]),
                _card(held[first]),
                _card(held[name]),
                prices=(prices.get(first), prices.get(name)),
                grams_per_kwh=question.grams_per_kwh,
            )
        )
    return Comparison(
        baseline=_held(first, held[first], has[first]), sides=tuple(beside), notes=tuple(notes), tie=question.tie
    )


# --- which rows ------------------------------------------------------------------------------------


def _check_filters(question: Question) -> None:
    """Raises `BadInput` for a family or an element type that does not exist."""
    if question.family is not None:
        family_named(question.family)
    if question.dtype is not None:
        ElementTypes.parse(question.dtype)


def _chosen(engine: Engine, question: Question) -> tuple[dict[str, list[Kind]], Asked, list[str]]:
    """The kinds of rows of each side, and notes. Raises `NotFound` for what is not there."""
    # One snapshot: rows that land meanwhile may be of devices and environments that were not there.
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        devices = reading.devices(connection)
        environments = reading.environments(connection)
        filters = settle(Side(name="", type=question.device_type), devices)
        sides = [settle(parse(name), devices) for name in question.sides]
        for side in sides:
            check_environment(side, environments.values())
        names = {side.campaign for side in sides} - {None}
        only = None if question.campaign is None else set(campaigns.repetitions(connection, question.campaign))
        ids: dict[str, int] = {name: campaigns.find(connection, name)["id"] for name in names if name is not None}
        times = times_of(sides)
        asked = Asked(
            campaigns=bool(ids) or only is not None,
            times=tuple(times),
            days=question.by == "day",
            short_rounds=reading.has_short_rounds(connection),
        )
        there = reading.kinds(connection, devices, environments, asked)
    # The source is a matter of the sides.
    there = [
        kind
        for kind in there
        if takes(filters, kind, campaigns=ids, any_source=True) and (only is None or kind.campaign_id in only)
    ]
    if question.by is not None:
        own = [kind for kind in there if takes(Side(name=""), kind, campaigns=ids, any_source=question.any_source)]
        if not own:
            raise SideWithoutRows(side=f"--by {question.by}", why=_why_none(there, "add --any-source"))
        order, of, without = sides_by(question.by, own)
        if len(order) < 2:
            raise BadInput(
                detail=f"--by {question.by} makes one side, {order[0]}; nothing is there to compare it with."
            )
        return (
            {name: of[name] for name in order},
            asked,
            [f"{without:,} rows do not tell their {question.by} and are left out."] if without else [],
        )
    chosen = dict[str, list[Kind]]()
    for side in sides:
        chosen[side.name] = [
            kind for kind in there if takes(side, kind, times=times, campaigns=ids, any_source=question.any_source)
        ]
        if not chosen[side.name]:
            others = [kind for kind in there if takes(side, kind, times=times, campaigns=ids, any_source=True)]
            raise SideWithoutRows(side=side.name, why=_why_none(others, "add source=… to the side, or --any-source"))
    overlap = _overlapping(chosen)
    return chosen, asked, [f"{' and '.join(overlap)} have rows in common."] if overlap else []


def _why_none(others: Sequence[Kind], remedy: str) -> str:
    """What a side without rows would have from any source."""
    found = dict[str, int]()
    for kind in others:
        found[kind.source] = found.get(kind.source, 0) + kind.rows
    if not found:
        return "no row meets its conditions; `farm results` lists what there is"
    listed = ", ".join(f"{rows:,} {source}" for source, rows in sorted(found.items()))
    return f"its rows are {listed}; {remedy}"


def _overlapping(chosen: Mapping[str, Sequence[Kind]]) -> list[str]:
    names = list(chosen)
    for number, name in enumerate(names):
        for other in names[number + 1 :]:
            if not set(chosen[name]).isdisjoint(chosen[other]):
                return [name, other]
    return []


def _filtered(problems: Problems, question: Question) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which configurations the filters on family and element type leave."""
    of_family = [question.family in (None, family) for family in problems.families]
    wanted = question.dtype
    whole = wanted is not None and ":" in wanted
    of_type = [
        wanted is None or (types if whole else types.split(":")[0]) == wanted.lower() for types in problems.types_known
    ]
    left: np.ndarray[Any, np.dtype[np.bool_]] = (
        np.array(of_family, bool)[problems.family] & np.array(of_type, bool)[problems.types]
    )
    return left


def _nothing_shared(
    first: str, others: Sequence[str], has: Mapping[str, np.ndarray[Any, np.dtype[np.bool_]]]
) -> NothingShared:
    names = (first, *others)
    counts = ", ".join(f"{name} has {int(has[name].sum()):,}" for name in names)
    return NothingShared(sides=" and ".join(names), counts=counts)


# --- one figure for each configuration ---------------------------------------------------------------


def _reduced(rows: Rows, configurations: int) -> Reduced:
    """Energy is derived row by row, as the views derive it: see `farm.measurement.energy_mj`."""
    of, powered = rows.configuration, np.isfinite(rows.power_w)
    sustained = np.where(np.isfinite(rows.runtime_sustained_ms), rows.runtime_sustained_ms, rows.runtime_ms)
    rse = np.zeros(configurations)
    np.maximum.at(rse, of, rows.runtime_rse)
    return Reduced(
        medians_at(rows.runtime_ms, of, configurations),
        rse,
        medians_at(rows.power_w[powered], of[powered], configurations),
        medians_at((rows.power_w * sustained)[powered], of[powered], configurations),
    )


def _at(reduced: Reduced, which: Ints) -> Reduced:
    return Reduced(
        reduced.runtime_ms[which], reduced.runtime_rse[which], reduced.power_w[which], reduced.energy_mj[which]
    )


def _paired(ids: Words, baseline: Reduced, side: Reduced, tie: float) -> Pairs:
    errors = np.sqrt(baseline.runtime_rse**2 + side.runtime_rse**2 + RUN_ERROR**2)
    return Pairs(
        ids=ids,
        baseline=baseline,
        side=side,
        verdict=verdicts(np.log(side.runtime_ms / baseline.runtime_ms), errors, tie=tie),
    )


def _problems_at(problems: Problems, which: Ints) -> Problems:
    return replace(
        problems, **{name: getattr(problems, name)[which] for name in ("m", "n", "k", "types", "beta", "family")}
    )


def _card(kinds: Sequence[tuple[Kind, int]]) -> Gpu | None:
    """The card of a side: None where one of its devices has no figures, or two have different ones."""
    found = {device_type: find_gpu(device_type) for device_type in {kind.device.type for kind, _ in kinds}}
    cards = list(found.values())
    return cards[0] if all(card is cards[0] for card in cards) else None


def _held(name: str, kinds: Sequence[tuple[Kind, int]], has: np.ndarray[Any, np.dtype[np.bool_]]) -> Held:
    card = _card(kinds)
    return Held(
        name=name,
        rows=sum(rows for _, rows in kinds),
        configurations=int(has.sum()),
        devices=tuple(sorted({kind.device for kind, _ in kinds}, key=lambda device: device.uuid)),
        gpu=None if card is None else card.name,
    )


# --- what the pairs say --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _About:
    """What is known of configurations beside their figures: [configurations] each."""

    problems: Problems
    shapes: Ints
    flops: Floats
    traffic: Floats
    groupings: Mapping[str, Grouping]

    @classmethod
    def of(cls, problems: Problems, card: Gpu | None) -> _About:
        flops, traffic = groups.flops_of(problems), groups.bytes_of(problems)
        return cls(
            problems,
            groups.shapes_of(problems),
            flops,
            traffic,
            {
                "by_type": groups.by_type(problems),
                "by_size": groups.by_size(flops),
                "by_bound": groups.by_bound(problems, flops, traffic, card),
            },
        )

    def taken(self, which: np.ndarray[Any, np.dtype[np.bool_]]) -> _About:
        if which.all():
            return self
        return _About(
            _problems_at(self.problems, np.flatnonzero(which)),
            self.shapes[which],
            self.flops[which],
            self.traffic[which],
            {name: Grouping(one.labels, one.which[which]) for name, one in self.groupings.items()},
        )


def _beside(
    pairs: Pairs,
    about: _About,
    held: Held,
    baseline_card: Gpu | None,
    card: Gpu | None,
    *,
    prices: tuple[float | None, float | None],
    grams_per_kwh: float | None,
) -> Beside:
    measures = _Measures.of(pairs, about, baseline_card, card)
    overall = measures.figures()
    assert overall is not None
    return Beside(
        held=held,
        overall=overall,
        **{name: dict(_of_groups(measures, grouping, overall)) for name, grouping in about.groupings.items()},
        money=costs.money(
            about.flops,
            about.shapes,
            pairs.baseline.runtime_ms,
            pairs.side.runtime_ms,
            baseline_price=prices[0],
            price=prices[1],
        ),
        carbon=costs.carbon(
            about.flops,
            about.shapes,
            pairs.baseline.energy_mj,
            pairs.side.energy_mj,
            grams_per_kwh=grams_per_kwh,
        ),
        pairs=pairs,
    )


def _of_groups(measures: _Measures, grouping: Grouping, overall: Figures) -> Iterator[tuple[str, Figures]]:
    for number, label in enumerate(grouping.labels):
        inside = grouping.which == number
        # Where all are in one group, all is known of it already.
        found = overall if inside.all() else measures.taken(inside).figures()
        if found is not None:
            yield label, found


@dataclass(frozen=True, slots=True)
class _Measures:
    """Logarithms of ratios and shares of the roofline: [pairs] each, NaN where one of the two has no such figure."""

    shapes: Ints
    time: Floats
    power: Floats
    energy: Floats
    verdict: Ints
    baseline_roofline: Floats
    roofline: Floats

    @classmethod
    def of(cls, pairs: Pairs, about: _About, baseline_card: Gpu | None, card: Gpu | None) -> _Measures:
        def share(of: Gpu | None, times: Floats) -> Floats:
            return groups.attainable_ms(about.problems, about.flops, about.traffic, of) / times

        return cls(
            about.shapes,
            np.log(pairs.side.runtime_ms / pairs.baseline.runtime_ms),
            np.log(pairs.side.power_w / pairs.baseline.power_w),
            np.log(pairs.side.energy_mj / pairs.baseline.energy_mj),
            pairs.verdict,
            share(baseline_card, pairs.baseline.runtime_ms),
            share(card, pairs.side.runtime_ms),
        )

    def taken(self, which: np.ndarray[Any, np.dtype[np.bool_]]) -> _Measures:
        return _Measures(*(getattr(self, name)[which] for name in self.__slots__))

    def figures(self) -> Figures | None:
        """None where there is no pair."""
        time = ratio_of(self.time, self.shapes)
        if time is None:
            return None
        verdict = np.bincount(self.verdict, minlength=len(Verdict))
        return Figures(
            configurations=len(self.time),
            shapes=time.shapes,
            time=time,
            tflops=_inverse(time),
            power=self._ratio(self.power),
            energy=self._ratio(self.energy),
            faster=int(verdict[Verdict.LESS]),
            ties=int(verdict[Verdict.TIE]),
            slower=int(verdict[Verdict.MORE]),
            unsure=int(verdict[Verdict.UNSURE]),
            baseline_roofline=self._median(self.baseline_roofline),
            roofline=self._median(self.roofline),
        )

    def _ratio(self, log_ratios: Floats) -> Ratio | None:
        known = np.isfinite(log_ratios)
        return ratio_of(log_ratios[known], self.shapes[known])

    def _median(self, shares: Floats) -> float | None:
        known = np.isfinite(shares)
        return float(np.median(medians_by(shares[known], self.shapes[known]))) if known.any() else None


def _inverse(ratio: Ratio) -> Ratio:
    """Of TFLOP/s, as the operations of a configuration are the same on both sides."""
    return replace(
        ratio,
        ratio=1 / ratio.ratio,
        low=None if ratio.high is None else 1 / ratio.high,
        high=None if ratio.low is None else 1 / ratio.low,
    )
