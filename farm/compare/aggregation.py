"""What a comparison is about: its sides settled, their rows read and reduced to one figure for each configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Engine

from farm.compare import comparable, reading
from farm.compare.groups import Problems
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
    types_of,
)
from farm.compare.statistics import TIE, Bools, Reduced, medians_at
from farm.db import campaigns
from farm.db.columns import Words
from farm.errors import BadInput, SideWithoutRows
from farm.gemm import ElementTypes
from farm.kernels.families import family_named
from farm.registry import ModelInfo, Protocol, answering_models


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
    # So many configurations of each side that differ most in time are listed.
    top: int = 0
    # The URI of a model registry: what a side lacks is predicted by the champion of its type. None: nothing is.
    predict_from: str | None = None
    # Predictions of models that learned from rows of other protocols than those that are compared are used too.
    mix_protocols: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The sides by name, the baseline first. Figures are [configurations], in the order of `ids`."""

    question: Question
    sides: Mapping[str, Side]
    # What is compared, by kinds of rows and how many there are of each; none of a side without rows.
    held: Mapping[str, Sequence[tuple[Kind, int]]]
    # The device types of its rows, or, without any, those that a side means.
    types: Mapping[str, tuple[str, ...]]
    ids: Words
    reduced: Mapping[str, Reduced]
    # How the rows of each side were measured; none where nothing is predicted.
    protocols: Mapping[str, Sequence[Protocol]]
    # Of every id where problems filtered the rows, else not read yet.
    problems: Problems | None
    prices: Mapping[str, float]
    notes: tuple[str, ...]
    minor_notes: tuple[str, ...]
    # By device type the version that answers, of the registry that the question names; none where it names none.
    champions: Mapping[str, ModelInfo]
    # Every row that was read, and the kinds that it counts.
    rows: Rows
    kinds: Sequence[Kind]

    def has(self, name: str) -> Bools:
        """Which configurations a side has: [configurations]."""
        found: Bools = np.isfinite(self.reduced[name].runtime_ms)
        return found

    def missing(self, name: str) -> Bools:
        """Which configurations another side has and this one has not: [configurations]."""
        others = [self.has(other) for other in self.reduced if other != name]
        found: Bools = np.logical_or.reduce(others) & ~self.has(name)
        return found


def gather(engine: Engine, question: Question, *, filling: bool = False) -> Gathered:
    """Reads the rows that a question is about. Raises `BadInput`, `NotFound`, `RegistryUnreachable`.

    A side of a type that has a champion, where the question is for predictions, needs no rows, and no device. `filling` takes sides
    without rows too, and tells rows apart by the campaign that they were measured for.
    """
    if bool(question.sides) == (question.by is not None) or len(question.sides) == 1:
        raise BadInput(
            detail="Name two or more groups, as in: farm compare GROUP GROUP; or say --by type, host, device, day …"
        )
    if len(question.sides) > MOST_SIDES:
        raise BadInput(detail=f"{len(question.sides)} groups; {MOST_SIDES} can be compared at a time.")
    if len(set(question.sides)) < len(question.sides):
        raise BadInput(detail="Two groups are the same.")
    _check_filters(question)
    uri = question.predict_from
    champions = {} if uri is None else {model.device_type: model for model in answering_models(uri)}
    chosen = _choose(engine, question, champions, filling)
    prices = prices_of(question.prices, list(chosen.kinds))
    wanted = list(dict.fromkeys(kind for kinds in chosen.kinds.values() for kind in kinds))
    if not wanted:
        raise SideWithoutRows(
            side=next(iter(chosen.kinds)), why="no row meets its conditions, and the others have none"
        )
    rows = reading.rows(engine, wanted, chosen.asked)
    problems: Problems | None = None
    if question.family is not None or question.dtype is not None:
        problems = reading.problems(engine, rows.ids)
        rows = rows.taken(_filtered(problems, question)[rows.configuration])
    counts = np.bincount(rows.kind, minlength=len(wanted))
    of_side = {name: set(kinds) for name, kinds in chosen.kinds.items()}
    mine = {name: np.array([kind in kinds for kind in wanted]) for name, kinds in of_side.items()}
    held = {
        name: [(kind, int(n)) for kind, n, own in zip(wanted, counts, of, strict=True) if own and n]
        for name, of in mine.items()
    }
    for name, kinds in held.items():
        if not kinds and of_side[name]:
            raise SideWithoutRows(side=name, why="none of its rows is of that --family or --dtype")
    measured = {name: kinds for name, kinds in held.items() if kinds}
    notes = comparable.refuse(measured, mixed=question.mixed)
    labels, minor = comparable.labels(measured)
    return Gathered(
        question=question,
        sides=chosen.sides,
        held=held,
        types={
            name: tuple(sorted({kind.device.type for kind, _ in held[name]})) or types_of(side, chosen.devices)
            for name, side in chosen.sides.items()
        },
        ids=rows.ids,
        reduced={name: _reduced(rows.taken(of[rows.kind]), len(rows.ids)) for name, of in mine.items()},
        protocols={name: _protocols(kinds) for name, kinds in held.items()} if uri is not None else {},
        problems=problems,
        prices=prices,
        notes=(*chosen.notes, *notes, *labels),
        minor_notes=tuple(minor),
        champions=champions,
        rows=rows,
        kinds=wanted,
    )


