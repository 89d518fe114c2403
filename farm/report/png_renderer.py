"""Charts as pictures: PNGs by matplotlib, for files, for paper and where no script runs; light as paper, and for a dark page."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.atomic_write import require_new, write_bytes
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
)

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

PAPER = {"light": "#ffffff", "dark": "#14171a"}
INK = {"light": "#000000", "dark": "#e6e8ea"}
"""By colour scheme; those of a dark page are the ones of `templates/report.css`."""

_FILE_DPI, _PAGE_DPI = 200, 110
_PAGE_COLOURS = 96
_MOST_ANNOTATED = 200
_MOST_TICKS = 40
_LONG_LEGEND = 6
_FEW_DECADES = 3


def need_matplotlib() -> None:
    """Raises `ServiceUnavailable` where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ServiceUnavailable(
            detail=f"Reports need matplotlib, which is not installed here: {INSTALL['web']}"
        ) from None


def png(picture: Picture) -> bytes:
    """The picture as a file of its own, with its title."""
    return _written(_drawn(picture, titled=True), _FILE_DPI)


@dataclass(frozen=True, slots=True)
class PagePicture:
    """A picture in both colour schemes, and its size in pixels."""

    light: bytes
    dark: bytes
    width: int
    height: int


def page_pngs(picture: Picture) -> PagePicture:
    """The picture for a page, which has its title already: few colours, some tens of KB each."""
    light, dark = (_drawn(picture, titled=False, scheme=scheme) for scheme in ("light", "dark"))
    light_png, (width, height) = _small(light)
    _lay_out_as(dark, light)
    return PagePicture(light_png, _small(dark)[0], width, height)


def _lay_out_as(figure: Any, done: Any) -> None:
    """Takes the places of the axes from a figure that is drawn. The layout pass is about 40% of the drawing time."""
    figure.set_layout_engine("none")
    for own, placed in zip(figure.axes, done.axes, strict=True):
        for which in ("original", "active"):
            own.set_position(placed.get_position(original=which == "original"), which=which)


def _small(figure: Any) -> tuple[bytes, tuple[int, int]]:
    from PIL import Image

    figure.set_dpi(_PAGE_DPI)
    figure.canvas.draw()
    whole = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    few = whole.quantize(_PAGE_COLOURS, dither=Image.Dither.NONE)
    file = io.BytesIO()
    few.save(file, "PNG", optimize=True)
    return file.getvalue(), whole.size


