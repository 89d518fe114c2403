"""Intervals that hold as many measurements as they claim, from rows whose shapes were held out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from trainer.model.columns import OUTPUTS, Bools, Floats, Text
from trainer.model.predictor import CLAIM, Interval, half_widths

CLAIMS = (0.5, 0.8, 0.9, 0.95)

FEWEST = 20
"""Held-out rows below which no quantile means anything."""

_FLOOR = 0.5
"""Of the median residual: trees that agree by chance are not certain."""


FEWEST_OF_FAMILY = 100
"""Held-out rows below which a family has no quantiles of its own."""


def calibrate(
    measured: pd.DataFrame, predicted: pd.DataFrame, spreads: pd.DataFrame, family: pd.Series | None = None
) -> dict[str, Interval]:
    """An interval for each of `OUTPUTS` that has enough held-out rows: see `Interval`. All three tables have these columns.

    Where the rows' families are given, each that has enough has its own, as `<output> <family>`: Mondrian conformal prediction
    (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, 4.5).
    """
    found = {}
    for output in OUTPUTS:
        residual = np.abs(np.log(predicted[output].to_numpy() / measured[output].to_numpy()))
        spread = spreads[output].to_numpy()
        usable = np.isfinite(residual) & np.isfinite(spread)
        if usable.sum() < FEWEST:
            continue
        found[output] = _interval(residual[usable], spread[usable])
        for name in () if family is None else sorted(family.unique()):
            own = usable & (family == name).to_numpy()
            if own.sum() >= FEWEST_OF_FAMILY:
                found[f"{output} {name}"] = _interval(residual[own], spread[own])
    return found


def _interval(residual: Floats, spread: Floats) -> Interval:
    floor = _FLOOR * max(float(np.median(residual)), 1e-6)
    ratios = np.sort(residual / (spread + floor))
    # The share of rows at or below the quantile, counted as if the row that is asked for were among them.
    ranks = {claim: min(len(ratios), int(np.ceil(claim * (len(ratios) + 1)))) for claim in CLAIMS}
    return Interval(floor, {f"{claim:g}": float(ratios[rank - 1]) for claim, rank in ranks.items()})


def bounds(
    intervals: Mapping[str, Interval],
    predicted: pd.DataFrame,
    spreads: pd.DataFrame,
    claim: float = CLAIM,
    family: pd.Series | None = None,
) -> pd.DataFrame:
    """`<output>_low` and `<output>_high` for each output that has an interval."""
    columns = {}
    codes, names = pd.factorize(pd.Series("", predicted.index) if family is None else family)
    text = Text(codes, tuple(str(name) for name in names))
    for output in OUTPUTS:
        if output in intervals:
            half = half_widths(intervals, output, text, spreads[output].to_numpy(), claim)
            columns[f"{output}_low"] = predicted[output] * np.exp(-half)
            columns[f"{output}_high"] = predicted[output] * np.exp(half)
    return pd.DataFrame(columns, index=predicted.index)


def out_of_fold_bounds(
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    spreads: pd.DataFrame,
    fold: Floats,
    claim: float = CLAIM,
    family: pd.Series | None = None,
) -> pd.DataFrame:
    """The bounds of each row by intervals that the rows of other folds alone calibrate: their coverage is honest."""
    parts = []
    for number in np.unique(fold):
        own: Bools = fold == number
        intervals = calibrate(measured[~own], predicted[~own], spreads[~own], None if family is None else family[~own])
        parts.append(bounds(intervals, predicted[own], spreads[own], claim, None if family is None else family[own]))
    return pd.concat(parts).reindex(measured.index) if parts else pd.DataFrame(index=measured.index)
