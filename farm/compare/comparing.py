"""Comparing sides: what each of them says beside the baseline, on what was measured, and on what a model fills in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

from farm.compare import groups, pairing, predicting, reading, remedies
from farm.compare.aggregation import Gathered, Question, gather
from farm.compare.findings import NOTHING, About, Bounds, Findings, Pairs, findings
from farm.compare.predicting import Forecast
from farm.compare.sides import Device
from farm.compare.statistics import BOUNDS_CONFIDENCE, CONFIDENCE, Bools, Ints, Reduced
from farm.errors import NothingShared
from farm.gpus import Gpu, find_gpu

__all__ = ["Beside", "Comparison", "Held", "Question", "compare", "compared", "gather"]


_OF_A_DEVICE = ("id", "uuid", "type", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What there is of a side."""

    name: str
    rows: int
    configurations: int
    # Configurations that another side has, and this one has not.
    missing: int
    devices: tuple[Device, ...]
    # None where the makers' figures are not known, or devices are of several types.
    gpu: str | None
    # What a model said where rows are missing; None where none was asked.
    forecast: Forecast | None = None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: getattr(self, name) for name in ("name", "rows", "configurations", "missing", "gpu")
        }
        said = self.forecast
        told: dict[str, Any] | None = None
        if said is not None:
            told = {f.name: getattr(said, f.name) for f in fields(said) if f.repr}
            told["conditions"] = said.conditions and said.conditions.to_json()
        return {
            **found,
            "devices": [{name: getattr(device, name) for name in _OF_A_DEVICE} for device in self.devices],
            "forecast": told,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One side beside the baseline: pairs that were measured on both, and apart from them pairs of which one is predicted."""

    held: Held
    measured: Findings
    predicted: Findings

    def pairs(self) -> Iterator[Pairs]:
        return (found.pairs for found in (self.measured, self.predicted) if found.pairs is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    baseline: Held
    sides: tuple[Beside, ...]
    # What is not the same on all sides though it is compared, and what was left out.
    notes: tuple[str, ...]
    # The same, of what hardly matters: versions of programs that compute nothing, and versions that rows do not tell.
    minor_notes: tuple[str, ...]
    question: Question

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data, but for the pairs; what differs most where the question asked for it."""
        tops = self.question.top > 0
        return {
            "baseline": self.baseline.to_json(),
            "confidence": CONFIDENCE,
            "confidence_of_bounds": BOUNDS_CONFIDENCE,
            "tie": self.question.tie,
            "predicting": self.question.predict_from is not None,
            "notes": list(self.notes),
            "minor_notes": list(self.minor_notes),
            "sides": [
                {
                    **side.held.to_json(),
                    **_findings_json(side.measured, tops),
                    "predicted": _predicted_json(side.predicted, tops),
                }
                for side in self.sides
            ],
        }

    def write_csv(self, engine: Engine, path: Path) -> int:
        """Writes every pair into a CSV file; how many. Raises `OSError`."""
        all_pairs = ((side.held.name, pairs) for side in self.sides for pairs in side.pairs())
        return pairing.write_csv(engine, self.baseline.name, all_pairs, path)


def _findings_json(found: Findings, tops: bool) -> dict[str, Any]:
    return {
        "overall": None if found.overall is None else asdict(found.overall),
        **{
            name: {label: asdict(figures) for label, figures in getattr(found, name).items()}
            for name in ("by_type", "by_size", "by_bound")
        },
        "money_per_pflop": None if found.money is None else asdict(found.money),
        "co2_g_per_pflop": None if found.carbon is None else asdict(found.carbon),
        **({"top": [dict(row) for row in found.top]} if tops else {}),
    }


def _predicted_json(found: Findings, tops: bool) -> dict[str, Any] | None:
    if found.pairs is None:
        return None
    counts = {
        "baseline_predicted": int(found.pairs.baseline_predicted.sum()),
        "side_predicted": int(found.pairs.predicted.sum()),
    }
    return {**_findings_json(found, tops), **counts}


def compare(engine: Engine, question: Question) -> Comparison:
    """Answers the question from the database, and from the registry where it names one. Raises `BadInput`, `NotFound`."""
    try:
        return compared(engine, gather(engine, question))
    except remedies.REFUSALS as error:
        raise remedies.explained(
            engine, question, error, lambda other: compared(engine, gather(engine, other))
        ) from None


def compared(engine: Engine, gathered: Gathered) -> Comparison:
    """The same of what was gathered already. Raises `NothingShared`, `RegistryUnreachable`."""
    question, notes = gathered.question, list(gathered.notes)
    forecasts = dict[str, Forecast]()
    if question.predict_from is not None:
        forecasts, said = predicting.forecasts(engine, gathered, question.predict_from)
        notes += said
    first, *others = gathered.reduced
    shared = {name: gathered.has(first) & gathered.has(name) for name in others}
    filled = {name: _filled(gathered, first, name, forecasts) for name in others}
    used = np.flatnonzero(np.logical_or.reduce([*shared.values(), *filled.values()]))
    if not len(used):
        raise _nothing_shared(gathered, (first, *others), notes)
    problems = reading.problems(engine, gathered.ids[used]) if gathered.problems is None else gathered.problems.at(used)
    order = np.argsort(groups.shapes_of(problems), kind="stable")  # medians by shape need not sort then
    used, problems = used[order], problems.at(order)
    cards = {name: _card(types) for name, types in gathered.types.items()}
    about = About.of(problems, cards[first])
    beside = list[Beside]()
    for name in others:
        in_both, with_model = shared[name][used], filled[name][used]
        if not (in_both | with_model).any():
            if question.by is None:
                raise _nothing_shared(gathered, (first, name), notes)
            notes.append(f"{name} shares no configuration with {first} and is left out.")
            continue

        def found(which: Bools, pairs: Pairs, side: str = name) -> Findings:
            said = findings(
                pairs,
                about.taken(which),
                (cards[first], cards[side]),
                prices=(gathered.prices.get(first), gathered.prices.get(side)),
                grams_per_kwh=question.grams_per_kwh,
            )
            return replace(said, top=pairing.most_different(engine, pairs, question.top)) if question.top else said

        measured = predicted = NOTHING
        if in_both.any():
            measured = found(in_both, _measured(gathered, first, name, used[in_both]))
        if with_model.any():
            predicted = found(with_model, _predicted(gathered, first, name, forecasts, used[with_model]))
        held = _held(gathered, name, cards[name], forecasts.get(name))
        beside.append(Beside(held=held, measured=measured, predicted=predicted))
    baseline = _held(gathered, first, cards[first], forecasts.get(first))
    return Comparison(
        baseline=baseline,
        sides=tuple(beside),
        notes=tuple(notes),
        minor_notes=gathered.minor_notes,
        question=question,
    )


def _filled(gathered: Gathered, first: str, name: str, forecasts: Mapping[str, Forecast]) -> Bools:
    """Which configurations one of the two has measured, and the other has predicted: [configurations]."""
    found = np.zeros(len(gathered.ids), bool)
    for one, other in ((first, name), (name, first)):
        if other in forecasts:
            found |= gathered.has(one) & ~gathered.has(other) & forecasts[other].has
    return found


def _nothing_shared(gathered: Gathered, names: Sequence[str], notes: Sequence[str]) -> NothingShared:
    counts = ", ".join(f"{name} has {int(gathered.has(name).sum()):,}" for name in names)
    why = [note for note in notes if note.startswith(predicting.NOTHING)]
    return NothingShared(sides=" and ".join(names), counts=counts, why="".join(f" {note}" for note in why))


def _measured(gathered: Gathered, first: str, name: str, which: Ints) -> Pairs:
    baseline, side = (gathered.reduced[one].at(which) for one in (first, name))
    return Pairs.measured(gathered.ids[which], baseline, side, gathered.question.tie)


def _predicted(gathered: Gathered, first: str, name: str, forecasts: Mapping[str, Forecast], which: Ints) -> Pairs:
    """Pairs of which exactly one is measured; the other is a model's."""
    of_baseline = ~gathered.has(first)[which]

    def figures(of: str, lacks: Bools, what: str) -> Reduced:
        own = gathered.reduced[of].at(which)
        if of not in forecasts:
            return own
        said: Reduced = getattr(forecasts[of], what).at(which)
        return Reduced(*(np.where(lacks, getattr(said, n), getattr(own, n)) for n in Reduced.__slots__))

    baseline = {what: figures(first, of_baseline, what) for what in ("low", "middle", "high")}
    side = {what: figures(name, ~of_baseline, what) for what in ("low", "middle", "high")}
    return Pairs.with_a_prediction(
        gathered.ids[which],
        baseline["middle"],
        side["middle"],
        of_baseline,
        Bounds(least=(baseline["high"], side["low"]), most=(baseline["low"], side["high"])),
        gathered.question.tie,
    )


def _card(types: Sequence[str]) -> Gpu | None:
    """The card of a side: None where one of its types has no figures, or two have different ones."""
    cards = [find_gpu(device_type) for device_type in types]
    return cards[0] if cards and all(card is cards[0] for card in cards) else None


def _held(gathered: Gathered, name: str, card: Gpu | None, forecast: Forecast | None) -> Held:
    kinds = gathered.held[name]
    return Held(
        name=name,
        rows=sum(rows for _, rows in kinds),
        configurations=int(gathered.has(name).sum()),
        missing=int(gathered.missing(name).sum()),
        devices=tuple(sorted({kind.device for kind, _ in kinds}, key=lambda device: device.uuid)),
        gpu=None if card is None else card.name,
        forecast=forecast,
    )
