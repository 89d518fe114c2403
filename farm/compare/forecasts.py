"""Predictions for configurations that groups lack, by the champions of their device types, with bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Engine

from farm import registry
from farm.compare import row_query
from farm.compare.aggregation import Aggregation
from farm.compare.groups import Group
from farm.compare.statistics import Bools, Floats, Ints, Medians
from farm.compare.summaries import ForecastSummary
from farm.db.arrow_columns import Words
from farm.errors import ModelRefused, NotPredictable
from farm.measurement import Source
from farm.protocols import Time
from farm.registry import ModelInfo, Protocol
from farm.registry.predictions import TIME_COLUMNS
from farm.settings import settings

NOT_PREDICTED = "No predictions for"
"""Start of the notes on groups without predictions."""

CONFIGURATIONS_PER_CALL = 100_000
"""Configurations that a model predicts in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A model's predictions for the configurations that a group lacks: [configurations] each, NaN without a prediction."""

    summary: ForecastSummary
    middle: Medians
    # The model's bounds.
    low: Medians
    high: Medians

    @property
    def has(self) -> Bools:
        found: Bools = np.isfinite(self.middle.runtime_ms)
        return found


def forecasts(engine: Engine, data: Aggregation, uri: str) -> tuple[dict[str, Forecast], list[str]]:
    """Forecasts by the names of groups, and notes on groups without predictions.

    A model is used only if its training rows and the rows compared with its predictions were measured by the same protocols,
    or if the query mixes protocols.
    """
    found, notes, loaded = dict[str, Forecast](), list[str](), dict[str, registry.Model]()
    of_another = dict[str, _OtherProtocol]()
    for name in data.groups:
        wanted = _wanted(data, name)
        if not len(wanted):
            continue
        why = _why_not(data.groups[name], data.types[name], data.champions)
        if why is not None:
            notes.append(f"{NOT_PREDICTED} {name}: {why}.")
            continue
        (device_type,) = data.types[name]
        champion = data.champions[device_type]
        rows = [one for other in _against(data, name) for one in data.protocols[other]]
        if not registry.same_protocols(champion.conditions, rows):
            of_another.setdefault(device_type, _OtherProtocol(champion, rows)).groups.append(name)
            if not data.query.mix_protocols:
                continue
        try:
            if device_type not in loaded:
                loaded[device_type] = registry.load(uri, champion, registry.Trust(settings(), engine))
            model = loaded[device_type]
            column = _time_column(model, data.time.time, mixed=data.query.mix_protocols)
            one = _forecast(engine, data.ids, wanted, model, champion, column)
        except (NotPredictable, ModelRefused) as error:
            notes.append(f"{NOT_PREDICTED} {name}: {error}")
            continue
        found[name] = one
        notes += _left_out(name, one.summary)
    notes += [other.note(mixed=data.query.mix_protocols) for other in of_another.values()]
    return found, notes


@dataclass(slots=True)
class _OtherProtocol:
    """A model whose protocol is unknown, or differs from that of the rows that its predictions are compared with."""

    model: ModelInfo
    # The protocols of those rows, and the groups that need the predictions.
    rows: Sequence[Protocol]
    groups: list[str] = field(default_factory=list)

    def note(self, *, mixed: bool) -> str:
        own = registry.protocols_text(self.model.conditions.protocols if self.model.conditions else ())
        model = (
            f"{self.model.name} v{self.model.version} learned from rows of another protocol ({own}) than that of the "
            f"compared rows ({registry.protocols_text(self.rows)})"
        )
        if mixed:
            return f"MIXED protocols: {model}."
        return f"{NOT_PREDICTED} {' and '.join(self.groups)}: {model}. --mix-protocols uses it anyway and labels its predictions."


def _wanted(data: Aggregation, name: str) -> Ints:
    """Configurations that a group lacks and that a group compared with it has."""
    there = np.logical_or.reduce([data.has(other) for other in _against(data, name)])
    return np.flatnonzero(there & ~data.has(name))