def kinds_of_sides(engine: Engine, question: Question) -> Mapping[str, Sequence[Kind]]:
    """The kinds of rows of each side, none of a side without rows. Raises `NotFound`."""
    return _choose(engine, question, (), filling=True).kinds


def _protocols(kinds: Sequence[tuple[Kind, int]]) -> list[Protocol]:
    return [
        Protocol.of(
            l2=kind.l2,
            timed=bool(kind.timed),
            operands=kind.distribution,
            clocks=kind.clocks,
            source=kind.source,
            provenance=kind.device.provenance or kind.environment.get("provenance"),
            rows=rows,
        )
        for kind, rows in kinds
    ]


# --- which rows ------------------------------------------------------------------------------------


def _check_filters(question: Question) -> None:
    """Raises `BadInput` for a family or an element type that does not exist."""
    if question.family is not None:
        family_named(question.family)
    if question.dtype is not None:
        ElementTypes.parse(question.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    sides: dict[str, Side]
    kinds: dict[str, list[Kind]]
    devices: list[Device]
    asked: Asked
    notes: list[str]


def _choose(engine: Engine, question: Question, predictable: Collection[str], filling: bool) -> _Chosen:
    """The kinds of rows of each side, and notes. Raises `NotFound` for what is not there."""
    everywhere = ",".join(
        f"{key}={value}"
        for key, value in (("type", question.device_type), ("campaign", question.campaign))
        if value is not None
    )
    # One snapshot: rows that land meanwhile may be of devices and environments that were not there.
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        devices = reading.devices(connection)
        environments = reading.environments(connection)
        filters = settle(parse(everywhere), devices) if everywhere else Side(name="")
        sides = [settle(parse(name), devices, predictable) for name in question.sides]
        for side in sides:
            check_environment(side, environments.values())
        names = {side.campaign for side in sides} - {None}
        only = None if question.campaign is None else set(campaigns.repetitions(connection, question.campaign))
        ids: dict[str, int] = {name: campaigns.find(connection, name)["id"] for name in names if name is not None}
        times = times_of(sides)
        asked = Asked(
            campaigns=bool(ids) or only is not None or filling,
            times=tuple(times),
            days=question.by == "day",
            protocols=question.predict_from is not None,
            short_rounds=reading.has_short_rounds(connection),
            overlaps=reading.has_overlaps(connection),
        )
        there = reading.kinds(connection, devices, environments, asked)
    # The source is a matter of the sides.
    of_every = replace(filters, campaign=None)
    there = [
        kind
        for kind in there
        if takes(of_every, kind, campaigns=ids, any_source=True) and (only is None or kind.campaign_id in only)
    ]
    if question.by is not None:
        own = [kind for kind in there if takes(Side(name=""), kind, campaigns=ids, any_source=question.any_source)]
        if not own:
            raise SideWithoutRows(side=f"--by {question.by}", why=_why_none(there, "add --any-source"))
        order, of, without = sides_by(question.by, own)
        if len(order) < 2:
            raise BadInput(
                detail=f"--by {question.by} makes one group, {order[0]}; nothing is there to compare it with."
            )
        left = [f"{without:,} rows do not tell their {question.by} and are left out."] if without else []
        by = {name: narrowed(side_by(question.by, name), filters) for name in order}
        return _Chosen(sides=by, kinds={name: of[name] for name in order}, devices=devices, asked=asked, notes=left)
    chosen, notes, without_rows = dict[str, list[Kind]](), list[str](), dict[str, str]()
    for side in sides:
        chosen[side.name] = [
            kind for kind in there if takes(side, kind, times=times, campaigns=ids, any_source=question.any_source)
        ]
        if not chosen[side.name]:
            others = [kind for kind in there if takes(side, kind, times=times, campaigns=ids, any_source=True)]
            why = _why_none(others, "add source=… to the group, or --any-source")
            without_rows[side.name] = why
            notes.append(f"{side.name} has no rows to compare: {why}.")
    if without_rows and not (filling or predictable):
        first, *too = without_rows
        also = "".join(f" {name} has none either: {without_rows[name]}." for name in too)
        raise SideWithoutRows(side=first, why=without_rows[first], also=also)
    overlap = _overlapping(chosen)
    notes += [f"{' and '.join(overlap)} have rows in common."] if overlap else []
    named = {side.name: narrowed(side, filters) for side in sides}
    return _Chosen(sides=named, kinds=chosen, devices=devices, asked=asked, notes=notes)


def side_by(key: str, value: str) -> Side:
    """The side of one value of `--by`."""
    if key in ("type", "host", "device"):
        own: dict[str, Any] = {key: value}
        return Side(name=value, **own)
    return Side(name=value, environment=((key, value),))


def narrowed(side: Side, filters: Side) -> Side:
    """The side with the conditions that hold for every side."""
    return replace(side, type=side.type or filters.type, campaign=side.campaign or filters.campaign)


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


def _filtered(problems: Problems, question: Question) -> Bools:
    """Which configurations the filters on family and element type leave."""
    of_family = [question.family in (None, family) for family in problems.families]
    wanted = question.dtype
    whole = wanted is not None and ":" in wanted
    of_type = [
        wanted is None or (types if whole else types.split(":")[0]) == wanted.lower() for types in problems.types_known
    ]
    left: Bools = np.array(of_family, bool)[problems.family] & np.array(of_type, bool)[problems.types]
    return left


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
