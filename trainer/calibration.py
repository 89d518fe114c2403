"""Intervals that hold as many measurements as they claim, from rows whose shapes were held out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from farm.forest.columns import OUTPUTS
from farm.forest.numeric import Bools, Floats
from farm.forest.predictor import CLAIM, UNMEASURED, Interval, groups_of, half_widths, widening
from farm.forest.reach import Reach
from farm.forest.text_columns import Text

CLAIMS = (0.5, 0.8, 0.9, 0.95)

FEWEST = 20
"""Held-out rows below which no quantile means anything."""

_FLOOR = 0.5
"""Of the median residual: trees that agree by chance are not certain."""


MIN_ROWS_OF_GROUP = 100
"""Held-out rows below which a family, or a family with its types, has no quantiles of its own."""


def lies(reach: Reach, index: pd.Index) -> pd.DataFrame:
    """Where rows lie, as a table: `kind` ("family:ab:cd:acc"), `distance` in octaves, and `unmeasured`, of their kernel."""
    kinds = np.array(reach.kinds.values, dtype=object)[reach.kinds.codes]
    return pd.DataFrame({"kind": kinds, "distance": reach.distance, "unmeasured": reach.unmeasured}, index)


def calibrate(
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    spreads: pd.DataFrame,
    where: pd.DataFrame | None = None,
    *,
    unmeasured: bool = False,
) -> dict[str, Interval]:
    """An interval for each of `OUTPUTS` that has enough held-out rows: see `Interval`. All three tables have these columns.

    `where` is what `lies` makes of the rows. Each family, and each family with its types, that has enough rows has an interval of
    its own: Mondrian conformal prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, 4.5).
    With `unmeasured` the intervals are those of kernels that were never measured, which is what the rows must be of.
    """
    found = {}
    prefix = f" {UNMEASURED}" if unmeasured else ""
    wider = np.ones(len(measured)) if where is None else widening(where["distance"].to_numpy())
    groups: dict[str, Bools] = {}
    if where is not None:
        for column in (where["kind"], where["kind"].str.split(":").str[0]):
            groups |= {f" {name}": (column == name).to_numpy() for name in sorted(column.dropna().unique())}
    for output in OUTPUTS:
        residual = np.abs(np.log(predicted[output].to_numpy() / measured[output].to_numpy()))
        spread = spreads[output].to_numpy()
        usable = np.isfinite(residual) & np.isfinite(spread) & np.isfinite(wider)
        if usable.sum() < FEWEST:
            continue
        found[output + prefix] = _interval(residual[usable], spread[usable], wider[usable])
        for name, rows in groups.items():
            own = usable & rows
            if own.sum() >= MIN_ROWS_OF_GROUP:
                found[output + prefix + name] = _interval(residual[own], spread[own], wider[own])
    return found


def _interval(residual: Floats, spread: Floats, wider: Floats) -> Interval:
    floor = _FLOOR * max(float(np.median(residual)), 1e-6)
    ratios = np.sort(residual / ((spread + floor) * wider))
    # The share of rows at or below the quantile, counted as if the predicted row were one of them.
    ranks = {claim: min(len(ratios), int(np.ceil(claim * (len(ratios) + 1)))) for claim in CLAIMS}
    return Interval(floor, {f"{claim:g}": float(ratios[rank - 1]) for claim, rank in ranks.items()})


def bounds(
    intervals: Mapping[str, Interval],
    predicted: pd.DataFrame,
    spreads: pd.DataFrame,
    claim: float = CLAIM,
    where: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """`<output>_low` and `<output>_high` for each output that has an interval."""
    columns = {}
    rows = len(predicted)
    if where is None:
        groups, wider = groups_of(Text(np.zeros(rows, "intp"), ("",)), np.zeros(rows, bool)), np.ones(rows)
    else:
        codes, names = pd.factorize(where["kind"])
        kinds = Text(codes, tuple(str(name) for name in names))
        groups, wider = groups_of(kinds, where["unmeasured"].to_numpy(bool)), widening(where["distance"].to_numpy())
    calibrated = [output for output in OUTPUTS if any(name.split(" ", 1)[0] == output for name in intervals)]
    if calibrated:
        halves = half_widths(intervals, calibrated, groups, spreads[calibrated].to_numpy().T, wider, claim)
        for output, half in zip(calibrated, halves, strict=True):
            columns[f"{output}_low"] = predicted[output] * np.exp(-half)
            columns[f"{output}_high"] = predicted[output] * np.exp(half)
    return pd.DataFrame(columns, index=predicted.index)


def out_of_fold_bounds(
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    spreads: pd.DataFrame,
    fold: Floats,
    claim: float = CLAIM,
    where: pd.DataFrame | None = None,
    *,
    unmeasured: bool = False,
) -> pd.DataFrame:
    """The bounds of each row by intervals that the rows of other folds alone calibrate: their coverage is honest."""
    parts = []
    for number in np.unique(fold):
        own: Bools = fold == number
        others, ours = (None, None) if where is None else (where[~own], where[own])
        intervals = calibrate(measured[~own], predicted[~own], spreads[~own], others, unmeasured=unmeasured)
        parts.append(bounds(intervals, predicted[own], spreads[own], claim, ours))
    return pd.concat(parts).reindex(measured.index) if parts else pd.DataFrame(index=measured.index)
