"""Heat maps of kernel parameters: how close kernels with two values come to the best of their problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from farm.charts.chart import Axis, HeatMap, Scale, slug
from farm.compare import breakdowns
from farm.compare.statistics import Floats, Ints, medians_at
from farm.formatting import counted
from farm.report.figures.points import percent
from farm.report.figures.shades import effect
from farm.report.result_points import Results, varying_parameters

MAX_MAPS = 3
"""Maps of one family on one device type."""

MAX_VALUES = 64
"""Values of a parameter on an axis."""

_BELONG = (("tile_m", "tile_n"), ("cluster_m", "cluster_n"), ("warp_m", "warp_n"))
"""Pairs of dimensions of one thing, shown together where both vary."""


def heat_maps(results: Results) -> list[HeatMap]:
    """For each device type and family whose parameters vary, the pairs that matter most.

    A single parameter is shown against the size of the problem.
    """
    varying = varying_parameters(results.kernels)
    maps = list[HeatMap]()
    for kind in range(len(results.types)):
        for number, family in enumerate(results.families):
            points = np.flatnonzero((results.type == kind) & (results.family == number))
            axes = {
                name: values
                for name, values in varying[family].items()
                if len(values) <= MAX_VALUES and len(points) > len(values)
            }
            if axes and len(points):
                maps += _of_family(results, kind, family, points, axes)
    return maps


def _of_family(results: Results, kind: int, family: str, points: Ints, axes: dict[str, list[int]]) -> Iterator[HeatMap]:
    shares = results.share_of_best[points]
    places = {name: _places(results, points, name, values) for name, values in axes.items()}
    effects = {name: effect(shares, places[name]) for name in axes}
    filled = {pair: _filled(places[pair[0]], places[pair[1]]) for pair in combinations(sorted(axes), 2)}
    for first, second in chosen_pairs(effects, filled):
        if second is None:
            sizes = breakdowns.by_size(results.flops[points])
            there = np.unique(sizes.which)
            across = Axis(label="size", scale=Scale.NAMES, names=tuple(sizes.labels[size] for size in there))
            across_at = np.searchsorted(there, sizes.which)
        else:
            across = Axis(label=second, scale=Scale.NAMES, names=tuple(map(str, axes[second])))
            across_at = places[second]
        up = Axis(label=first, scale=Scale.NAMES, names=tuple(map(str, axes[first])))
        yield _heat_map(results.types[kind], family, up, places[first], across, across_at, shares)


def chosen_pairs(effects: dict[str, float], filled: dict[tuple[str, str], float]) -> list[tuple[str, str | None]]:
    """Pairs of parameters: a pair that belongs together first, then those that matter most; the most important one against size.

    Args:
        effects: How much each parameter matters.
        filled: The share of non-empty cells of each pair, in alphabetical order. If one parameter follows from the other, most
            cells are empty, and the pair shows little more than one parameter.
    """
    ranked = sorted(effects, key=lambda name: (-effects[name], name))
    belonging = [pair for pair in _BELONG if set(pair) <= set(ranked)]
    rest = sorted(
        (pair for pair in combinations(ranked, 2) if pair not in belonging and pair[::-1] not in belonging),
        key=lambda pair: -(effects[pair[0]] + effects[pair[1]]) * filled[min(pair), max(pair)],
    )
    belonging.sort(key=lambda pair: -max(effects[pair[0]], effects[pair[1]]))
    pairs: Sequence[tuple[str, str | None]] = [*belonging[:1], *rest, *belonging[1:]]
    return [*pairs[: MAX_MAPS - 1], (ranked[0], None)]


def _filled(first: Ints, second: Ints) -> float:
    """The share of the cells of two parameters' values that have a point."""
    cells = len(np.unique(first)) * len(np.unique(second))
    return len(np.unique(first * (int(second.max()) + 1) + second)) / cells


def _places(results: Results, points: Ints, name: str, values: Sequence[int]) -> Ints:
    of_kernel = np.array([dict(kernel.parameters).get(name, values[0]) for kernel in results.kernels])
    return np.searchsorted(np.array(values), of_kernel[results.kernel[points]]).astype(np.int64)


def _heat_map(
    device_type: str, family: str, up: Axis, up_at: Ints, across: Axis, across_at: Ints, shares: Floats
) -> HeatMap:
    height, width = len(up.names), len(across.names)
    cell = up_at * width + across_at
    values = 100 * medians_at(shares, cell, height * width).reshape(height, width)
    counts = np.bincount(cell, minlength=height * width).reshape(height, width)
    best, worst = (divmod(int(place), width) for place in (np.nanargmax(values), np.nanargmin(values)))

    def where(place: tuple[int, int]) -> str:
        return f"{up.label} {up.names[place[0]]}, {across.label} {across.names[place[1]]}"

    return HeatMap(
        name=slug(f"parameters {device_type} {family} {up.label} {across.label}"),
        title=f"{family} on {device_type}: {up.label} and {across.label}",
        message=(
            f"Median share of the speed of each problem's best kernel, over {counted(len(shares), 'configuration')}. The "
            f"best cell is {where(best)} with {percent(values[best] / 100)}, the worst {where(worst)} with "
            f"{percent(values[worst] / 100)}."
        ),
        x=across,
        y=up,
        value=Axis(label="share of the best", unit="%", limits=(0.0, 100.0)),
        values=values,
        counts=counts,
    )
