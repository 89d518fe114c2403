"""Charts as figures of Plotly, in JSON: for a page that has Plotly's script and `charts.js`.

Texts of points are named once: `layout.meta.words` has the names, `meta.words` of a trace a number into each list, and `charts.js`
puts them together. The page gives the colours of paper, text and grid. Whatever is drawn is escaped for Plotly, which reads a
little HTML in its texts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from farm.compare.statistics import Floats
from farm.errors import ServiceUnavailable
from farm.installing import INSTALL
from farm.report.charts import (
    BAND_OPACITY,
    Axis,
    Chart,
    Dashes,
    HeatMap,
    Marker,
    Picture,
    Scale,
    Series,
    marker_of,
    rounded,
)

MANY = 1000
"""Points of a series from which on a browser's graphics card draws them."""

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
_WHOLE = 1e15
LITTLE, MUCH = 0.6, 3.0
"""Decades of a logarithmic axis."""


def plotly_script() -> str:
    """The text of Plotly's script, which works without a network. Raises `ServiceUnavailable` where it is not installed."""
    found = find_spec("plotly")
    path = None if found is None or found.origin is None else Path(found.origin).parent / "package_data/plotly.min.js"
    if path is None or not path.is_file():
        raise ServiceUnavailable(detail=f"Reports need Plotly's script, which is not installed here: {INSTALL['web']}")
    return path.read_text(encoding="utf-8")


@cache
def charts_script() -> str:
    """What draws the figures of a page, and draws them again for paper, for another width or for a dark page."""
    return files("farm.report").joinpath("templates/charts.js").read_text(encoding="utf-8")


def figure(picture: Picture) -> dict[str, Any]:
    """`data` and `layout`, as `Plotly.newPlot` takes them, fit for JSON: numbers have five significant digits."""
    return _of_map(picture) if isinstance(picture, HeatMap) else _of_chart(picture)


def _of_chart(chart: Chart) -> dict[str, Any]:
    parts = next((one.words.parts for one in chart.series if one.words is not None), ())
    shared = [one for one in chart.series if one.words is None or one.words.parts == parts]
    names = [[_plain(name) for name in part] for part in parts] if len(shared) == len(chart.series) else []
    # The card draws above all else: where it draws some points, it draws all, so that the last series is in front.
    many = any(one.points and len(one.x) >= MANY for one in chart.series)
    return {
        "data": [
            trace for one in chart.series for trace in (*_bands(one), _trace(chart, one, coded=bool(names), many=many))
        ],
        "layout": {
            "xaxis": _axis(chart.x, [one.x for one in chart.series]),
            "yaxis": _axis(
                chart.y, [each for one in chart.series for each in (one.y, one.low, one.high) if each is not None]
            ),
            "showlegend": len(chart.series) > 1,
            "meta": {"words": names},
        },
    }


def _bands(series: Series) -> Iterator[dict[str, Any]]:
    """The area between the bounds of a line: hidden with the line where somebody clicks on the legend."""
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
    look, meta = {"color": series.colour()}, dict[str, Any]()
    if series.line is not None and not series.reference:
        # Pages of the farm have colours of their own for looks.
        meta["look"] = series.look
    if series.shade is not None:
        # `charts.js` takes it where the page is dark.
        meta["dark"] = series.colour("dark")
    mode = "+".join([*(["lines"] if series.line else []), *(["markers"] if series.points else [])])
    trace: dict[str, Any] = {
        "type": "scattergl" if many and series.points else "scatter",
        "name": _plain(series.name),
        "mode": mode,
        "x": _listed(series.x),
        "y": _listed(series.y),
        **({"meta": meta} if meta else {}),
    }
    if series.points:
        trace["marker"] = {
            **look,
            "symbol": "circle-open" if series.ring else _SYMBOLS[marker_of(series.look)],
            "size": 14 if series.ring else 6 if series.faint else 9,
            "opacity": 0.5 if series.faint and series.line is None else 0.9,
        }
    if series.line is not None:
        trace["line"] = {**look, "dash": _DASHES[series.line], "width": 1 if series.faint else 2}
    if series.band:
        trace["legendgroup"] = trace["name"]
    elif series.low is not None and series.high is not None:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": _listed(series.high - series.y),
            "arrayminus": _listed(series.y - series.low),
            **look,
        }
    said = [_said(axis, letter) for axis, letter in ((chart.x, "x"), (chart.y, "y")) if axis.scale is not Scale.NAMES]
    shown = f"{'<br>'.join(said)}<extra>%{{fullData.name}}</extra>"
    if series.words is None:
        trace["hovertemplate"] = shown
        return trace
    trace["hovertemplate"] = f"%{{text}}<br>{shown}"
    if coded:
        trace["meta"] = meta | {"words": [of.tolist() for of in series.words.which]}
    else:
        trace["text"] = [_plain(series.words.text(n)).replace("\n", "<br>") for n in range(len(series.x))]
    return trace


