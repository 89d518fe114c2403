"""Pictures of a study of tiles: each problem by tile, and one map of all problems of a device type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.analysis.tiles import DeviceTiles, ProblemTiles, TilePoint
from farm.atomic_write import replacing
from farm.errors import BadInput, ServiceUnavailable
from farm.installing import INSTALL

_FASTEST, _THRIFTIEST = "#D55E00", "#009E73"
"""Two of Okabe and Ito's colours (2008), told apart with any colour vision; their lines also differ in dashes."""

_MOST_TICKS = 16
_MOST_ANNOTATED, _MOST_LABELLED = 60, 250
_DARKEST = 3.0
"""Tiles that take this many times the best one's time, or more, look the same: what matters is nearer."""


@dataclass(frozen=True, slots=True)
class _Panel:
    quantity: str
    unit: str
    value: Callable[[TilePoint], float | None]
    colour: str
    marker: str
    logarithmic: bool = False
    from_zero: bool = False


_PANELS = (
    _Panel("time", "ms", lambda p: p.runtime_ms, "#0072B2", "o", logarithmic=True),
    _Panel("power", "W", lambda p: p.power_w, "#CC79A7", "s", from_zero=True),
    _Panel("energy of one GEMM", "mJ", lambda p: p.energy_mj, "#B8860B", "^", logarithmic=True),
    _Panel(
        "theoretical occupancy", "%", lambda p: None if p.occupancy is None else 100 * p.occupancy, "#56B4E9", "D",
        from_zero=True,
    ),
    _Panel("shared memory of a block", "KiB", lambda p: p.shared_bytes / 1024, "#444444", "v", from_zero=True),
)  # fmt: skip


def need_matplotlib() -> None:
    """Raises `ServiceUnavailable` where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ServiceUnavailable(
            detail=f"Pictures need matplotlib, which is not installed here: {INSTALL['trainer']}"
        ) from None


def plot(studies: Sequence[DeviceTiles], folder: Path, *, force: bool = True) -> Iterator[Path]:
    """Writes PNGs into the folder, which is made, and gives each one's path: problems, then the map, of each type.

    Raises `BadInput` where the folder cannot be written to, `FileThere` without `force`, `ServiceUnavailable` without matplotlib.
    """
    need_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for study in studies:
            for problem in study.problems:
                yield _problem_plot(
                    folder / f"{_slug(f'{study.device_type} {problem.label}')}.png", study, problem, force=force
                )
            yield _map_plot(folder / f"{_slug(f'{study.device_type} tiles')}.png", study, force=force)
    except OSError as error:
        raise BadInput(detail=f"{folder}: pictures cannot be written there: {error.strerror}") from None


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure


def _of_rows(rows: int, devices: int) -> str:
    return f"{rows:,} {'row' if rows == 1 else 'rows'} of {devices:,} {'device' if devices == 1 else 'devices'}"


# --- one problem by tile -----------------------------------------------------------------------------


def _problem_plot(path: Path, study: DeviceTiles, problem: ProblemTiles, *, force: bool) -> Path:
    shown = [panel for panel in _PANELS if any(panel.value(point) is not None for point in problem.points)]
    top = len(shown) if len(shown) < 4 else -(-len(shown) // 2)
    lines = [line for line in (shown[:top], shown[top:]) if line]
    figure = _figure(3.6 * top, 2.8 * len(lines) + 0.9)
    grid = figure.add_gridspec(len(lines), 2 * top)
    for row, line in enumerate(lines):
        width = 2 * top // len(line)
        for column, panel in enumerate(line):
            _draw(figure.add_subplot(grid[row, column * width : (column + 1) * width]), panel, problem)
    figure.suptitle(
        f"{study.device_type}: tiled, {problem.label}\n{_of_rows(problem.rows, problem.devices)}", fontsize=11
    )
    _legend(figure, problem)
    with replacing(path, force=force) as draft:
        figure.savefig(draft)
    return path


def _draw(axes: Any, panel: _Panel, problem: ProblemTiles) -> None:
    """Tiles stand side by side at equal distances: 1, 2, 4 and 28, 32 are all legible."""
    tiles = [point.tile for point in problem.points]
    values = [np.nan if (value := panel.value(point)) is None else value for point in problem.points]
    for tile, colour, dashes, _ in _best(problem):
        axes.axvline(tiles.index(tile), color=colour, linestyle=dashes, linewidth=1.6, zorder=1)
    line = {"color": panel.colour, "linewidth": 1.4, "marker": panel.marker, "markersize": 6}
    axes.plot(range(len(tiles)), values, **line, clip_on=False, zorder=3)
    if panel.logarithmic:
        axes.set_yscale("log")
        _plain_numbers(axes, values)
    if panel.from_zero:
        axes.set_ylim(0, 1.08 * np.nanmax(values))
    named = [i for i, tile in enumerate(tiles) if len(tiles) <= _MOST_TICKS or tile == 1 or tile % 4 == 0]
    axes.set_xticks(named, [str(tiles[i]) for i in named])
    axes.set_xlabel("tile", fontsize=9)
    axes.set_ylabel(f"{panel.quantity} ({panel.unit})", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, axis="y", alpha=0.3)


def _plain_numbers(axes: Any, values: Sequence[float]) -> None:
    """0.5, 1, 10 instead of powers of ten, and more of them where the range is narrow."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    low, high = np.nanmin(values), np.nanmax(values)
    if high / low < 3:
        axes.set_ylim(low / 1.05, high * 1.05)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    else:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def _best(problem: ProblemTiles) -> Iterator[tuple[int, str, Any, str]]:
    """Tile, colour, dashes and words of what was best."""
    fastest, thriftiest = problem.fastest, problem.thriftiest
    time = "" if fastest is None else f"{_four_digits(fastest.runtime_ms)} ms"
    energy = "" if thriftiest is None else f"{_four_digits(thriftiest.energy_mj)} mJ"
    if fastest is not None and fastest is thriftiest:
        yield fastest.tile, _FASTEST, "--", f"fastest, and least energy: tile {fastest.tile}, {time}, {energy}"
        return
    if fastest is not None:
        yield fastest.tile, _FASTEST, "--", f"fastest: tile {fastest.tile}, {time}"
    if thriftiest is not None:
        yield thriftiest.tile, _THRIFTIEST, ":", f"least energy: tile {thriftiest.tile}, {energy}"


