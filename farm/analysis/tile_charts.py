"""Charts of a study of tiles: each problem by tile, and one map of all problems of a device type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farm.analysis.tiles import DeviceTiles, ProblemTiles, TilePoint
from farm.charts.chart import Axis, Chart, Dashes, HeatMap, Panels, Rule, Scale, Series
from farm.charts.matplotlib_renderer import write_pngs
from farm.errors import BadInput

_MAX_TICKS = 16

_MAX_RELATIVE = 3.0
"""Tiles that take this many times the best one's time, or more, have the same colour: smaller differences matter more."""


@dataclass(frozen=True, slots=True)
class _Quantity:
    label: str
    unit: str
    value: Callable[[TilePoint], float | None]
    scale: Scale = Scale.LINEAR


_QUANTITIES = (
    _Quantity("time", "ms", lambda p: p.runtime_ms, Scale.LOG),
    _Quantity("power", "W", lambda p: p.power_w),
    _Quantity("energy of one GEMM", "mJ", lambda p: p.energy_mj, Scale.LOG),
    _Quantity("theoretical occupancy", "%", lambda p: None if p.occupancy is None else 100 * p.occupancy),
    _Quantity("shared memory of a block", "KiB", lambda p: p.shared_bytes / 1024),
)


def write(studies: Sequence[DeviceTiles], folder: Path, *, force: bool = True) -> Iterator[Path]:
    """Writes PNGs into the folder, which is made, and gives each one's path: problems, then the map, of each device type.

    Raises `BadInput` where the folder cannot be written to, `FileThere` without `force`.
    """
    try:
        for study in studies:
            for problem in study.problems:
                yield from write_pngs([problem_panels(study, problem)], folder, force=force)
            yield from write_pngs([tile_map(study)], folder, force=force)
    except OSError as error:
        raise BadInput(detail=f"{folder}: charts cannot be written there: {error.strerror}") from None


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text)


def _rows_text(rows: int, devices: int) -> str:
    return f"{rows:,} {'row' if rows == 1 else 'rows'} of {devices:,} {'device' if devices == 1 else 'devices'}"


def problem_panels(study: DeviceTiles, problem: ProblemTiles) -> Panels:
    """A chart of each quantity that was measured, against the tile.

    Tiles are at equal distances, because 1, 2, 4 and 28, 32 must all be legible.
    """
    tiles = [point.tile for point in problem.points]
    names = tuple(str(tile) if len(tiles) <= _MAX_TICKS or tile == 1 or tile % 4 == 0 else "" for tile in tiles)
    charts = list[Chart]()
    for quantity in _QUANTITIES:
        known = [
            (place, value) for place, point in enumerate(problem.points) if (value := quantity.value(point)) is not None
        ]
        if not known:
            continue
        x, y = np.array(known, np.float64).T
        linear = quantity.scale is Scale.LINEAR
        charts.append(
            Chart(
                name=quantity.label,
                title=f"{quantity.label} by tile",
                message="",
                x=Axis(label="tile", scale=Scale.NAMES, names=names),
                y=Axis(
                    label=quantity.label,
                    unit=quantity.unit,
                    scale=quantity.scale,
                    limits=(0.0, 1.06 * float(y.max())) if linear and y.max() > 0 else None,
                ),
                series=(Series(name=quantity.label, x=x, y=y, line=Dashes.SOLID),),
                rules=tuple(_rules(problem, tiles)),
            )
        )
    return Panels(
        name=_file_name(f"{study.device_type} {problem.label}"),
        title=f"{study.device_type}: tiled, {problem.label}\n{_rows_text(problem.rows, problem.devices)}",
        charts=tuple(charts),
    )


def _rules(problem: ProblemTiles, tiles: list[int]) -> Iterator[Rule]:
    """The best tiles."""
    fastest, thriftiest = problem.fastest, problem.thriftiest
    time = "" if fastest is None else f"{_four_digits(fastest.runtime_ms)} ms"
    energy = "" if thriftiest is None else f"{_four_digits(thriftiest.energy_mj)} mJ"
    if fastest is not None:
        both = fastest is thriftiest
        name = (
            f"fastest{', and least energy' if both else ''}: tile {fastest.tile}, {time}{f', {energy}' if both else ''}"
        )
        yield Rule(name=name, x=tiles.index(fastest.tile), look=1, line=Dashes.DASHED)
    if thriftiest is not None and thriftiest is not fastest:
        name = f"least energy: tile {thriftiest.tile}, {energy}"
        yield Rule(name=name, x=tiles.index(thriftiest.tile), look=2, line=Dashes.DOTTED)


def _four_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"


def tile_map(study: DeviceTiles) -> HeatMap:
    """Problems × tiles: time over the time of the problem's best tile."""
    tiles = sorted({point.tile for problem in study.problems for point in problem.points})
    relative = np.full((len(study.problems), len(tiles)), np.nan)
    for row, problem in enumerate(study.problems):
        best = min(point.runtime_ms for point in problem.points)
        for point in problem.points:
            relative[row, tiles.index(point.tile)] = point.runtime_ms / best
    highest = min(max(float(np.nanmax(relative)), 1.1), _MAX_RELATIVE)
    return HeatMap(
        name=_file_name(f"{study.device_type} tiles"),
        title=f"{study.device_type}: time relative to each problem's best tile\n"
        f"tiled, {_rows_text(study.rows, study.devices)}",
        message="",
        x=Axis(label="tile", scale=Scale.NAMES, names=tuple(map(str, tiles))),
        y=Axis(
            label="problem",
            scale=Scale.NAMES,
            names=tuple(problem.label for problem in study.problems),
            downwards=True,
        ),
        value=Axis(
            label="time / best time",
            scale=Scale.LOG,
            limits=(1.0, highest),
            ticks=tuple(tick for tick in (1, 1.1, 1.2, 1.5, 2, 3) if tick <= highest),
        ),
        values=relative,
        low_is_best=True,
    )
