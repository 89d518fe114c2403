"""Intervals that hold as many measurements as they claim, from rows whose shapes were held out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from trainer.model.columns import OUTPUTS, Bools, Floats
from trainer.model.predictor import CLAIM, Interval

CLAIMS = (0.5, 0.8, 0.9, 0.95)

FEWEST = 20
"""Held-out rows below which no quantile means anything."""

_FLOOR = 0.5
"""Of the median residual: trees that agree by chance are not certain."""


def calibrate(measured: pd.DataFrame, predicted: pd.DataFrame, spreads: pd.DataFrame) -> dict[str, Interval]:
    """An interval for each of `OUTPUTS` that has enough held-out rows: see `Interval`. All three tables have these columns."""
    found = {}
    for output in OUTPUTS:
        residual = np.abs(np.log(predicted[output].to_numpy() / measured[output].to_numpy()))
        spread = spreads[output].to_numpy()
        usable = np.isfinite(residual) & np.isfinite(spread)
        if usable.sum() < FEWEST:
            continue
        residual, spread = residual[usable], spread[usable]
        floor = _FLOOR * max(float(np.median(residual)), 1e-6)
        ratios = np.sort(residual / (spread + floor))
        # The share of rows at or below the quantile, counted as if the row that is asked for were among them.
        ranks = {claim: min(len(ratios), int(np.ceil(claim * (len(ratios) + 1)))) for claim in CLAIMS}
        found[output] = Interval(floor, {f"{claim:g}": float(ratios[rank - 1]) for claim, rank in ranks.items()})
    return found


def bounds(
    intervals: Mapping[str, Interval], predicted: pd.DataFrame, spreads: pd.DataFrame, claim: float = CLAIM
) -> pd.DataFrame:
    """`<output>_low` and `<output>_high` for each output that has an interval."""
    columns = {}
    for output, interval in intervals.items():
        half = interval.half_width(spreads[output].to_numpy(), claim)
        columns[f"{output}_low"] = predicted[output] * np.exp(-half)
        columns[f"{output}_high"] = predicted[output] * np.exp(half)
    return pd.DataFrame(columns, index=predicted.index)


def out_of_fold_bounds(
    measured: pd.DataFrame, predicted: pd.DataFrame, spreads: pd.DataFrame, fold: Floats, claim: float = CLAIM
) -> pd.DataFrame:
    """The bounds of each row by intervals that the rows of other folds alone calibrate: their coverage is honest."""
    parts = []
    for number in np.unique(fold):
        own: Bools = fold == number
        intervals = calibrate(measured[~own], predicted[~own], spreads[~own])
        parts.append(bounds(intervals, predicted[own], spreads[own], claim))
    return pd.concat(parts).reindex(measured.index) if parts else pd.DataFrame(index=measured.index)