def write_pngs(pictures: list[Picture], folder: Path, *, force: bool = True) -> list[Path]:
    """Writes each picture into the folder, which is made, as `NAME.png`.

    Raises `OSError`, `BadInput`; without `force`, `FileThere` before it writes any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{picture.name}.png" for picture in pictures]
    for path in paths:
        require_new(path, force=force)
    for path, picture in zip(paths, pictures, strict=True):
        write_bytes(path, png(picture), force=force)
    return paths


def _written(figure: Any, dpi: int) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, metadata={"Software": None})
    return file.getvalue()


def _drawn(picture: Picture, *, titled: bool, scheme: str = "light") -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = max(HEIGHT, 1.4 + 0.3 * len(picture.y.names)) if isinstance(picture, HeatMap) else HEIGHT
    figure = Figure(figsize=(WIDTH, min(height, 9.5)), layout="constrained", facecolor=PAPER[scheme])
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if isinstance(picture, HeatMap):
        _draw_map(figure, axes, picture, scheme)
    else:
        _draw_chart(figure, axes, picture, scheme)
    for each in figure.axes:
        _ink(each, scheme)
    if titled:
        axes.set_title(_plain(picture.title), fontsize=11, color=INK[scheme])
    return figure


def _ink(axes: Any, scheme: str) -> None:
    """Frame, ticks and labels in the colours of the scheme."""
    axes.set_facecolor(PAPER[scheme])
    axes.tick_params(which="both", colors=INK[scheme])
    for each in (axes.xaxis.label, axes.yaxis.label):
        each.set_color(INK[scheme])
    for spine in axes.spines.values():
        spine.set_edgecolor(INK[scheme])


# --- points and lines --------------------------------------------------------------------------------------


def _draw_chart(figure: Any, axes: Any, chart: Chart, scheme: str) -> None:
    for order, one in enumerate(chart.series):
        _draw_series(axes, one, order, scheme)
    _set_axis(axes, "x", chart.x, [one.x for one in chart.series])
    _set_axis(
        axes, "y", chart.y, [value for one in chart.series for value in (one.y, one.low, one.high) if value is not None]
    )
    axes.grid(visible=True, which="major", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(chart.series) > 1:
        columns = 1 if len(chart.series) > 2 * _LONG_LEGEND else 2 if len(chart.series) > _LONG_LEGEND else 3
        place = "outside right upper" if columns == 1 else "outside lower center"
        legend = figure.legend(loc=place, ncols=columns, fontsize=8, frameon=False, labelcolor=INK[scheme])
        for handle in legend.legend_handles:
            handle.set_alpha(1)
            if hasattr(handle, "set_sizes"):
                handle.set_sizes([26])


def _draw_series(axes: Any, series: Series, order: int, scheme: str) -> None:
    colour = series.colour(scheme)
    name = {"label": _plain(series.name)}
    if series.low is not None and series.high is not None:
        if series.band:
            axes.fill_between(
                series.x, series.low, series.high, color=colour, alpha=BAND_OPACITY, linewidth=0, zorder=2
            )
        else:
            bars = np.vstack([series.y - series.low, series.high - series.y])
            axes.errorbar(series.x, series.y, yerr=bars, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3, zorder=3)
    if series.line is not None:
        size = 4 if series.faint else 6
        marks = {"marker": _MARKERS[marker_of(series.look)], "markersize": size} if series.points else {}
        axes.plot(
            series.x,
            series.y,
            color=colour,
            linestyle=_DASHES[series.line],
            linewidth=0.8 if series.faint else 1.5,
            zorder=3 + order,
            **marks,
            **name,
        )
        return
    if series.ring:
        axes.scatter(
            series.x, series.y, s=70, facecolors="none", edgecolors=colour, linewidths=1.2, zorder=3 + order, **name
        )
        return
    axes.scatter(
        series.x,
        series.y,
        s=11 if series.faint else 24,
        alpha=0.45 if series.faint else 0.9,
        linewidths=0,
        color=colour,
        marker=_MARKERS[marker_of(series.look)],
        zorder=3 + order,
        **name,
    )


def _set_axis(axes: Any, letter: str, axis: Axis, values: list[Any]) -> None:
    getattr(axes, f"set_{letter}label")(_plain(axis.title), fontsize=9)
    axes.tick_params(axis=letter, labelsize=8)
    limits = getattr(axes, f"set_{letter}lim")
    if axis.scale is Scale.NAMES:
        getattr(axes, f"set_{letter}ticks")(range(len(axis.names)), [_plain(name) for name in axis.names])
        limits(-0.5, len(axis.names) - 0.5)
    elif axis.scale is Scale.LOG:
        _logarithmic(getattr(axes, f"{letter}axis"), np.concatenate([np.asarray(each, float) for each in values]))
    if axis.ends is not None:
        margin = 0.02 * (axis.ends[1] - axis.ends[0])
        limits(axis.ends[0] - margin, axis.ends[1] + margin)


def _logarithmic(axis: Any, values: Any) -> None:
    """Plain numbers where there are few decades, which powers of ten leave without a label."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    axis._set_axes_scale("log")
    shown = values[np.isfinite(values) & (values > 0)]
    if not len(shown):
        return
    decades = np.log10(shown.max() / shown.min())
    subs = (1, 1.2, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < _FEW_DECADES else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator() if decades < _FEW_DECADES else LogLocator(subs="auto", numticks=12))
    axis.set_minor_formatter(NullFormatter())
    if shown.min() >= 1e-4 and shown.max() < 1e7:
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


# --- heat maps ---------------------------------------------------------------------------------------------


def _draw_map(figure: Any, axes: Any, picture: HeatMap, scheme: str) -> None:
    low, high = picture.value.ends or (float(np.nanmin(picture.values)), float(np.nanmax(picture.values)))
    image = axes.imshow(
        np.ma.masked_invalid(picture.values), cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower"
    )
    for letter, axis in (("x", picture.x), ("y", picture.y)):
        names = [_plain(name) for name in axis.names]
        step = -(-len(names) // _MOST_TICKS)
        places = range(0, len(names), step)
        getattr(axes, f"set_{letter}ticks")(places, [names[place] for place in places])
        getattr(axes, f"set_{letter}label")(_plain(axis.title), fontsize=9)
    long = max(map(len, picture.x.names)) > 8 and len(picture.x.names) > 3
    axes.tick_params(labelsize=8)
    if long:
        axes.tick_params(axis="x", rotation=25)
    if picture.values.size <= _MOST_ANNOTATED:
        for row, column in zip(*np.nonzero(np.isfinite(picture.values)), strict=True):
            value = picture.values[row, column]
            axes.text(
                column, row, f"{value:.3g}", ha="center", va="center", fontsize=8,
                color="black" if (value - low) / max(high - low, 1e-12) > 0.55 else "white",
            )  # fmt: skip
    bar = figure.colorbar(image, ax=axes)
    bar.set_label(_plain(picture.value.title), fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _plain(text: str) -> str:
    """A text as it is: matplotlib reads formulas between dollar signs."""
    return text.replace("$", r"\$")
