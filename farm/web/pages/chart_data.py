"""The charts of pages, as figures of Plotly; `charts.js` draws them in the colours of the page (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from farm.api.campaigns import LearningPoint
from farm.api.models import CostOn
from farm.charts import plotly_renderer
from farm.charts.chart import Axis, Chart, Rule, Scale, Series
from farm.protocols import Time
from farm.registry import Objective
from farm.registry.predictions import TIME_COLUMNS
from farm.report.figures.learning_curves import LearningCurve, curves

PlotlyFigure = dict[str, Any]
_GROUPS = {"by_type": "type", "by_size": "size", "by_bound": "bound"}

HEIGHT = 380
"""Pixels of a chart whose y axis has numbers."""


def page_figure(chart: Chart) -> PlotlyFigure:
    """A chart with the height that it needs: a row for each place of a y axis of names."""
    figure = plotly_renderer.figure(chart)
    height = HEIGHT
    if chart.y.scale is Scale.NAMES:
        height = 110 + (30 + 14 * len(chart.series)) * len(chart.y.names)
    return {**figure, "layout": {**figure["layout"], "height": height}}


def ratios(comparison: Mapping[str, Any], letters: str, time_name: str = "time") -> PlotlyFigure | None:
    """Each group's time over the baseline's, with its interval: overall, and by type, size and bound.

    The axis is logarithmic, so that twice and half are as far from 1. None where nothing was measured.
    """
    groups = comparison["sides"]
    places = ["all", *dict.fromkeys(label for group in groups for label, _ in _parts(group))]
    series = [_ratios_of(group, letters[number], number - 1, places) for number, group in enumerate(groups, start=1)]
    ends = [value for one in series for bound in (one.x_low, one.x_high) if bound is not None for value in bound]
    if not ends:
        return None
    low, high = min(0.995, *ends), max(1.005, *ends)
    chart = Chart(
        name="ratios",
        title="Time over that of the baseline",
        message="",
        x=Axis(
            label=f"{time_name} / {time_name} of {letters[0]} (baseline)",
            scale=Scale.LOG,
            limits=(float(low), float(high)),
            ticks=tuple(_ticks(low, high)),
            decimals=4,
        ),
        y=Axis(label="", scale=Scale.NAMES, names=tuple(places), downwards=True),
        series=tuple(series),
        rules=(Rule(name="baseline", x=1),),
    )
    return page_figure(chart)


def _parts(group: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in _GROUPS:
        yield from group[name].items()


def _ratios_of(group: Mapping[str, Any], letter: str, look: int, places: Sequence[str]) -> Series:
    parts = dict(_parts(group))
    if group["overall"] is not None:
        parts["all"] = group["overall"]
    times = [(place, parts[label]["time"]) for place, label in enumerate(places) if label in parts]
    ratio, low, high = (
        np.array([time[name] or time["ratio"] for _, time in times], np.float64) for name in ("ratio", "low", "high")
    )
    y = np.array([place + 0.16 * look for place, _ in times], np.float64)
    return Series(name=letter, x=ratio, y=y, look=look, x_low=low, x_high=high)


_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 9, 19, 49, 99, 999)
"""Distances of ticks above 1."""


def _ticks(low: float, high: float) -> list[float]:
    """Ticks at common factors, such as 0.99, 0.8 and 1.25, and few enough that their texts do not touch."""
    steps = [step for step in _STEPS if 1 + step <= max(high, 1 / low)][-3:]
    below = [1 - step if step < 0.2 else 1 / (1 + step) for step in reversed(steps)]
    return [value for value in (*below, 1, *(1 + step for step in steps)) if low <= value <= high]


_COSTS = {
    Objective.TIME: ("runtime_ms", "predicted {}time", "ms"),
    Objective.ENERGY: ("energy_mj", "predicted energy", "mJ"),
}


def costs(predictions: Sequence[CostOn], objective: Objective, time: Time | None = None) -> PlotlyFigure | None:
    """The prediction for the best kernel on each card, with its bounds. None where there is no prediction."""
    if objective not in _COSTS:
        return None
    field, label, unit = _COSTS[objective]
    label = label.format(f"{time} " if time else "")
    if objective is Objective.TIME:
        field = TIME_COLUMNS[time]
    best = [
        (one.device_type, one.found.ranking[0]) for one in predictions if one.found is not None and one.found.ranking
    ]
    known = [(card, kernel) for card, kernel in best if getattr(kernel, field) is not None]
    if not known:
        return None
    value, low, high = (
        np.array([getattr(kernel, f"{field}{end}") or getattr(kernel, field) for _, kernel in known], np.float64)
        for end in ("", "_low", "_high")
    )
    chart = Chart(
        name="costs",
        title=f"{label.capitalize()} on each card",
        message="",
        x=Axis(label=label, unit=unit),
        y=Axis(label="", scale=Scale.NAMES, names=tuple(card for card, _ in known), downwards=True),
        series=(
            Series(
                name="best kernel",
                x=value,
                y=np.arange(len(known), dtype=np.float64),
                bars=True,
                x_low=low,
                x_high=high,
            ),
        ),
    )
    return page_figure(chart)


def learning_curves(points: Sequence[LearningPoint]) -> list[tuple[LearningCurve, PlotlyFigure | None]]:
    """The learning curve of each pool of a campaign, with its chart where it has one."""
    of_pools = curves([point.model_dump() for point in points])
    return [(curve, None if curve.chart is None else page_figure(curve.chart)) for curve in of_pools]
