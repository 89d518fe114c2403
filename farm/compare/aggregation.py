"""Loads the rows of a comparison: resolves its groups and aggregates their rows to one figure per configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from sqlalchemy import Engine

from farm.compare import compared_time, compatibility, row_query
from farm.compare.breakdowns import Problems
from farm.compare.compared_time import ComparedTime
from farm.compare.groups import (
    MAX_GROUPS,
    Group,
    RowKind,
    check_environment,
    groups_by,
    includes,
    parse,
    parse_prices,
    resolve,
    times_of,
    types_of,
)
from farm.compare.row_query import MeasurementRows, RowFilter
from farm.compare.statistics import TIE, Bools, Medians, medians_at
from farm.compare.summaries import ComparedDevice
from farm.db import campaigns
from farm.db.arrow_columns import Words
from farm.errors import BadInput, BadParameter, SideWithoutRows
from farm.gemm import ElementTypes
from farm.kernels.families import family_named
from farm.protocols import Time
from farm.registry import ModelInfo, Protocol, answering_models


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery:
    """A request for a comparison: `groups` with the baseline first, or `by`, which makes a group of each value of a key."""

    groups: Sequence[str] = ()
    by: str | None = None
    # Conditions on the rows of every group.
    campaign: str | None = None
    device_type: str | None = None
    family: str | None = None
    dtype: str | None = None
    any_source: bool = False
    mixed: bool = False
    tie: float = TIE
    prices: Sequence[str] = ()
    grams_per_kwh: float | None = None
    # Number of configurations per group to list, those that differ most in time.
    top: int = 0
    # URI of the model registry whose champions predict what a group lacks. None: no predictions.
    predict_from: str | None = None
    # Which of both times of a GEMM. None: that of the rows' protocol, or one that all rows have.
    time: Time | None = None
    # Also use models that learned from rows of other measuring protocols.
    mix_protocols: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The groups by name, the baseline first. Arrays are [configurations], in the order of `ids`."""

    query: CompareQuery
    groups: Mapping[str, Group]
    # Kinds of rows with their numbers of rows; empty for a group without rows.
    kinds_by_group: Mapping[str, Sequence[tuple[RowKind, int]]]
    # The device types of its rows. Of a group without rows, those that its conditions mean.
    types: Mapping[str, tuple[str, ...]]
    ids: Words
    time: ComparedTime
    medians: Mapping[str, Medians]
    # How the rows of each group were measured; empty without predictions.
    protocols: Mapping[str, Sequence[Protocol]]
    # Of every id, where the query filters by problem. Otherwise not loaded yet.
    problems: Problems | None
    prices: Mapping[str, float]
    notes: tuple[str, ...]
    minor_notes: tuple[str, ...]
    # By device type the model version that predicts; empty without predictions.
    champions: Mapping[str, ModelInfo]
    # All loaded rows, and the kinds that `rows.kind` numbers.
    rows: MeasurementRows
    kinds: Sequence[RowKind]

    def has(self, name: str) -> Bools:
        """Which configurations the group has measured: [configurations]."""
        found: Bools = np.isfinite(self.medians[name].runtime_ms)
        return found

    def missing(self, name: str) -> Bools:
        """Which configurations another group has and this one lacks: [configurations]."""
        others = [self.has(other) for other in self.medians if other != name]
        found: Bools = np.logical_or.reduce(others) & ~self.has(name)
        return found