def _of_map(picture: HeatMap) -> dict[str, Any]:
    value, annotated = picture.value, picture.values.size <= 200
    trace = {
        "type": "heatmap",
        "x": [_plain(name) for name in picture.x.names],
        "y": [_plain(name) for name in picture.y.names],
        "z": [_listed(line) for line in picture.values],
        "customdata": picture.counts.tolist(),
        "colorscale": "Cividis",
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "colorbar": {"title": {"text": _plain(value.title), "side": "right"}},
        "hovertemplate": (
            f"{_plain(picture.y.label)} %{{y}}, {_plain(picture.x.label)} %{{x}}<br>{_plain(value.label)} "
            f"%{{z:.3~g}} {_plain(value.unit)}<br>n = %{{customdata:,}}<extra></extra>"
        ),
        **({"zmin": value.ends[0], "zmax": value.ends[1]} if value.ends is not None else {}),
        **({"texttemplate": "%{z:.3~g}"} if annotated else {}),
    }
    return {
        "data": [trace],
        "layout": {
            "xaxis": {"title": {"text": _plain(picture.x.title)}, "type": "category", "showgrid": False},
            "yaxis": {"title": {"text": _plain(picture.y.title)}, "type": "category", "showgrid": False},
            "showlegend": False,
            "meta": {"words": []},
        },
    }


def _axis(axis: Axis, values: list[Floats]) -> dict[str, Any]:
    made: dict[str, Any] = {"title": {"text": _plain(axis.title)}}
    if axis.scale is Scale.LOG:
        made |= {"type": "log", "tickformat": ",~g", "dtick": _step(values)}
    elif axis.scale is Scale.NAMES:
        made |= {"tickvals": list(range(len(axis.names))), "ticktext": [_plain(name) for name in axis.names]}
    if axis.ends is not None:
        margin = 0.02 * (axis.ends[1] - axis.ends[0])
        made["range"] = [axis.ends[0] - margin, axis.ends[1] + margin]
    return made


def _step(values: list[Floats]) -> str | int | None:
    """From one tick of a logarithmic axis to the next: a decade, or 1, 2, 5; None: as Plotly thinks, where there is little."""
    shown = np.concatenate(values)
    shown = shown[np.isfinite(shown) & (shown > 0)]
    decades = float(np.log10(shown.max() / shown.min())) if len(shown) else 0.0
    return None if decades < LITTLE else "D2" if decades < MUCH else 1


def _said(axis: Axis, letter: str) -> str:
    unit = f" {_plain(axis.unit)}" if axis.unit else ""
    return f"{_plain(axis.label)} %{{{letter}:,.4~g}}{unit}"


def _listed(values: Floats) -> list[float | int | None]:
    """Numbers as JSON writes them shortest; what is not finite is null."""
    return [_shortest(value) for value in rounded(values).tolist()]


def _shortest(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < _WHOLE else value


def _plain(text: str) -> str:
    return html.escape(text, quote=False)