def _against(data: Aggregation, name: str) -> list[str]:
    """The groups that a group is compared with: all others for the baseline, otherwise the baseline."""
    first, *others = data.groups
    return others if name == first else [first]


def _why_not(group: Group, types: tuple[str, ...], champions: Mapping[str, ModelInfo]) -> str | None:
    beyond = [f"{key}={value}" for key, value in group.conditions().items() if (key, value) != ("source", "measured")]
    if beyond:
        return f"a model covers a whole device type and cannot separate {', '.join(beyond)}"
    if len(types) != 1:
        return f"its devices are of several types ({', '.join(types)})" if types else "it has no device"
    if types[0] not in champions:
        known = ", ".join(sorted(champions)) or "none"
        return f"there is no model of {types[0]} (types with one: {known}); `farm train {types[0]}` makes one"
    return None


def _left_out(name: str, one: ForecastSummary) -> list[str]:
    model = f"{one.model} v{one.version}"
    notes = list[str]()
    if one.standing != registry.CHAMPION:
        notes.append(f"{model} is a {one.standing} and not the champion: {one.device_type} has none.")
    if one.sources not in (None, Source.MEASURED):
        notes.append(f"{model} learned from {one.sources} rows.")
    if one.not_learned:
        notes.append(f"{model} has not learned {one.not_learned:,} of the configurations that {name} lacks.")
    if one.outside:
        notes.append(
            f"{one.outside:,} predictions of {model} lie outside the measured range of that type and are left out."
        )
    return notes


_FIGURES = ("runtime_ms", "power_w", "energy_mj", "runtime_burst_ms")


def _time_column(model: registry.Model, time: Time | None, *, mixed: bool) -> str:
    """The predicted column of the time that is compared. Raises `NotPredictable` where the model does not know that time.

    Where protocols are mixed, the time of the model's own rows stands for it.
    """
    try:
        model.require_time(time)
    except NotPredictable:
        if not mixed:
            raise
        return TIME_COLUMNS[None]
    return TIME_COLUMNS[time]


def _forecast(
    engine: Engine, ids: Words, wanted: Ints, model: registry.Model, champion: ModelInfo, time_column: str
) -> Forecast:
    """Raises `NotPredictable`."""
    import pandas as pd

    table = row_query.configuration_table(engine, ids[wanted]).to_pandas()
    learned = model.known(table)
    known = table[learned]
    answers = [
        registry.predict_table(model, known.iloc[start : start + CONFIGURATIONS_PER_CALL])
        for start in range(0, len(known), CONFIGURATIONS_PER_CALL)
    ]
    answered = pd.concat(answers, ignore_index=True) if answers else pd.DataFrame(columns=[*registry.ANSWERS])
    timed = answered[time_column].notna().to_numpy(bool)
    inside = timed & (answered["outside"] == "").to_numpy(bool)
    at = wanted[learned][inside]
    predicted = answered[inside]

    def placed(suffix: str) -> Medians:
        columns = {name: np.full(len(ids), np.nan) for name in _FIGURES}
        for name, column in columns.items():
            output = time_column if name == "runtime_ms" else name
            column[at] = predicted[f"{output}{suffix}"].to_numpy(np.float64)
        exact = np.zeros(len(ids))
        return Medians(
            columns["runtime_ms"], exact, columns["power_w"], columns["energy_mj"], columns["runtime_burst_ms"]
        )

    middle, low, high = placed(""), placed("_low"), placed("_high")
    summary = ForecastSummary(
        model=champion.name,
        version=champion.version,
        device_type=champion.device_type,
        sources=champion.sources,
        conditions=champion.conditions,
        standing=champion.standing,
        predicted=len(at),
        not_learned=int((~learned).sum() + (~timed).sum()),
        outside=int((timed & ~inside).sum()),
        error_pct=_median_pct(high.runtime_ms[at] / middle.runtime_ms[at]),
    )
    return Forecast(summary=summary, middle=middle, low=low, high=high)


def _median_pct(factors: Floats) -> float | None:
    known = factors[np.isfinite(factors)]
    return 100 * (float(np.median(known)) - 1) if len(known) else None
