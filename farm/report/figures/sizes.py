"""Time and energy of a GEMM against its size."""

from __future__ import annotations

import numpy as np

from farm.charts.chart import Axis, Chart, Dashes, Scale, Series, number, slug
from farm.compare.statistics import Floats, Ints
from farm.formatting import counted
from farm.report.figures.points import series_of, shading_of, thinned
from farm.report.result_points import Results


def sizes(results: Results) -> list[Chart]:
    """The time of each device type, and the energy where power was measured."""
    charts = list[Chart]()
    for kind in range(len(results.types)):
        of_type = results.type == kind
        for quantity, unit, values in (("time", "ms", results.runtime_ms), ("energy", "mJ", results.energy_mj)):
            points = np.flatnonzero(of_type & np.isfinite(values))
            if len(points):
                charts.append(_against_size(results, kind, points, quantity, unit, values))
    return charts


def _against_size(results: Results, kind: int, points: Ints, quantity: str, unit: str, values: Floats) -> Chart:
    device_type = results.types[kind]
    is_best = results.fastest if quantity == "time" else results.thriftiest
    drawn, remark = thinned(points, np.flatnonzero(is_best))
    gflop = results.flops / 1e9
    message = (
        f"{counted(len(points), 'configuration')} on {device_type}, from {number(gflop[points].min())} to "
        f"{number(gflop[points].max())} GFLOP: the {quantity} of one GEMM goes from {number(values[points].min())} to "
        f"{number(values[points].max())} {unit}."
    )
    if (shown_by := shading_of(results, drawn)) is not None:
        remark += shown_by.message
    return Chart(
        name=slug(f"{quantity} {device_type}"),
        title=f"{quantity.capitalize()} against size on {device_type}",
        message=message + remark,
        x=Axis(label="work of the GEMM, 2·batch·m·n·k", unit="GFLOP", scale=Scale.LOG),
        y=Axis(label=f"{quantity} of one GEMM", unit=unit, scale=Scale.LOG),
        series=(
            *(_at_peak(results, kind, gflop[points]) if quantity == "time" else ()),
            *series_of(
                results, drawn, gflop, values, best=(f"least {quantity} of each problem", points[is_best[points]])
            ),
        ),
    )


def _at_peak(results: Results, kind: int, gflop: Floats) -> tuple[Series, ...]:
    """The time at the card's peak, where all points have the same element types and sparsity."""
    card, multiplied = results.cards[kind], {(problem.types, problem.sparsity) for problem in results.problems}
    if card is None or len(multiplied) != 1:
        return ()
    ((types, sparsity),) = multiplied
    peak = card.peak_tflops(types.ab, sparsity)
    if peak is None:
        return ()
    ends = np.array([gflop.min(), gflop.max()])
    name = f"at the {card.name}'s peak, {number(peak)} TFLOP/s"
    return (Series(name=name, x=ends, y=ends / peak, points=False, line=Dashes.SOLID, reference=True),)
