"""Charts as PNGs by matplotlib: for files, for paper, and for pages where no script runs, in light and in dark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.atomic_write import require_new, write_bytes
from farm.charts.chart import (
    BAND_OPACITY,
    Axis,
    Chart,
    Dashes,
    Figure,
    Floats,
    HeatMap,
    Marker,
    Panels,
    Scale,
    Series,
    marker_of,
    number,
)
from farm.errors import ServiceUnavailable
from farm.installing import INSTALL

_MARKERS = {
    Marker.CIRCLE: "o",
    Marker.SQUARE: "s",
    Marker.TRIANGLE: "^",
    Marker.DIAMOND: "D",
    Marker.CROSS: "X",
    Marker.STAR: "*",
    Marker.TRIANGLE_DOWN: "v",
}
_DASHES: dict[Dashes, Any] = {Dashes.SOLID: "-", Dashes.DASHED: (0, (5, 2)), Dashes.DOTTED: (0, (1, 1.5))}

WIDTH, HEIGHT = 7.6, 4.6
"""Inches: as wide as the text of an A4 page."""

_PAGE_HEIGHT, _MAX_HEIGHT = 9.5, 60.0
_ROW, _COLUMN, _LETTER = 0.27, 0.58, 0.085
"""Inches of a heat map: of a row and a column that can show their values, and of a letter of a label."""

PAPER = {"light": "#ffffff", "dark": "#14171a"}
INK = {"light": "#000000", "dark": "#e6e8ea"}
"""By colour scheme; those of a dark page are the ones of `farm/report/templates/report.css`."""

_EMPTY = {"light": "#e4e4e4", "dark": "#30353a"}
"""Cells of a heat map without a value."""

_FILE_DPI, _PAGE_DPI = 200, 110
_PAGE_COLOURS = 96
_LONG_LEGEND = 6
_FEW_DECADES = 3
_MAX_PANELS_IN_A_ROW = 3
_PANEL_WIDTH, _PANEL_HEIGHT = 3.6, 2.8


def need_matplotlib() -> None:
    """Raises `ServiceUnavailable` where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ServiceUnavailable(
            detail=f"Charts need matplotlib, which is not installed here: {INSTALL['web']}"
        ) from None


def png(described: Figure | Panels) -> bytes:
    """The PNG of a figure, with its title."""
    rendered = _render_panels(described) if isinstance(described, Panels) else _render(described, titled=True)
    file = io.BytesIO()
    rendered.savefig(file, dpi=_FILE_DPI, metadata={"Software": None})
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class PageImages:
    """PNGs of a figure in both colour schemes, and their size in pixels."""

    light: bytes
    dark: bytes
    width: int
    height: int


def page_images(described: Figure) -> PageImages:
    """The figure for a page, which has its title already: few colours, some tens of KB each."""
    light, dark = (_render(described, titled=False, scheme=scheme) for scheme in ("light", "dark"))
    light_png, (width, height) = _small(light)
    _lay_out_as(dark, light)
    return PageImages(light_png, _small(dark)[0], width, height)


def _lay_out_as(rendered: Any, done: Any) -> None:
    """Takes the places of the axes from a rendered figure. The layout pass is about 40% of the rendering time."""
    rendered.set_layout_engine("none")
    for own, placed in zip(rendered.axes, done.axes, strict=True):
        for which in ("original", "active"):
            own.set_position(placed.get_position(original=which == "original"), which=which)


def _small(rendered: Any) -> tuple[bytes, tuple[int, int]]:
    from PIL import Image

    rendered.set_dpi(_PAGE_DPI)
    rendered.canvas.draw()
    whole = Image.fromarray(np.asarray(rendered.canvas.buffer_rgba())).convert("RGB")
    few = whole.quantize(_PAGE_COLOURS, dither=Image.Dither.NONE)
    file = io.BytesIO()
    few.save(file, "PNG", optimize=True)
    return file.getvalue(), whole.size


