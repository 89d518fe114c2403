"""Compares groups with a baseline on the configurations that both have measured, or that a model predicts for one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sqlalchemy import Engine

from farm.compare import breakdowns, compared_time, forecasts, pair_table, remedies, row_query
from farm.compare.aggregation import Aggregation, CompareQuery, aggregate
from farm.compare.compared_time import ComparedTime
from farm.compare.findings import ConfigurationFacts, Pairs, RatioBounds, summarize
from farm.compare.forecasts import Forecast
from farm.compare.statistics import Bools, Ints, Medians
from farm.compare.summaries import Findings, GroupComparison, GroupSummary, PredictedFindings
from farm.errors import NothingShared
from farm.gpus import Gpu, find_gpu

__all__ = ["CompareQuery", "Comparison", "GroupComparison", "GroupSummary", "aggregate", "compare", "compare_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison: a baseline and the other groups."""

    baseline: GroupSummary
    groups: tuple[GroupComparison, ...]
    # Pairs by the name of the group. A group without such pairs has no entry.
    measured_pairs: Mapping[str, Pairs]
    predicted_pairs: Mapping[str, Pairs]
    # Conditions that differ between the groups, and rows or groups that are left out.
    notes: tuple[str, ...]
    # Differences that hardly matter: versions of programs that compute nothing, and unknown versions.
    minor_notes: tuple[str, ...]
    time: ComparedTime
    query: CompareQuery

    def write_csv(self, engine: Engine, path: Path) -> int:
        """Writes every pair to a CSV file and returns their number. Raises `OSError`."""
        return pair_table.write_csv(engine, self.baseline.name, self._all_pairs(), path)

    def _all_pairs(self) -> Iterator[tuple[str, Pairs]]:
        for group in self.groups:
            for pairs in (self.measured_pairs, self.predicted_pairs):
                if group.name in pairs:
                    yield group.name, pairs[group.name]


def compare(engine: Engine, query: CompareQuery) -> Comparison:
    """Compares what the query names. Raises `BadInput`, `NotFound`, `RegistryUnreachable`."""

    def run(query: CompareQuery) -> Comparison:
        return compare_groups(engine, aggregate(engine, query))

    try:
        return run(query)
    except remedies.REFUSALS as error:
        raise remedies.with_remedy(engine, query, error, run) from None


def compare_groups(engine: Engine, data: Aggregation) -> Comparison:
    """Compares groups whose rows are loaded. Raises `NothingShared`, `RegistryUnreachable`."""
    query, notes = data.query, list(data.notes)
    predictions = dict[str, Forecast]()
    if query.predict_from is not None:
        predictions, about_models = forecasts.forecasts(engine, data, query.predict_from)
        notes += about_models
    baseline, *others = data.medians
    measured = {name: data.has(baseline) & data.has(name) for name in others}
    predicted = {name: _with_a_prediction(data, baseline, name, predictions) for name in others}
    used = np.flatnonzero(np.logical_or.reduce([*measured.values(), *predicted.values()]))
    if not len(used):
        raise _nothing_shared(data, (baseline, *others), notes)
    problems = row_query.problems(engine, data.ids[used]) if data.problems is None else data.problems.at(used)
    order = np.argsort(breakdowns.shapes_of(problems), kind="stable")  # medians by shape then need no sorting
    used, problems = used[order], problems.at(order)
    cards = {name: _card(types) for name, types in data.types.items()}
    facts = ConfigurationFacts.of(problems, cards[baseline])
    groups, measured_pairs, predicted_pairs = list[GroupComparison](), dict[str, Pairs](), dict[str, Pairs]()
    for name in others:
        in_both, with_model = measured[name][used], predicted[name][used]
        if not (in_both | with_model).any():
            if query.by is None:
                raise _nothing_shared(data, (baseline, name), notes)
            notes.append(f"{name} shares no configuration with {baseline} and is left out.")
            continue

        def summary(which: Bools, pairs: Pairs, name: str = name) -> Findings:
            return summarize(
                pairs,
                facts.taken(which),
                (cards[baseline], cards[name]),
                prices=(data.prices.get(baseline), data.prices.get(name)),
                grams_per_kwh=query.grams_per_kwh,
                top=pair_table.most_different(engine, pairs, query.top) if query.top else (),
            )

        found, found_predicted = Findings(), None
        if in_both.any():
            pairs = measured_pairs[name] = _measured_pairs(data, baseline, name, used[in_both])
            found = summary(in_both, pairs)
        if with_model.any():
            pairs = predicted_pairs[name] = _predicted_pairs(data, baseline, name, predictions, used[with_model])
            found_predicted = PredictedFindings(
                **vars(summary(with_model, pairs)),
                baseline_predicted=int(pairs.baseline_predicted.sum()),
                side_predicted=int(pairs.predicted.sum()),
            )
        own = _group_summary(data, name, cards[name], predictions.get(name))
        groups.append(GroupComparison(**vars(own), **vars(found), predicted=found_predicted))
    return Comparison(
        baseline=_group_summary(data, baseline, cards[baseline], predictions.get(baseline)),
        groups=tuple(groups),
        measured_pairs=measured_pairs,
        predicted_pairs=predicted_pairs,
        notes=tuple(notes),
        minor_notes=data.minor_notes,
        time=data.time,
        query=query,
    )


