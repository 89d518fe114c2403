"""What sides lack, by the champions of their types: predictions with bounds, told apart from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from farm import registry
from farm.compare import reading
from farm.compare.aggregation import Gathered
from farm.compare.sides import Side
from farm.compare.statistics import Bools, Floats, Ints, Reduced
from farm.db.columns import Words
from farm.errors import ModelRefused, NotPredictable
from farm.measurement import Source
from farm.registry import Conditions, ModelInfo, Protocol
from farm.settings import settings

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "Nothing is predicted of"
"""How notes begin that say why."""

AT_ONCE = 100_000
"""Configurations that a model is asked about in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the champion of a side's type says of configurations that the side lacks, and what it does not say."""

    model: str
    version: str
    device_type: str
    # Of the rows that it learned from; None where it does not say.
    sources: str | None
    # Where those rows come from and how they were measured; None where the version does not say.
    conditions: Conditions | None
    # champion, or challenger where the type has no champion.
    standing: str
    # Configurations that it predicted; that it has not learned the family, types or layout of; and that lie outside of what was
    # measured, which are left out.
    predicted: int
    not_learned: int
    outside: int
    # Median over the predictions of how far above the predicted time its upper bound is, in %; None where it has no bounds.
    error_pct: float | None
    # [configurations] of the comparison, NaN where nothing is predicted; `low` and `high` by the model's bounds.
    middle: Reduced = field(repr=False)
    low: Reduced = field(repr=False)
    high: Reduced = field(repr=False)

    @property
    def has(self) -> Bools:
        found: Bools = np.isfinite(self.middle.runtime_ms)
        return found


def forecasts(engine: Engine, gathered: Gathered, uri: str) -> tuple[dict[str, Forecast], list[str]]:
    """By the names of sides; and notes on the sides of which nothing can be predicted, and why.

    A model whose protocol differs from that of the rows that its predictions would be compared with predicts nothing, unless
    protocols are mixed.
    """
    found, notes, loaded = dict[str, Forecast](), list[str](), dict[str, registry.Model]()
    of_another = dict[str, _OtherProtocol]()
    for name in gathered.sides:
        wanted = _wanted(gathered, name)
        if not len(wanted):
            continue
        why = _why_not(gathered.sides[name], gathered.types[name], gathered.champions)
        if why is not None:
            notes.append(f"{NOTHING} {name}: {why}.")
            continue
        (device_type,) = gathered.types[name]
        champion = gathered.champions[device_type]
        rows = [one for other in _against(gathered, name) for one in gathered.protocols[other]]
        if not registry.same_protocols(champion.conditions, rows):
            of_another.setdefault(device_type, _OtherProtocol(champion, rows)).sides.append(name)
            if not gathered.question.mix_protocols:
                continue
        try:
            if device_type not in loaded:
                loaded[device_type] = registry.load(uri, champion, registry.Trust(settings(), engine))
            one = _forecast(engine, gathered.ids, wanted, loaded[device_type], champion)
        except (NotPredictable, ModelRefused) as error:
            notes.append(f"{NOTHING} {name}: {error}")
            continue
        found[name] = one
        notes += _left_out(name, one)
    notes += [other.note(mixed=gathered.question.mix_protocols) for other in of_another.values()]
    return found, notes


@dataclass(slots=True)
class _OtherProtocol:
    """A model whose protocol differs from that of the rows it would be compared with, or is unknown."""

    model: ModelInfo
    # The protocols of the rows, and the sides of which it would predict.
    rows: Sequence[Protocol]
    sides: list[str] = field(default_factory=list)

    def note(self, *, mixed: bool) -> str:
        own = registry.protocols_text(self.model.conditions.protocols if self.model.conditions else ())
        said = (
            f"{self.model.name} v{self.model.version} learned from rows of another protocol ({own}) than that of the "
            f"compared rows ({registry.protocols_text(self.rows)})"
        )
        if mixed:
            return f"MIXED protocols: {said}."
        return f"{NOTHING} {' and '.join(self.sides)}: {said}. --mix-protocols predicts it anyway, labelled."


