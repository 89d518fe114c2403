"""Charts as figures of Plotly, in JSON: for a page that has Plotly's script and a script that draws them.

The texts of points are written once: `layout.meta.texts` has the names, and `meta.texts` of a trace has a number into each list
for each point. The page supplies the colours of paper, text and grid, and may replace the colours of looks (`meta.look`). All
texts are escaped, because Plotly reads some HTML in them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from farm.charts.chart import (
    BAND_OPACITY,
    Axis,
    Chart,
    Dashes,
    Figure,
    Floats,
    HeatMap,
    Marker,
    Scale,
    Series,
    marker_of,
    number,
)
from farm.errors import ServiceUnavailable
from farm.installing import INSTALL

MANY = 1000
"""Points in a series from which on a browser's graphics card draws them."""

_SYMBOLS = {
    Marker.CIRCLE: "circle",
    Marker.SQUARE: "square",
    Marker.TRIANGLE: "triangle-up",
    Marker.DIAMOND: "diamond",
    Marker.CROSS: "cross",
    Marker.STAR: "star",
    Marker.TRIANGLE_DOWN: "triangle-down",
}
_DASHES = {Dashes.SOLID: "solid", Dashes.DASHED: "dash", Dashes.DOTTED: "dot"}
_MAX_WHOLE = 1e15
_MAX_ANNOTATED = 200
"""Cells of a heat map, up to which each shows its value."""

_FEW_DECADES, _MANY_DECADES = 0.6, 3.0
"""Lengths of a logarithmic axis: a shorter one has Plotly's own ticks, a longer one has a tick for each decade."""


def plotly_script() -> str:
    """The text of Plotly's script, which works without a network. Raises `ServiceUnavailable` where it is not installed."""
    found = find_spec("plotly")
    path = None if found is None or found.origin is None else Path(found.origin).parent / "package_data/plotly.min.js"
    if path is None or not path.is_file():
        raise ServiceUnavailable(detail=f"Reports need Plotly's script, which is not installed here: {INSTALL['web']}")
    return path.read_text(encoding="utf-8")


def figure(described: Figure) -> dict[str, Any]:
    """`data` and `layout`, as `Plotly.newPlot` takes them, fit for JSON: numbers have five significant digits."""
    return _of_map(described) if isinstance(described, HeatMap) else _of_chart(described)


def _of_chart(chart: Chart) -> dict[str, Any]:
    parts = next((one.texts.parts for one in chart.series if one.texts is not None), ())
    shared = all(one.texts is None or one.texts.parts == parts for one in chart.series)
    names = [[_plain(name) for name in part] for part in parts] if shared else []
    # The graphics card draws above everything else: if it draws some points, it draws all, so that the last series is in front.
    many = any(one.points and len(one.x) >= MANY for one in chart.series)
    layout = {
        "xaxis": _axis(chart.x, chart.x_values),
        "yaxis": _axis(chart.y, chart.y_values),
        "showlegend": len(chart.series) > 1,
        "meta": {"texts": names},
    }
    if chart.rules:
        layout["shapes"] = [
            {
                **{"type": "line", "x0": rule.x, "x1": rule.x, "y0": 0, "y1": 1, "yref": "paper"},
                "line": {"color": rule.colour, "dash": _DASHES[rule.line], "width": 1.5},
            }
            for rule in chart.rules
        ]
    traces = [
        trace for one in chart.series for trace in (*_bands(one), _trace(chart, one, coded=bool(names), many=many))
    ]
    return {"data": traces, "layout": layout}


def _bands(series: Series) -> Iterator[dict[str, Any]]:
    """The area between the bounds of a line: a click on the legend hides it with the line."""
    if not series.band or series.low is None or series.high is None:
        return
    yield {
        "type": "scatter",
        "mode": "lines",
        "name": _plain(series.name),
        "legendgroup": _plain(series.name),
        "showlegend": False,
        "hoverinfo": "skip",
        "x": _listed(np.concatenate([series.x, series.x[::-1]])),
        "y": _listed(np.concatenate([series.high, series.low[::-1]])),
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": _transparent(series.colour(), BAND_OPACITY),
        "meta": {"look": series.look},
    }


