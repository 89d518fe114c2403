"""What a PFLOP costs: money by the hour of a card, and grams of CO2 by the energy that it takes (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.compare.statistics import Floats, Ints, ratio_of_sums

PFLOP = 1e15
_MS_PER_HOUR = 3.6e6
_MJ_PER_KWH = 3.6e9  # millijoules
FEWEST_SHAPES = 6
"""With fewer a bootstrap over shapes says too little, and medians have no interval either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What 1e15 operations cost on the baseline and on a side, as a mix of every shared configuration once."""

    baseline: float | None
    side: float | None
    # side / baseline, with the interval of the bootstrap over shapes.
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    configurations: int


def money(
    flops: Floats,
    shapes: Ints,
    baseline_ms: Floats,
    side_ms: Floats,
    *,
    baseline_price: float | None,
    price: float | None,
) -> Cost | None:
    """Money per PFLOP at prices per hour of a card; times [configurations]. None without any price."""
    if baseline_price is None and price is None:
        return None
    return _cost(
        flops,
        shapes,
        None if baseline_price is None else baseline_ms * (baseline_price / _MS_PER_HOUR),
        None if price is None else side_ms * (price / _MS_PER_HOUR),
    )


def carbon(
    flops: Floats, shapes: Ints, baseline_mj: Floats, side_mj: Floats, *, grams_per_kwh: float | None
) -> Cost | None:
    """Grams of CO2 per PFLOP over the configurations that both have the energy of, mJ [configurations], NaN where not."""
    both = np.isfinite(baseline_mj) & np.isfinite(side_mj)
    if grams_per_kwh is None or not both.any():
        return None
    grams = grams_per_kwh / _MJ_PER_KWH
    return _cost(flops[both], shapes[both], baseline_mj[both] * grams, side_mj[both] * grams)


def _cost(flops: Floats, shapes: Ints, baseline: Floats | None, side: Floats | None) -> Cost:
    pflop = float(flops.sum()) / PFLOP
    found = Cost(
        baseline=None if baseline is None else float(baseline.sum()) / pflop,
        side=None if side is None else float(side.sum()) / pflop,
        configurations=len(flops),
    )
    if baseline is None or side is None:
        return found
    held = np.bincount(shapes) > 0
    above, below = (np.bincount(shapes, weights=each)[held].astype(np.float64) for each in (side, baseline))
    # Many shapes scatter little, and drawing from them takes long.
    ratio, low, high = ratio_of_sums(above, below, draws=1000 if len(above) <= 20_000 else 200)
    known = len(above) >= FEWEST_SHAPES
    return Cost(
        baseline=found.baseline,
        side=found.side,
        ratio=ratio,
        low=low if known else None,
        high=high if known else None,
        configurations=len(flops),
    )