def aggregate(engine: Engine, query: CompareQuery, *, filling: bool = False) -> Aggregation:
    """Loads the rows that a query names. Raises `BadInput`, `NotFound`, `RegistryUnreachable`.

    With predictions, a group of a type that has a champion needs neither rows nor a device.

    Args:
        filling: Accept groups without rows, and separate rows by the campaign that they were measured for.
    """
    if bool(query.groups) == (query.by is not None) or len(query.groups) == 1:
        raise BadInput(
            detail="Name two or more groups, as in: farm compare GROUP GROUP; or group by type, host, device, day, protocol …"
        )
    if len(query.groups) > MAX_GROUPS:
        raise BadInput(detail=f"{len(query.groups)} groups; {MAX_GROUPS} can be compared at a time.")
    if len(set(query.groups)) < len(query.groups):
        raise BadInput(detail="Two groups are the same.")
    _check_filters(query)
    uri = query.predict_from
    champions = {} if uri is None else {model.device_type: model for model in answering_models(uri)}
    chosen = _choose(engine, query, champions, filling)
    prices = parse_prices(query.prices, list(chosen.kinds))
    wanted = list(dict.fromkeys(kind for kinds in chosen.kinds.values() for kind in kinds))
    if not wanted:
        raise SideWithoutRows(
            side=next(iter(chosen.kinds)), why="no row meets its conditions, and no other group has rows"
        )
    rows = row_query.rows(engine, wanted, chosen.filter)
    problems: Problems | None = None
    if query.family is not None or query.dtype is not None:
        problems = row_query.problems(engine, rows.ids)
        rows = rows.taken(_filtered(problems, query)[rows.configuration])
    own = {name: np.array([kind in kinds for kind in wanted]) for name, kinds in chosen.kinds.items()}
    kinds_by_group = _counted(rows, wanted, own)
    for name, kinds in kinds_by_group.items():
        if not kinds and chosen.kinds[name]:
            raise SideWithoutRows(side=name, why="none of its rows has that family or those types")
    loaded = {name: kinds for name, kinds in kinds_by_group.items() if kinds}
    time = compared_time.choose(rows, wanted, loaded, query.time)
    rows = time.of(rows, wanted)
    timed = np.isfinite(rows.runtime_ms)
    without = {name: int((~timed & of_group[rows.kind]).sum()) for name, of_group in own.items()}
    rows = rows.taken(timed)
    kinds_by_group = _counted(rows, wanted, own)
    measured = {name: kinds for name, kinds in kinds_by_group.items() if kinds}
    notes = compared_time.notes_on(time, loaded, without)
    notes += compatibility.require_compatible(measured, mixed=query.mixed, common_time=time.common)
    labels, minor = compatibility.difference_notes(measured)
    return Aggregation(
        query=query,
        groups=chosen.groups,
        kinds_by_group=kinds_by_group,
        types={
            name: tuple(sorted({kind.device.type for kind, _ in kinds_by_group[name]}))
            or types_of(group, chosen.devices)
            for name, group in chosen.groups.items()
        },
        ids=rows.ids,
        time=time,
        medians={name: _medians(rows.taken(of_group[rows.kind]), len(rows.ids)) for name, of_group in own.items()},
        protocols={name: _protocols(kinds) for name, kinds in kinds_by_group.items()} if uri is not None else {},
        problems=problems,
        prices=prices,
        notes=(*chosen.notes, *notes, *labels),
        minor_notes=tuple(minor),
        champions=champions,
        rows=rows,
        kinds=wanted,
    )


def kinds_by_group(engine: Engine, query: CompareQuery) -> Mapping[str, Sequence[RowKind]]:
    """The kinds of rows of each group; empty for a group without rows. Raises `NotFound`."""
    return _choose(engine, query, (), filling=True).kinds


def _protocols(kinds: Sequence[tuple[RowKind, int]]) -> list[Protocol]:
    return [
        Protocol.of(
            name=kind.protocol,
            l2=kind.l2,
            operands=kind.distribution,
            clocks=kind.clocks,
            source=kind.source,
            provenance=kind.device.provenance or kind.environment.get("provenance"),
            rows=rows,
        )
        for kind, rows in kinds
    ]


# --- which rows ------------------------------------------------------------------------------------


