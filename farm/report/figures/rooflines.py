"""Rooflines: every configuration under the limits of its card's memory and arithmetic units (Williams, Waterman and Patterson, CACM 52, 2009)."""

from __future__ import annotations

import numpy as np

from farm.charts.chart import Axis, Chart, Dashes, Scale, Series, number, slug
from farm.compare.statistics import Ints
from farm.formatting import counted, scalars_text
from farm.gemm import ElementType
from farm.gpus import Gpu
from farm.report.figures.points import percent, series_of, shading_of, thinned
from farm.report.result_points import Results
from farm.sparsity import Sparsity


def rooflines(results: Results) -> list[Chart]:
    """One for each device type, element types and sparsity, those with the most configurations first."""
    sparsity = np.array([str(problem.sparsity) for problem in results.problems])[results.problem]
    groups = [
        (kind, types, each, points)
        for kind in range(len(results.types))
        for types in range(len(results.element_types))
        for each in Sparsity
        if len(
            points := np.flatnonzero((results.type == kind) & (results.element_type == types) & (sparsity == str(each)))
        )
    ]
    return [_roofline(results, *group) for group in sorted(groups, key=lambda group: (group[0], -len(group[3])))]


def _roofline(results: Results, kind: int, types: int, sparsity: Sparsity, points: Ints) -> Chart:
    card = results.cards[kind]
    device_type, element_types = results.types[kind], results.element_types[types]
    peak = None if card is None else card.peak_tflops(ElementType(element_types.split(":")[0]), sparsity)
    element_types += scalars_text(1, 0, sparsity=str(sparsity))
    drawn, remark = thinned(points, np.flatnonzero(results.fastest))
    fastest = points[int(np.argmax(results.tflops[points]))]
    reached = results.tflops[points] / results.roof_tflops[points]
    message = (
        f"{counted(len(points), 'configuration')} of {element_types} on {device_type}. The fastest reaches "
        f"{number(results.tflops[fastest])} TFLOP/s"
    )
    if card is not None and peak is not None:
        message += (
            f", {percent(results.tflops[fastest] / results.roof_tflops[fastest])} of the roof at its intensity; in the "
            f"median they reach {percent(float(np.median(reached)))}. The roof is that of the {card.name}: "
            f"{number(card.memory_gb_per_s)} GB/s and {number(peak)} TFLOP/s."
        )
    else:
        message += ". No roof is drawn: " + (
            f"{device_type} is not in the table of cards."
            if card is None
            else f"the {card.name} has no peak for {element_types}."
        )
    if (shown_by := shading_of(results, drawn, by_type=False)) is not None:
        remark += shown_by.message
    return Chart(
        name=slug(f"roofline {device_type} {element_types}"),
        title=f"Roofline of {device_type}, {element_types}",
        message=message + remark,
        x=Axis(label="arithmetic intensity", unit="flop/byte", scale=Scale.LOG),
        y=Axis(label="speed", unit="TFLOP/s", scale=Scale.LOG),
        series=(
            *_roof(card, peak, results.intensity[points].min(), results.intensity[points].max()),
            *series_of(
                results,
                drawn,
                results.intensity,
                results.tflops,
                by_type=False,
                best=("the fastest of each problem", points[results.fastest[points]]),
            ),
        ),
    )


def _roof(card: Gpu | None, peak: float | None, low: float, high: float) -> tuple[Series, ...]:
    """Memory up to the ridge and computing from there, somewhat beyond the points on both sides."""
    if card is None or peak is None:
        return ()
    bandwidth = card.memory_gb_per_s / 1e3  # TFLOP/s at an intensity of 1
    ridge = peak / bandwidth
    low, high = min(low, ridge) / 1.3, max(high, ridge) * 1.3
    memory = Series(
        name=f"memory: {number(card.memory_gb_per_s)} GB/s",
        x=np.array([low, ridge]),
        y=np.array([low * bandwidth, peak]),
        points=False,
        line=Dashes.DASHED,
        reference=True,
    )
    computing = Series(
        name=f"computing: {number(peak)} TFLOP/s",
        x=np.array([ridge, high]),
        y=np.array([peak, peak]),
        points=False,
        line=Dashes.SOLID,
        reference=True,
    )
    return memory, computing
