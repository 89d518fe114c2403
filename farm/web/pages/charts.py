"""Charts as Plotly has them, without colours: `charts.js` draws them in those of the page (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.api.campaigns import LearningPoint
from farm.api.models import CostOn
from farm.registry import Objective
from farm.report import charts as described
from farm.report import plotly_renderer
from farm.report.pictures import learning

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
"""Series differ by these too, and not by colour alone."""

Chart = dict[str, Any]
_GROUPS = {"by_type": "type", "by_size": "size", "by_bound": "bound"}


def ratios(found: Mapping[str, Any], letters: str) -> Chart | None:
    """Dots and intervals: by what factor each side's time is the baseline's, in all and group by group.

    `found` is the document of a comparison. On a logarithmic axis, so that twice and half are as far from 1.
    """
    places = ["all", *dict.fromkeys(label for side in found["sides"] for label, _ in _groups(side))]
    traces = [_dots(side, letters[number], number - 1, places) for number, side in enumerate(found["sides"], start=1)]
    if not any(trace["x"] for trace in traces):
        return None
    ends = [value for trace in traces for value in trace["reach"]]
    low, high = min(0.995, *ends), max(1.005, *ends)
    room = (high / low) ** 0.04
    low, high = low / room, high * room
    for trace in traces:
        del trace["reach"]
    return {
        "data": traces,
        "layout": {
            "xaxis": {
                "type": "log",
                "title": {"text": f"time / time of {letters[0]} (baseline)"},
                "range": [math.log10(low), math.log10(high)],
                **_ticks(low, high),
            },
            "yaxis": {"tickvals": list(range(len(places))), "ticktext": places, "autorange": "reversed"},
            "shapes": [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": {"width": 1.5}}],
            "height": 110 + 34 * len(places) + 14 * len(places) * (len(traces) - 1),
            "showlegend": len(traces) > 1,
        },
    }


def _groups(side: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in _GROUPS:
        yield from side[name].items()


def _dots(side: Mapping[str, Any], letter: str, number: int, places: Sequence[str]) -> dict[str, Any]:
    of_place = dict(_groups(side))
    if side["overall"] is not None:
        of_place["all"] = side["overall"]
    shown = [(place, of_place[label]["time"]) for place, label in enumerate(places) if label in of_place]
    offset = 0.16 * number
    return {
        "type": "scatter",
        "mode": "markers",
        "name": letter,
        "x": [time["ratio"] for _, time in shown],
        "y": [place + offset for place, _ in shown],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(time["high"] or time["ratio"]) - time["ratio"] for _, time in shown],
            "arrayminus": [time["ratio"] - (time["low"] or time["ratio"]) for _, time in shown],
        },
        "marker": {"size": 9, "symbol": SYMBOLS[number % len(SYMBOLS)]},
        "hovertemplate": "%{x:.4f}<extra>%{fullData.name}</extra>",
        "reach": [v for _, time in shown for v in (time["ratio"], time["low"], time["high"]) if v],
    }


_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 9, 19, 49, 99, 999)
"""By how much more than 1."""


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks at factors that people read, as 0.99, 0.8 and 1.25, and not so many that they touch."""
    steps = [step for step in _STEPS if 1 + step <= max(high, 1 / low)][-3:]
    below = [1 - step if step < 0.2 else 1 / (1 + step) for step in reversed(steps)]
    values = [value for value in (*below, 1, *(1 + step for step in steps)) if low <= value <= high]
    return {"tickvals": values, "ticktext": [f"{value:.4g}" for value in values], "tickangle": 0}


_UNITS = {Objective.TIME: "predicted time (ms)", Objective.ENERGY: "predicted energy (mJ)"}


def costs(found: Sequence[CostOn], objective: Objective) -> Chart | None:
    """The best kernel's prediction on each card, with its bounds."""
    if objective not in _UNITS:
        return None
    bests = [(one.device_type, one.found.ranking[0]) for one in found if one.found is not None and one.found.ranking]
    name = "runtime_ms" if objective is Objective.TIME else "energy_mj"
    shown = [(where, best) for where, best in bests if getattr(best, name) is not None]
    if not shown:
        return None
    values = [getattr(best, name) for _, best in shown]
    highs = [getattr(best, f"{name}_high") or value for (_, best), value in zip(shown, values, strict=True)]
    lows = [getattr(best, f"{name}_low") or value for (_, best), value in zip(shown, values, strict=True)]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": values,
                "y": [where for where, _ in shown],
                "width": 0.5,
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - value for high, value in zip(highs, values, strict=True)],
                    "arrayminus": [value - low for low, value in zip(lows, values, strict=True)],
                },
                "hovertemplate": "%{x:.4g}<extra>%{y}</extra>",
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": _UNITS[objective]}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "automargin": True},
            "height": 110 + 44 * len(shown),
            "showlegend": False,
        },
    }


LINES_HEIGHT = 380


def lines(chart: described.Chart) -> Chart:
    """A chart of lines that reports have as well."""
    figure = plotly_renderer.figure(chart)
    layout = figure["layout"]
    layout["yaxis"] |= {"showgrid": True}
    return {"data": figure["data"], "layout": {**layout, "height": LINES_HEIGHT}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """What a page shows of one pool's learning curve."""

    pool: str
    chart: Chart | None
    # What the chart shows, in a sentence.
    message: str
    families: Sequence[str]
    # Each with what followed it. Why nothing did is the conclusion.
    points: Sequence[tuple[learning.Point, str]]
    conclusion: str | None


def learning_curves(points: Sequence[LearningPoint]) -> list[LearningCurve]:
    """One for each pool of a campaign."""
    return [_learning_curve(pool, of) for pool, of in learning.by_pool([p.model_dump() for p in points]).items()]


def _learning_curve(pool: str, points: Sequence[learning.Point]) -> LearningCurve:
    chart = learning.curve(pool, points)
    return LearningCurve(
        pool=pool,
        chart=None if chart is None else lines(chart),
        message="" if chart is None else chart.message,
        families=learning.families(points),
        points=[(point, "ended" if learning.ending(point) else learning.following(point)) for point in points],
        conclusion=learning.conclusion(points),
    )