def _wanted(gathered: Gathered, name: str) -> Ints:
    """What a side lacks and is held against: of the baseline what any other has, else what the baseline has."""
    there = np.logical_or.reduce([gathered.has(other) for other in _against(gathered, name)])
    return np.flatnonzero(there & ~gathered.has(name))


def _against(gathered: Gathered, name: str) -> list[str]:
    """The sides that a side is compared with: of the baseline all others, else the baseline."""
    first, *others = gathered.sides
    return others if name == first else [first]


def _why_not(side: Side, types: tuple[str, ...], champions: Mapping[str, ModelInfo]) -> str | None:
    beyond = [f"{key}={value}" for key, value in side.conditions().items() if (key, value) != ("source", "measured")]
    if beyond:
        return f"a model is of a device type, and tells nothing of {', '.join(beyond)} apart"
    if len(types) != 1:
        return f"its devices are of several types ({', '.join(types)})" if types else "it has no device"
    if types[0] not in champions:
        known = ", ".join(sorted(champions)) or "none"
        return f"there is no model of {types[0]} (types with one: {known}); `farm train {types[0]}` makes one"
    return None


def _left_out(name: str, one: Forecast) -> list[str]:
    said = f"{one.model} v{one.version}"
    notes = list[str]()
    if one.standing != registry.CHAMPION:
        notes.append(f"{said} is a {one.standing} and not the champion: {one.device_type} has none.")
    if one.sources not in (None, Source.MEASURED):
        notes.append(f"{said} learned from rows that are {one.sources}.")
    if one.not_learned:
        notes.append(f"{said} has not learned {one.not_learned:,} of the configurations that {name} lacks.")
    if one.outside:
        notes.append(
            f"{one.outside:,} predictions of {said} lie outside of what was measured on that type and are left out."
        )
    return notes


_FIGURES = ("runtime_ms", "power_w", "energy_mj")


def _forecast(engine: Engine, ids: Words, wanted: Ints, model: registry.Model, champion: ModelInfo) -> Forecast:
    """Raises `NotPredictable`."""
    import pandas as pd

    asked = reading.described(engine, ids[wanted]).to_pandas()
    learned = _learned(model, asked)
    known = asked[learned]
    answers = [
        registry.predict_table(model, known.iloc[start : start + AT_ONCE]) for start in range(0, len(known), AT_ONCE)
    ]
    answered = pd.concat(answers, ignore_index=True) if answers else pd.DataFrame(columns=[*registry.ANSWERS])
    inside = (answered["outside"] == "").to_numpy(bool) if "outside" in answered else np.ones(len(answered), bool)
    at = wanted[learned][inside]
    said = answered[inside]

    def placed(suffix: str) -> Reduced:
        columns = {name: np.full(len(ids), np.nan) for name in _FIGURES}
        for name, column in columns.items():
            if f"{name}{suffix}" in said:  # models of older versions of the farm give no bounds
                column[at] = said[f"{name}{suffix}"].to_numpy(np.float64)
        exact = np.zeros(len(ids))
        return Reduced(columns["runtime_ms"], exact, columns["power_w"], columns["energy_mj"])

    middle, low, high = placed(""), placed("_low"), placed("_high")
    return Forecast(
        model=champion.name,
        version=champion.version,
        device_type=champion.device_type,
        sources=champion.sources,
        conditions=champion.conditions,
        standing=champion.standing,
        predicted=len(at),
        not_learned=int((~learned).sum()),
        outside=int((~inside).sum()),
        error_pct=_median_pct(high.runtime_ms[at] / middle.runtime_ms[at]),
        middle=middle,
        low=low,
        high=high,
    )


def _learned(model: registry.Model, asked: pd.DataFrame) -> Bools:
    """Which rows are of families, types and layouts that the model knows."""
    pairs = {
        f"{family} {types} {layout}"
        for family, known in model.families.items()
        for types, layouts in known["layouts"].items()
        for layout in layouts
    }
    own = asked["family"] + " " + asked["ab"] + ":" + asked["cd"] + ":" + asked["acc"] + " " + asked["layout"]
    found: Bools = own.isin(pairs).to_numpy(bool)
    return found


def _median_pct(factors: Floats) -> float | None:
    known = factors[np.isfinite(factors)]
    return 100 * (float(np.median(known)) - 1) if len(known) else None
