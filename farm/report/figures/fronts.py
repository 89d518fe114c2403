"""Time and energy at once: which kernels are on the Pareto front of their problem."""

from __future__ import annotations

import numpy as np

from farm.charts.chart import Axis, Chart, Scale, Series, number, slug
from farm.compare.statistics import Ints
from farm.formatting import counted
from farm.report.figures.points import percent, texts, thinned
from farm.report.result_points import Bools, Results


def of_choice(results: Results) -> Bools:
    """Points of problems with two or more kernels that have an energy: other problems offer no choice."""
    known = np.isfinite(results.energy_mj)
    kernels = np.bincount(results.place[known], minlength=len(results.types) * max(len(results.problems), 1))
    found: Bools = known & (kernels[results.place] > 1)
    return found


def front_sizes(results: Results) -> dict[int, int]:
    """The number of problems by the number of kernels on their front."""
    on_front = results.on_front & of_choice(results)
    sizes = np.unique(results.place[on_front], return_counts=True)[1]
    return {int(size): int(count) for size, count in zip(*np.unique(sizes, return_counts=True), strict=True)}


def fronts(results: Results) -> list[Chart]:
    """One for each device type with a problem that has two or more kernels with an energy."""
    choice = of_choice(results)
    return [
        _front(results, kind, points)
        for kind in range(len(results.types))
        if len(points := np.flatnonzero(choice & (results.type == kind)))
    ]


def _front(results: Results, kind: int, points: Ints) -> Chart:
    with_energy = np.where(np.isfinite(results.energy_mj), results.runtime_ms, np.nan)
    time, energy = with_energy / results.least(with_energy), results.energy_mj / results.least(results.energy_mj)
    on_front = points[results.on_front[points]]
    others, remark = thinned(np.setdiff1d(points, on_front))
    problems = len(np.unique(results.place[points]))
    both = int((results.on_front & (time == 1) & (energy == 1))[points].sum())
    message = (
        f"{counted(len(points), 'configuration')} with energy of {counted(problems, 'problem')} on "
        f"{results.types[kind]}; 1 is the least time and the least energy of any kernel of the problem. "
        f"{counted(len(on_front), 'configuration')} are on the front of their problem, {number(len(on_front) / problems)} "
        f"each. On {percent(both / problems)} of the problems one kernel is the fastest and takes the least energy."
    )
    return Chart(
        name=slug(f"pareto {results.types[kind]}"),
        title=f"Time and energy on {results.types[kind]}, against the best of each problem",
        message=message + remark,
        x=Axis(label="time over the least", unit="1 is the fastest", scale=Scale.LOG),
        y=Axis(label="energy over the least", unit="1 is the least", scale=Scale.LOG),
        series=tuple(
            Series(
                name=f"{name} ({len(of):,})",
                x=time[of],
                y=energy[of],
                look=look,
                faint=faint,
                texts=texts(results, of),
            )
            for name, of, look, faint in (
                ("another kernel is better in both", others, 5, True),
                ("on the front of its problem", on_front, 1, False),
            )
            if len(of)
        ),
    )
