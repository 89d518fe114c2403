"""Charts of bars: values by name, and histograms (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farm.charts.chart import Axis, Chart, Scale, Series

FAR_OFF = 3.0
"""Interquartile ranges beyond the quartiles: values further out are counted in one bar, or they would flatten the rest."""


def histogram(title: str, values: Sequence[float], *, max_bins: int = 12) -> Chart:
    """How many values lie where: a bar for each bin, named by its bounds."""
    q1, q3 = np.quantile(values, (0.25, 0.75))
    reach = FAR_OFF * (q3 - q1) or math.inf
    inside = [value for value in values if q1 - reach <= value <= q3 + reach]
    low, high = min(inside), max(inside)
    bins = min(max_bins, max(1, math.ceil(math.sqrt(len(values))))) if low < high else 1
    step = (high - low) / bins
    counts = [0] * bins
    for value in inside:
        counts[min(int((value - low) / step), bins - 1) if step else 0] += 1
    edges = _distinct([low + step * i for i in range(bins + 1)], step)
    bars = [(f"{lower} to {upper}", count) for lower, upper, count in zip(edges, edges[1:], counts, strict=False)]
    below, above = (sum(value < low for value in values), sum(value > high for value in values))
    bars = [(f"below {edges[0]}", below)] * (below > 0) + bars + [(f"above {edges[-1]}", above)] * (above > 0)
    return bar_chart(title, bars, Axis(label="count", decimals=0))


def bar_chart(title: str, bars: Sequence[tuple[str, float]], values: Axis) -> Chart:
    """A horizontal bar for each name and value, from the top."""
    lengths = np.array([value for _, value in bars], np.float64)
    return Chart(
        name="bars",
        title=title,
        message="",
        x=values,
        y=Axis(label="", scale=Scale.NAMES, names=tuple(name for name, _ in bars), downwards=True),
        series=(Series(name=title, x=lengths, y=np.arange(len(bars), dtype=np.float64), bars=True),),
    )


def _distinct(edges: Sequence[float], step: float) -> list[str]:
    """Numbers with the digits that tell them apart: two of their distance."""
    if step == 0:
        return [f"{edge:.4g}" for edge in edges] * 2
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [f"{edge:.{digits}f}" for edge in edges]
