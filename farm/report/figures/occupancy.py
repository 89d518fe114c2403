"""Occupancy and tiles: how close kernels come to the best of their problem, by how full they make a multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farm.analysis.tiles import DeviceTiles
from farm.charts.chart import Axis, Chart, Dashes, PointTexts, Scale, Series, number, slug
from farm.formatting import counted
from farm.report.figures.points import percent
from farm.report.result_points import Results

MIN_CONFIGURATIONS = 5
"""Fewer configurations with one occupancy are left out: their median means little."""


def occupancies(results: Results) -> list[Chart]:
    """One for each device type with kernels of two or more occupancies."""
    charts = list[Chart]()
    for kind, device_type in enumerate(results.types):
        series = list[Series]()
        best: tuple[float, float, str] | None = None
        for number_, family in enumerate(results.families):
            points = np.flatnonzero(
                (results.type == kind) & (results.family == number_) & np.isfinite(results.occupancy)
            )
            percents = np.round(100 * results.occupancy[points], 1)
            shares = 100 * results.share_of_best[points]
            levels, counts = np.unique(percents, return_counts=True)
            levels = levels[counts >= MIN_CONFIGURATIONS]
            if not len(levels):
                continue
            quartiles = np.array([np.quantile(shares[percents == level], (0.25, 0.5, 0.75)) for level in levels])
            texts = [counted(int(count), "configuration") for count in counts[counts >= MIN_CONFIGURATIONS]]
            top = int(np.argmax(quartiles[:, 1]))
            if best is None or quartiles[top, 1] > best[1]:
                best = float(levels[top]), float(quartiles[top, 1]), family
            series.append(
                Series(
                    name=family,
                    x=levels,
                    y=quartiles[:, 1],
                    low=quartiles[:, 0],
                    high=quartiles[:, 2],
                    look=number_,
                    line=Dashes.DOTTED,
                    texts=PointTexts((texts,), (np.arange(len(levels)),)),
                )
            )
        if best is None or sum(len(one.x) for one in series) < 2:
            continue
        charts.append(
            Chart(
                name=slug(f"occupancy {device_type}"),
                title=f"Occupancy and speed on {device_type}",
                message=(
                    "Median share of the best kernel's speed by theoretical occupancy, bars from the first to the third "
                    f"quartile. The highest median, {percent(best[1] / 100)}, is that of {best[2]} at {number(best[0])}% "
                    "occupancy."
                ),
                x=Axis(label="theoretical occupancy", unit="%", limits=(0.0, 100.0)),
                y=Axis(label="share of the best", unit="%", limits=(0.0, 100.0)),
                series=tuple(series),
            )
        )
    return charts


def tile_charts(studies: Sequence[DeviceTiles]) -> list[Chart]:
    """What a tile gains: one for each device type that measured two or more tiles of the family `tiled`."""
    return [_tiles(study) for study in studies if len(study.summary) > 1]


def _tiles(study: DeviceTiles) -> Chart:
    tiles = np.array([one.tile for one in study.summary], np.float64)
    speed_up = np.array([np.nan if one.speed_up is None else one.speed_up for one in study.summary])
    saving = np.array([np.nan if one.energy_ratio is None else 1 / one.energy_ratio for one in study.summary])
    known = np.isfinite(speed_up)
    top = int(np.nanargmax(speed_up))
    message = (
        f"Geometric means over {counted(len(study.problems), 'problem')}, against tile {study.baseline}. Tile "
        f"{study.summary[top].tile} gains most time: it is {number(float(speed_up[top]))} times as fast"
    )
    series = [Series(name="time", x=tiles[known], y=speed_up[known], look=0, line=Dashes.SOLID)]
    if np.isfinite(saving).any():
        thrifty = int(np.nanargmax(saving))
        message += f"; tile {study.summary[thrifty].tile} gains most energy: it takes {number(float(saving[thrifty]))} times less"
        there = np.isfinite(saving)
        series.append(Series(name="energy", x=tiles[there], y=saving[there], look=1, line=Dashes.DASHED))
    return Chart(
        name=slug(f"tiles {study.device_type}"),
        title=f"What a tile of the family tiled gains on {study.device_type}",
        message=message + ".",
        x=Axis(label="tile", unit="elements of a side"),
        y=Axis(label=f"times less than tile {study.baseline}", scale=Scale.LOG),
        series=tuple(series),
    )