def write_pngs(described: Sequence[Figure | Panels], folder: Path, *, force: bool = True) -> list[Path]:
    """Writes each figure into the folder as `NAME.png`. Makes the folder where it is missing.

    Raises `OSError`, `BadInput`; without `force`, `FileThere` before it writes any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{one.name}.png" for one in described]
    for path in paths:
        require_new(path, force=force)
    for path, one in zip(paths, described, strict=True):
        write_bytes(path, png(one), force=force)
    return paths


def _new(width: float, height: float, scheme: str = "light") -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    made = Canvas(figsize=(width, height), layout="constrained", facecolor=PAPER[scheme])
    FigureCanvasAgg(made)
    return made


def _render(described: Figure, *, titled: bool, scheme: str = "light") -> Any:
    width, height = WIDTH, HEIGHT
    if isinstance(described, HeatMap):
        rows, columns = described.values.shape
        height = min(max(HEIGHT, 1.4 + _ROW * rows), _MAX_HEIGHT if titled else _PAGE_HEIGHT)
        labels = _LETTER * max(map(len, described.y.names))
        width = max(WIDTH, labels + _COLUMN * columns + 1.6) if titled else WIDTH
    rendered = _new(width, height, scheme)
    axes = rendered.subplots()
    if isinstance(described, HeatMap):
        _draw_map(rendered, axes, described, scheme)
    else:
        _draw_chart(axes, described, scheme)
        if len(described.series) > 1:
            _legend(rendered, len(described.series), scheme)
    for each in rendered.axes:
        _ink(each, scheme)
    if titled:
        axes.set_title(_plain(described.title), fontsize=11, color=INK[scheme])
    return rendered


def _render_panels(panels: Panels) -> Any:
    """In one row, or in two if there are more than three. The last row is as wide as the first one."""
    count = len(panels.charts)
    in_row = count if count <= _MAX_PANELS_IN_A_ROW else -(-count // 2)
    rows = [row for row in (panels.charts[:in_row], panels.charts[in_row:]) if row]
    rendered = _new(_PANEL_WIDTH * in_row, _PANEL_HEIGHT * len(rows) + 0.9)
    grid = rendered.add_gridspec(len(rows), 2 * in_row)
    for at, row in enumerate(rows):
        width = 2 * in_row // len(row)
        for column, chart in enumerate(row):
            axes = rendered.add_subplot(grid[at, column * width : (column + 1) * width])
            _draw_chart(axes, chart, "light")
            if panels.titled:
                axes.set_title(_plain(chart.title), fontsize=9)
    rendered.suptitle(_plain(panels.title), fontsize=11)
    named = panels.charts[-1].series if panels.titled else panels.charts[0].rules
    names = {_plain(one.name) for one in named}
    handles = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True) if label in names}
    if handles:
        columns = min(len(handles), 3 if panels.titled else len(handles))
        place = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
        rendered.legend(handles=list(handles.values()), **place)
    return rendered


def _ink(axes: Any, scheme: str) -> None:
    """Frame, ticks and labels in the colours of the scheme."""
    axes.set_facecolor(PAPER[scheme])
    axes.tick_params(which="both", colors=INK[scheme])
    for each in (axes.xaxis.label, axes.yaxis.label):
        each.set_color(INK[scheme])
    for spine in axes.spines.values():
        spine.set_edgecolor(INK[scheme])


# --- points, lines and bars --------------------------------------------------------------------------------


def _draw_chart(axes: Any, chart: Chart, scheme: str) -> None:
    for rule in chart.rules:
        style = {"color": rule.colour, "linestyle": _DASHES[rule.line], "linewidth": 1.6, "zorder": 1}
        axes.axvline(rule.x, **style, label=_plain(rule.name))
    for order, one in enumerate(chart.series):
        _draw_series(axes, chart, one, order, scheme)
    _set_axis(axes, "x", chart.x, chart.x_values)
    _set_axis(axes, "y", chart.y, chart.y_values)
    grid = "y" if chart.x.scale is Scale.NAMES else "x" if chart.y.scale is Scale.NAMES else "both"
    axes.grid(visible=True, which="major", axis=grid, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)


def _legend(rendered: Any, count: int, scheme: str) -> None:
    columns = 1 if count > 2 * _LONG_LEGEND else 2 if count > _LONG_LEGEND else 3
    place = "outside right upper" if columns == 1 else "outside lower center"
    legend = rendered.legend(loc=place, ncols=columns, fontsize=8, frameon=False, labelcolor=INK[scheme])
    for handle in legend.legend_handles:
        handle.set_alpha(1)
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([26])


def _draw_series(axes: Any, chart: Chart, series: Series, order: int, scheme: str) -> None:
    colour = series.colour(scheme)
    label = _plain(series.name)
    bounds = {"xerr": _distances(series.x, series.x_low, series.x_high)}
    if series.band and series.low is not None and series.high is not None:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=BAND_OPACITY, linewidth=0, zorder=2)
    else:
        bounds["yerr"] = _distances(series.y, series.low, series.high)
    if any(each is not None for each in bounds.values()):
        style = {"ecolor": INK[scheme] if series.bars else colour, "elinewidth": 1.2, "capsize": 3}
        axes.errorbar(series.x, series.y, **bounds, fmt="none", **style, zorder=4 if series.bars else 3)
    if series.bars and chart.y.scale is Scale.NAMES:
        axes.barh(series.y, series.x, height=0.5, color=colour, label=label)
    elif series.bars:
        axes.bar(series.x, series.y, width=0.5, color=colour, label=label)
    elif series.line is not None:
        size = 4 if series.faint else 6
        marks = {"marker": _MARKERS[marker_of(series.look)], "markersize": size} if series.points else {}
        style = {"color": colour, "linestyle": _DASHES[series.line], "linewidth": 0.8 if series.faint else 1.5}
        axes.plot(series.x, series.y, **style, **marks, zorder=3 + order, label=label)
    elif series.ring:
        style = {"s": 70, "facecolors": "none", "edgecolors": colour, "linewidths": 1.2}
        axes.scatter(series.x, series.y, **style, zorder=3 + order, label=label)
    else:
        style = {"color": colour, "marker": _MARKERS[marker_of(series.look)], "linewidths": 0}
        size, opacity = (11, 0.45) if series.faint else (24, 0.9)
        axes.scatter(series.x, series.y, s=size, alpha=opacity, **style, zorder=3 + order, label=label)


def _distances(values: Floats, low: Floats | None, high: Floats | None) -> Floats | None:
    return None if low is None or high is None else np.vstack([values - low, high - values])


def _set_axis(axes: Any, letter: str, axis: Axis, values: list[Floats]) -> None:
    getattr(axes, f"set_{letter}label")(_plain(axis.title), fontsize=9)
    axes.tick_params(axis=letter, labelsize=8)
    limits = getattr(axes, f"set_{letter}lim")
    if axis.scale is Scale.NAMES:
        _name_ticks(axes, letter, axis)
        limits(-0.5, len(axis.names) - 0.5)
    elif axis.scale is Scale.LOG:
        _logarithmic(getattr(axes, f"{letter}axis"), np.concatenate([np.asarray(each, float) for each in values]))
    if axis.ticks:
        getattr(axes, f"set_{letter}ticks")(axis.ticks, [f"{tick:.4g}" for tick in axis.ticks])
    if axis.padded_limits is not None:
        limits(axis.padded_limits)
    if axis.downwards:
        getattr(axes, f"invert_{letter}axis")()


def _name_ticks(axes: Any, letter: str, axis: Axis, step: int = 1) -> None:
    """A tick for each name that is not empty, or for every few of them."""
    named = [place for place, name in enumerate(axis.names) if name][::step]
    getattr(axes, f"set_{letter}ticks")(named, [_plain(axis.names[place]) for place in named])


def _logarithmic(axis: Any, values: Any) -> None:
    """Plain numbers where there are few decades, for which powers of ten leave most ticks without a label."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

    axis._set_axes_scale("log")
    shown = values[np.isfinite(values) & (values > 0)]
    if not len(shown):
        return
    decades = np.log10(shown.max() / shown.min())
    subs = (1, 1.2, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < _FEW_DECADES else (1,)
    axis.set_major_locator(MaxNLocator(5) if decades < 0.1 else LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator() if decades < _FEW_DECADES else LogLocator(subs="auto", numticks=12))
    axis.set_minor_formatter(NullFormatter())
    if shown.min() >= 1e-4 and shown.max() < 1e7:
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


# --- heat maps ---------------------------------------------------------------------------------------------


def _draw_map(rendered: Any, axes: Any, described: HeatMap, scheme: str) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    values, value = described.values, described.value
    known = np.isfinite(values)
    low, high = value.limits or ((values[known].min(), values[known].max()) if known.any() else (0.0, 1.0))
    norm = LogNorm(low, high) if value.scale is Scale.LOG else Normalize(low, high)
    colours = colormaps["cividis_r" if described.low_is_best else "cividis"].with_extremes(bad=_EMPTY[scheme])
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=colours,
        norm=norm,
        aspect="auto",
        origin="upper" if described.y.downwards else "lower",
    )
    width, height = rendered.get_size_inches()
    room = {"y": (height - 1.2) / 0.2, "x": (width - 2.4) / 0.4}
    for letter, axis in (("x", described.x), ("y", described.y)):
        _name_ticks(axes, letter, axis, step=-int(-len(axis.names) // room[letter]))
        getattr(axes, f"set_{letter}label")(_plain(axis.title), fontsize=9)
    axes.tick_params(labelsize=8)
    if max(map(len, described.x.names)) > 8 and len(described.x.names) > 3:
        axes.tick_params(axis="x", rotation=25)
    rows, columns = values.shape
    if rows <= room["y"] and columns <= room["x"]:
        _annotate(axes, described, norm, low if described.low_is_best else high, scheme)
    bar = rendered.colorbar(image, ax=axes, extend="max" if known.any() and values[known].max() > high else "neither")
    bar.set_label(_plain(value.title), fontsize=9)
    if value.ticks:
        bar.set_ticks(value.ticks, labels=[f"{tick:.4g}" for tick in value.ticks])
        bar.minorticks_off()
    bar.ax.tick_params(labelsize=8)


def _annotate(axes: Any, described: HeatMap, norm: Any, best: float, scheme: str) -> None:
    """Writes each value into its cell: the best one in bold, and a dash where there is none."""
    for (row, column), cell in np.ndenumerate(described.values):
        colour = INK[scheme]
        if np.isfinite(cell):
            position = float(np.clip(norm(cell), 0, 1))
            light = 1 - position if described.low_is_best else position
            colour = "black" if light > 0.55 else "white"
        weight = "bold" if cell == best else "normal"
        font = {"fontsize": 8, "color": colour, "weight": weight}
        axes.text(column, row, number(cell), ha="center", va="center", in_layout=False, **font)


def _plain(text: str) -> str:
    """A text with escaped dollar signs, between which matplotlib reads formulas."""
    return text.replace("$", r"\$")