def _check_filters(query: CompareQuery) -> None:
    """Raises `BadInput` for an unknown family or element type."""
    if query.family is not None:
        family_named(query.family)
    if query.dtype is not None:
        ElementTypes.parse(query.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    groups: dict[str, Group]
    kinds: dict[str, list[RowKind]]
    devices: list[ComparedDevice]
    filter: RowFilter
    notes: list[str]


def _choose(engine: Engine, query: CompareQuery, predictable: Collection[str], filling: bool) -> _Chosen:
    """The kinds of rows of each group, and notes. Raises `NotFound` for unknown names."""
    everywhere = ",".join(
        f"{key}={value}"
        for key, value in (("type", query.device_type), ("campaign", query.campaign))
        if value is not None
    )
    # One snapshot: rows that land meanwhile may have new devices and environments.
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        devices = row_query.devices(connection)
        environments = row_query.environments(connection)
        filters = resolve(parse(everywhere), devices) if everywhere else Group(name="")
        groups = [resolve(parse(name), devices, predictable) for name in query.groups]
        for group in groups:
            check_environment(group, environments.values())
        names = {group.campaign for group in groups} - {None}
        only = None if query.campaign is None else set(campaigns.repetitions(connection, query.campaign))
        ids: dict[str, int] = {name: campaigns.find(connection, name)["id"] for name in names if name is not None}
        of_groups = set(ids.values()) if groups and all(group.campaign is not None for group in groups) else None
        limits = [limit for limit in (only, of_groups) if limit is not None]
        times = times_of(groups)
        row_filter = RowFilter(
            campaigns=bool(ids) or only is not None or filling,
            times=tuple(times),
            days=query.by == "day",
            only_campaigns=tuple(sorted(set.intersection(*limits))) if limits else None,
            excluded=row_query.excluded_rows(connection),
        )
        known = row_query.kinds(connection, devices, environments, row_filter)
    # Each group has its own condition on the source.
    of_every = replace(filters, campaign=None)
    known = [
        kind
        for kind in known
        if includes(of_every, kind, campaigns=ids, any_source=True) and (only is None or kind.campaign_id in only)
    ]
    if query.by is not None:
        own = [kind for kind in known if includes(Group(name=""), kind, campaigns=ids, any_source=query.any_source)]
        if not own:
            raise SideWithoutRows(side=f"The grouping by {query.by}", why=_why_none(known, "add --any-source"))
        order, kinds, without = groups_by(query.by, own)
        if len(order) < 2:
            raise BadParameter(
                parameter="by",
                value=query.by,
                why=f"it makes only one group, {order[0]}. A comparison needs two.",
            )
        notes = [f"{without:,} rows have no {query.by} and are left out."] if without else []
        by = {name: narrow(group_of_value(query.by, name), filters) for name in order}
        return _Chosen(
            groups=by, kinds={name: kinds[name] for name in order}, devices=devices, filter=row_filter, notes=notes
        )
    chosen, without_rows, notes = dict[str, list[RowKind]](), dict[str, str](), list[str]()
    for group in groups:
        chosen[group.name] = [
            kind for kind in known if includes(group, kind, times=times, campaigns=ids, any_source=query.any_source)
        ]
        if not chosen[group.name]:
            others = [kind for kind in known if includes(group, kind, times=times, campaigns=ids, any_source=True)]
            why = _why_none(others, "add source=… to the group, or --any-source")
            without_rows[group.name] = why
            notes.append(f"{group.name} has no rows to compare: {why}.")
    if without_rows and not (filling or predictable):
        first, *too = without_rows
        also = "".join(f" {name} has none either: {without_rows[name]}." for name in too)
        raise SideWithoutRows(side=first, why=without_rows[first], also=also)
    overlap = _overlapping(chosen)
    notes += [f"{' and '.join(overlap)} have rows in common."] if overlap else []
    named = {group.name: narrow(group, filters) for group in groups}
    return _Chosen(groups=named, kinds=chosen, devices=devices, filter=row_filter, notes=notes)


def group_of_value(key: str, value: str) -> Group:
    """The group of one value of `--by`."""
    if key in ("type", "host", "device", "protocol"):
        own: dict[str, Any] = {key: value}
        return Group(name=value, **own)
    return Group(name=value, environment=((key, value),))


def narrow(group: Group, filters: Group) -> Group:
    """The group with the conditions of every group added."""
    return replace(group, type=group.type or filters.type, campaign=group.campaign or filters.campaign)


def _why_none(others: Sequence[RowKind], remedy: str) -> str:
    """Why a group has no rows: `others` are its rows of other sources."""
    found = Counter[str]()
    for kind in others:
        found[kind.source] += kind.rows
    if not found:
        return "no row meets its conditions; `farm results` lists the rows"
    listed = ", ".join(f"{rows:,} {source}" for source, rows in sorted(found.items()))
    return f"its rows are {listed}; {remedy}"


def _overlapping(chosen: Mapping[str, Sequence[RowKind]]) -> tuple[str, str] | tuple[()]:
    """The first two groups that have rows in common."""
    pairs = combinations(chosen, 2)
    return next(((one, other) for one, other in pairs if not set(chosen[one]).isdisjoint(chosen[other])), ())


def _filtered(problems: Problems, query: CompareQuery) -> Bools:
    """Which configurations pass the filters on family and element type: [configurations]."""
    of_family = [query.family in (None, family) for family in problems.families]
    wanted = query.dtype
    whole = wanted is not None and ":" in wanted
    of_type = [
        wanted is None or (types if whole else types.split(":")[0]) == wanted.lower() for types in problems.types_known
    ]
    left: Bools = np.array(of_family, bool)[problems.family] & np.array(of_type, bool)[problems.types]
    return left


# --- one figure for each configuration ---------------------------------------------------------------


def _counted(
    rows: MeasurementRows, wanted: Sequence[RowKind], own: Mapping[str, Bools]
) -> dict[str, list[tuple[RowKind, int]]]:
    """By group its kinds of rows with their numbers of rows. `own` says which kinds a group has: [kinds]."""
    counts = np.bincount(rows.kind, minlength=len(wanted))
    return {
        name: [(kind, int(n)) for kind, n, is_own in zip(wanted, counts, of_group, strict=True) if is_own and n]
        for name, of_group in own.items()
    }


def _medians(rows: MeasurementRows, configurations: int) -> Medians:
    """Medians by configuration. Energy is computed per row, as in `farm.measurement.energy_mj`."""
    of, powered = rows.configuration, np.isfinite(rows.power_w)
    burst, with_burst = rows.runtime_burst_ms, np.isfinite(rows.runtime_burst_ms)
    rse = np.zeros(configurations)
    np.maximum.at(rse, of, rows.runtime_rse)
    return Medians(
        medians_at(rows.runtime_ms, of, configurations),
        rse,
        medians_at(rows.power_w[powered], of[powered], configurations),
        medians_at((rows.power_w * rows.runtime_settled_ms)[powered], of[powered], configurations),
        medians_at(burst[with_burst], of[with_burst], configurations),
    )