def _four_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"


def _legend(figure: Any, problem: ProblemTiles) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linestyle=dashes, linewidth=1.6, label=words)
        for _, colour, dashes, words in _best(problem)
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)


# --- all problems of a device type -------------------------------------------------------------------


def _map_plot(path: Path, study: DeviceTiles, *, force: bool) -> Path:
    """Problems × tiles, time over the time of the problem's best tile."""
    from matplotlib.colors import LogNorm

    tiles = sorted({point.tile for problem in study.problems for point in problem.points})
    relative = np.full((len(study.problems), len(tiles)), np.nan)
    for row, problem in enumerate(study.problems):
        best = min(point.runtime_ms for point in problem.points)
        for point in problem.points:
            relative[row, tiles.index(point.tile)] = point.runtime_ms / best
    count = len(study.problems)
    label_width = 0.085 * max(len(problem.label) for problem in study.problems)
    figure = _figure(label_width + 0.58 * len(tiles) + 1.6, min(0.24 * count, 60) + 1.9)
    axes = figure.subplots()
    slowest = float(np.nanmax(relative))
    darkest = min(max(slowest, 1.1), _DARKEST)
    shades = LogNorm(1, darkest)
    image = axes.imshow(np.ma.masked_invalid(relative), norm=shades, cmap=_shades(), aspect="auto")
    axes.set_xticks(np.arange(len(tiles) - 1) + 0.5, minor=True)
    axes.grid(which="minor", axis="x", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    if count <= _MOST_ANNOTATED:
        _annotate(axes, relative, shades)
    step = -(-count // _MOST_LABELLED)
    axes.set_yticks(range(0, count, step), [problem.label for problem in study.problems[::step]], fontsize=8)
    axes.set_xticks(range(len(tiles)), [str(tile) for tile in tiles], fontsize=9)
    axes.set_xlabel("tile")
    axes.set_title(f"{study.device_type}: time relative to each problem's best tile\n"
                   f"tiled, {_of_rows(study.rows, study.devices)}", fontsize=11)  # fmt: skip
    reach: Any = "max" if slowest > darkest else "neither"
    bar = figure.colorbar(image, ax=axes, label="time / best time", extend=reach)
    marks = [mark for mark in (1, 1.1, 1.2, 1.5, 2, 3) if mark <= darkest]
    marks = marks if count >= 8 else [marks[0], marks[-1]]
    bar.set_ticks(marks, labels=[f"{mark:g}×" for mark in marks])
    bar.minorticks_off()
    with replacing(path, force=force) as draft:
        figure.savefig(draft)
    return path


def _shades() -> Any:
    """The best tile is light, the slowest dark; what was not measured is grey."""
    from matplotlib import colormaps

    return colormaps["cividis_r"].with_extremes(bad="#D9D9D9")


def _annotate(axes: Any, relative: Any, shades: Any) -> None:
    for (row, column), value in np.ndenumerate(relative):
        if np.isnan(value):
            axes.text(column, row, "–", ha="center", va="center", fontsize=7.5, color="#444444")
            continue
        axes.text(
            column,
            row,
            f"{value:.2f}" if value < 10 else f"{value:,.0f}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if shades(value) > 0.5 else "black",
            fontweight="bold" if value == 1 else "normal",
        )