def _with_a_prediction(data: Aggregation, baseline: str, name: str, predictions: Mapping[str, Forecast]) -> Bools:
    """Which configurations one of two groups has measured and a model predicts for the other: [configurations]."""
    found = np.zeros(len(data.ids), bool)
    for one, other in ((baseline, name), (name, baseline)):
        if other in predictions:
            found |= data.has(one) & ~data.has(other) & predictions[other].has
    return found


def _nothing_shared(data: Aggregation, names: Sequence[str], notes: Sequence[str]) -> NothingShared:
    counts = ", ".join(f"{name} has {int(data.has(name).sum()):,}" for name in names)
    why = [note for note in notes if note.startswith(forecasts.NOT_PREDICTED)]
    return NothingShared(sides=" and ".join(names), counts=counts, why="".join(f" {note}" for note in why))


def _measured_pairs(data: Aggregation, baseline: str, name: str, which: Ints) -> Pairs:
    medians = (data.medians[baseline].at(which), data.medians[name].at(which))
    return Pairs.measured(data.ids[which], *medians, data.query.tie)


def _predicted_pairs(
    data: Aggregation, baseline: str, name: str, predictions: Mapping[str, Forecast], which: Ints
) -> Pairs:
    """Pairs with one measured and one predicted figure."""
    of_baseline = ~data.has(baseline)[which]

    def figures(group: str, lacks: Bools, bound: str) -> Medians:
        own = data.medians[group].at(which)
        if group not in predictions:
            return own
        forecast: Medians = getattr(predictions[group], bound).at(which)
        return Medians(*(np.where(lacks, getattr(forecast, n), getattr(own, n)) for n in Medians.__slots__))

    bounds = ("low", "middle", "high")
    first = {bound: figures(baseline, of_baseline, bound) for bound in bounds}
    other = {bound: figures(name, ~of_baseline, bound) for bound in bounds}
    return Pairs.with_a_prediction(
        data.ids[which],
        first["middle"],
        other["middle"],
        of_baseline,
        RatioBounds(min=(first["high"], other["low"]), max=(first["low"], other["high"])),
        data.query.tie,
    )


def _card(types: Sequence[str]) -> Gpu | None:
    """The card of a group: None where a type has no data sheet, or types are of different cards."""
    cards = [find_gpu(device_type) for device_type in types]
    return cards[0] if cards and all(card is cards[0] for card in cards) else None


def _group_summary(data: Aggregation, name: str, card: Gpu | None, forecast: Forecast | None) -> GroupSummary:
    kinds = data.kinds_by_group[name]
    return GroupSummary(
        name=name,
        rows=sum(rows for _, rows in kinds),
        configurations=int(data.has(name).sum()),
        missing=int(data.missing(name).sum()),
        protocols=compared_time.protocols_of(kinds),
        devices=tuple(sorted({kind.device for kind, _ in kinds}, key=lambda device: device.uuid)),
        gpu=None if card is None else card.name,
        forecast=None if forecast is None else forecast.summary,
    )
