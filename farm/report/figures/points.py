"""What charts of points share: which points, how groups of them look, and the text of a point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from farm.charts.chart import PointTexts, Series
from farm.compare.statistics import Floats, Ints
from farm.report.figures.shades import Shading, shading
from farm.report.result_points import Results

MAX_POINTS = 30_000
"""Points of one chart: more make a page slow, and cannot be told apart."""


def texts(results: Results, points: Ints) -> PointTexts:
    """The names of the kernel and the problem of each point."""
    return PointTexts((results.kernel_names, results.problem_names), (results.kernel[points], results.problem[points]))


def groups(results: Results, points: Ints, *, by_type: bool = True) -> Iterator[tuple[str, int, Ints]]:
    """The points by family and element types, or by family alone: name, look, and which of `points` they are.

    The name leaves out what all points of the campaign have in common.
    """
    if not by_type:
        for family in np.unique(results.family[points]):
            yield results.families[family], int(family), points[results.family[points] == family]
        return
    types = len(results.element_types)
    group = results.family * types + results.element_type
    every = np.unique(group)
    for number in np.unique(group[points]):
        family, kind = divmod(int(number), types)
        names = [results.families[family]] if len(results.families) > 1 or types == 1 else []
        names += [results.element_types[kind]] if types > 1 else []
        yield " ".join(names), int(np.searchsorted(every, number)), points[group[points] == number]


def shading_of(results: Results, points: Ints, *, by_type: bool = True) -> Shading | None:
    """The parameter that colours show. None where they show families or element types, or no parameter varies."""
    return shading(results, points) if len(list(groups(results, points, by_type=by_type))) == 1 else None


def series_of(
    results: Results, points: Ints, x: Floats, y: Floats, *, by_type: bool = True, best: tuple[str, Ints]
) -> tuple[Series, ...]:
    """A series for each group of points, or for each value of the parameter that colours show.

    Args:
        x, y: A value for each point of the campaign.
        best: A name, and points that are shown in front of one group, or as rings where colours show a parameter. They are not
            shown if they are more than half of the points.
    """
    faint = len(points) > 500

    def part(name: str, of: Ints, look: int, **style: Any) -> Series:
        return Series(name=f"{name} ({len(of):,})", x=x[of], y=y[of], look=look, texts=texts(results, of), **style)

    few = 2 * len(best[1]) <= len(points)
    shown_by = shading_of(results, points, by_type=by_type)
    if shown_by is not None:
        rings = [part(*best, 0, reference=True, ring=True)] if few else []
        shades = enumerate(shown_by.shades)
        return (*(part(one.label, one.points, look, shade=one.position, faint=faint) for look, one in shades), *rings)
    found = [part(name, of, look, faint=faint) for name, look, of in groups(results, points, by_type=by_type)]
    return (*found, part(*best, found[0].look + 1)) if few and len(found) == 1 else tuple(found)


def thinned(points: Ints, always: Ints | None = None) -> tuple[Ints, str]:
    """At most about `MAX_POINTS` of the points, those of `always` among them, and a remark where some are left out."""
    if len(points) <= MAX_POINTS:
        return points, ""
    kept = np.random.default_rng(0).choice(points, MAX_POINTS, replace=False)
    if always is not None:
        kept = np.union1d(kept, np.intersect1d(points, always))
    return np.sort(kept), f" {len(kept):,} of {len(points):,} points are drawn, chosen at random."


def percent(share: float, digits: int = 3) -> str:
    """`68.1%`."""
    return f"{100 * share:.{digits}g}%"