def _transparent(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _trace(chart: Chart, series: Series, *, coded: bool, many: bool) -> dict[str, Any]:
    colour, meta = {"color": series.colour()}, dict[str, Any]()
    if not series.reference and series.shade is None:
        meta["look"] = series.look
    if series.shade is not None:
        meta["dark"] = series.colour("dark")
    trace: dict[str, Any] = {
        "name": _plain(series.name),
        "x": _listed(series.x),
        "y": _listed(series.y),
        "meta": meta,
        "hovertemplate": _hover(chart),
    }
    if series.bars:
        along = "h" if chart.y.scale is Scale.NAMES else "v"
        names = chart.y.names if along == "h" else chart.x.names
        trace |= {"type": "bar", "orientation": along, "width": 0.5, "marker": colour, "textposition": "none"}
        trace |= {"text": [_plain(name) for name in names], "hovertemplate": f"%{{text}}<br>{_hover(chart)}"}
    else:
        modes = [name for name, shown in (("lines", series.line is not None), ("markers", series.points)) if shown]
        trace |= {"type": "scattergl" if many and series.points else "scatter", "mode": "+".join(modes)}
        if series.points:
            trace["marker"] = {
                **colour,
                "symbol": "circle-open" if series.ring else _SYMBOLS[marker_of(series.look)],
                "size": 14 if series.ring else 6 if series.faint else 9,
                "opacity": 0.5 if series.faint and series.line is None else 0.9,
            }
        if series.line is not None:
            trace["line"] = {**colour, "dash": _DASHES[series.line], "width": 1 if series.faint else 2}
    if series.band:
        trace["legendgroup"] = trace["name"]
    else:
        trace |= _error_bars("error_y", series.y, series.low, series.high, colour)
    trace |= _error_bars("error_x", series.x, series.x_low, series.x_high, colour)
    if series.texts is not None:
        trace["hovertemplate"] = f"%{{text}}<br>{trace['hovertemplate']}"
        if coded:
            meta["texts"] = [of.tolist() for of in series.texts.which]
        else:
            texts = map(series.texts.text, range(len(series.x)))
            trace["text"] = [_plain(text).replace("\n", "<br>") for text in texts]
    return trace


def _error_bars(
    name: str, values: Floats, low: Floats | None, high: Floats | None, colour: dict[str, str]
) -> dict[str, Any]:
    if low is None or high is None:
        return {}
    above, below = _listed(high - values), _listed(values - low)
    return {name: {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **colour}}


def _hover(chart: Chart) -> str:
    axes = [(axis, letter) for axis, letter in ((chart.x, "x"), (chart.y, "y")) if axis.scale is not Scale.NAMES]
    lines = []
    for axis, letter in axes:
        digits = ",.4~g" if axis.decimals is None else f",.{axis.decimals}f"
        lines.append(f"{_plain(axis.label)} %{{{letter}:{digits}}} {_plain(axis.unit)}".rstrip())
    return f"{'<br>'.join(lines)}<extra>%{{fullData.name}}</extra>"


def _of_map(described: HeatMap) -> dict[str, Any]:
    value = described.value
    logarithmic = value.scale is Scale.LOG
    placed = np.log10 if logarithmic else np.asarray
    text = "%{text}" if logarithmic else "%{z:.3~g}"
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": [_plain(name) for name in described.x.names],
        "y": [_plain(name) for name in described.y.names],
        "z": [_listed(placed(line)) for line in described.values],
        "colorscale": "Cividis",
        "reversescale": described.low_is_best,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "colorbar": {"title": {"text": _plain(value.title), "side": "right"}},
        "hovertemplate": (
            f"{_plain(described.y.label)} %{{y}}, {_plain(described.x.label)} %{{x}}<br>{_plain(value.label)} "
            f"{text} {_plain(value.unit)}"
        ).rstrip(),
    }
    if logarithmic:
        trace["text"] = [list(map(number, line)) for line in described.values.tolist()]
    if described.counts is not None:
        trace["customdata"] = described.counts.tolist()
        trace["hovertemplate"] += "<br>n = %{customdata:,}"
    trace["hovertemplate"] += "<extra></extra>"
    if value.limits is not None:
        trace["zmin"], trace["zmax"] = map(float, placed(value.limits))
    if value.ticks:
        ticks = {"tickvals": placed(value.ticks).tolist(), "ticktext": [f"{tick:.4g}" for tick in value.ticks]}
        trace["colorbar"] |= ticks
    if described.values.size <= _MAX_ANNOTATED:
        trace["texttemplate"] = text
    axes = ((described.x, "xaxis"), (described.y, "yaxis"))
    return {
        "data": [trace],
        "layout": {
            **{
                name: {"title": {"text": _plain(axis.title)}, "type": "category", "showgrid": False}
                | ({"autorange": "reversed"} if axis.downwards else {})
                for axis, name in axes
            },
            "showlegend": False,
            "meta": {"texts": []},
        },
    }


def _axis(axis: Axis, values: list[Floats]) -> dict[str, Any]:
    made: dict[str, Any] = {"title": {"text": _plain(axis.title)}}
    if axis.scale is Scale.LOG:
        made |= {"type": "log", "tickformat": ",~g", "dtick": _step(values)}
    elif axis.scale is Scale.NAMES:
        made |= {"tickvals": list(range(len(axis.names))), "ticktext": [_plain(name) for name in axis.names]}
        made["showgrid"] = False
    if axis.ticks:
        made |= {"tickvals": list(axis.ticks), "ticktext": [f"{tick:.4g}" for tick in axis.ticks], "tickangle": 0}
    if axis.padded_limits is not None:
        made["range"] = [math.log10(end) if axis.scale is Scale.LOG else end for end in axis.padded_limits]
    if axis.downwards:
        made["autorange"] = "reversed"
    return made


def _step(values: list[Floats]) -> str | int | None:
    """From one tick of a logarithmic axis to the next: a decade, or 1, 2, 5. None: Plotly chooses, where the axis is short."""
    shown = np.concatenate(values)
    shown = shown[np.isfinite(shown) & (shown > 0)]
    decades = float(np.log10(shown.max() / shown.min())) if len(shown) else 0.0
    return None if decades < _FEW_DECADES else "D2" if decades < _MANY_DECADES else 1


def rounded(values: Floats, digits: int = 5) -> Floats:
    """The values with so many significant digits. NaN, infinity, 0 and values beyond any measurement stay unchanged."""
    result = np.array(values, dtype=np.float64)
    size = np.abs(result)
    usual = (size > 1e-200) & (size < 1e200)
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(size[usual])))
    result[usual] = np.round(result[usual] * scale) / scale
    return result


def _listed(values: Floats) -> list[float | int | None]:
    """Numbers as JSON writes them shortest; null for values that are not finite."""
    return [_shortest(value) for value in rounded(values).tolist()]


def _shortest(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < _MAX_WHOLE else value


def _plain(text: str) -> str:
    return html.escape(text, quote=False)
