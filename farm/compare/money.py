"""Cost of 1e15 operations: money by the hour of a card, and grams of CO2 by energy (pure)."""

from __future__ import annotations

import numpy as np

from farm.compare.statistics import Floats, Ints, ratio_of_sums
from farm.compare.summaries import Cost

PFLOP = 1e15
_MS_PER_HOUR = 3.6e6
_MJ_PER_KWH = 3.6e9  # millijoules
MIN_SHAPES = 6
"""With fewer shapes a bootstrap over shapes means little, and medians have no interval either."""


def money(
    flops: Floats,
    shapes: Ints,
    baseline_ms: Floats,
    side_ms: Floats,
    prices: tuple[float | None, float | None],
) -> Cost | None:
    """Money per PFLOP from times [configurations] and prices per hour of the two cards. None without any price."""
    if prices == (None, None):
        return None
    baseline, side = (
        None if price is None else ms * (price / _MS_PER_HOUR)
        for ms, price in zip((baseline_ms, side_ms), prices, strict=True)
    )
    return _cost(flops, shapes, baseline, side)


def carbon(
    flops: Floats, shapes: Ints, baseline_mj: Floats, side_mj: Floats, grams_per_kwh: float | None
) -> Cost | None:
    """Grams of CO2 per PFLOP from energies [configurations] in mJ, over the configurations where both are known."""
    both = np.isfinite(baseline_mj) & np.isfinite(side_mj)
    if grams_per_kwh is None or not both.any():
        return None
    grams = grams_per_kwh / _MJ_PER_KWH
    return _cost(flops[both], shapes[both], baseline_mj[both] * grams, side_mj[both] * grams)


def _cost(flops: Floats, shapes: Ints, baseline: Floats | None, side: Floats | None) -> Cost:
    pflop = float(flops.sum()) / PFLOP
    ratio = low = high = None
    if baseline is not None and side is not None:
        present = np.bincount(shapes) > 0
        above, below = (np.bincount(shapes, weights=each)[present].astype(np.float64) for each in (side, baseline))
        # With many shapes the ratio varies little, and each draw takes long.
        ratio, low, high = ratio_of_sums(above, below, draws=1000 if len(above) <= 20_000 else 200)
        if len(above) < MIN_SHAPES:
            low = high = None
    return Cost(
        baseline=None if baseline is None else float(baseline.sum()) / pflop,
        side=None if side is None else float(side.sum()) / pflop,
        ratio=ratio,
        low=low,
        high=high,
        configurations=len(flops),
    )
