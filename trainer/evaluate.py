"""How far held-out predictions are from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from trainer.folds import FOLD_KINDS, HEADLINE, Splits
from trainer.forest import ForestSettings, fit
from trainer.model.columns import OUTPUTS
from trainer.model.physics import flops
from trainer.model.predictor import Predictor

Metrics = dict[str, float]
Keep = Callable[[Predictor, pd.DataFrame, pd.DataFrame], None]
"""Is given each fold's model, the rows that it was fitted on, and those that were held out."""

_Array = np.ndarray[Any, np.dtype[np.float64]]


def measured_outputs(configured: pd.DataFrame) -> pd.DataFrame:
    """What a model should have said of each configuration: the columns of `OUTPUTS`."""
    stored = configured[["runtime_ms", "power_w", "energy_mj"]]
    return stored.assign(tflops=flops(configured) / stored["runtime_ms"] / 1e9)


def out_of_fold(
    device_type: str, configured: pd.DataFrame, splits: Splits, settings: ForestSettings, keep: Keep | None = None
) -> pd.DataFrame:
    """A prediction for each row by a model that was fitted without the row's fold.

    Everything that is learned, the roofline included, is learned from the other folds. A row with a family, type or
    layout that they lack stays NaN: no model would have predicted it.
    """
    predicted = pd.DataFrame(np.nan, index=configured.index, columns=list(OUTPUTS))
    for training, held_out in splits:
        fitted_on, rows = configured.iloc[training], configured.iloc[held_out]
        model = fit(device_type, fitted_on, settings)
        if keep is not None:
            keep(model, fitted_on, rows)
        rows = rows[model.vocabulary.known(rows)]
        if len(rows):
            predicted.loc[rows.index] = model.predict(rows)
    return predicted


def metrics(measured: pd.Series, predicted: pd.Series) -> Metrics:
    """Of one target, over the rows that have both numbers; empty where there are fewer than two.

    rows; r2 and r2_log (of the numbers, and of their logarithms; left out where all measured are equal); mean, median
    and 90th percentile of |predicted - measured| / measured in percent; and bias_pct, the mean of the same with its
    sign.
    """
    both = (measured.notna() & predicted.notna()).to_numpy()
    y, p = measured.to_numpy("float64")[both], predicted.to_numpy("float64")[both]
    if len(y) < 2:
        return {}
    error = 100.0 * (p - y) / y
    found = {
        "rows": float(len(y)),
        "mean_error_pct": float(np.mean(np.abs(error))),
        "median_error_pct": float(np.median(np.abs(error))),
        "p90_error_pct": float(np.percentile(np.abs(error), 90)),
        "bias_pct": float(np.mean(error)),
    }
    for name, (a, b) in {"r2": (y, p), "r2_log": (np.log(y), np.log(p))}.items():
        spread = float(np.sum((a - a.mean()) ** 2))
        if spread > 0:
            found[name] = 1.0 - float(np.sum((a - b) ** 2)) / spread
    return found


def evaluate(
    device_type: str, configured: pd.DataFrame, settings: ForestSettings, keep: Keep | None = None
) -> Iterator[tuple[str, pd.DataFrame, dict[str, Metrics]]]:
    """(fold kind, held-out predictions, metrics by target) for each kind in `FOLD_KINDS`.

    `keep` is given the models of `HEADLINE`.
    """
    measured = measured_outputs(configured)
    for kind, split in FOLD_KINDS.items():
        kept = keep if kind == HEADLINE else None
        predicted = out_of_fold(device_type, configured, split(configured), settings, kept)
        by_target = {target: metrics(measured[target], predicted[target]) for target in OUTPUTS}
        yield kind, predicted, {target: found for target, found in by_target.items() if found}
