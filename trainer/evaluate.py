"""How far held-out predictions are from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from farm.forest.columns import OUTPUTS
from farm.forest.predictor import ROWS_AT_ONCE, Interval, Predictor
from trainer.calibration import bounds, calibrate, lies, out_of_fold_bounds
from trainer.folds import FOLD_KINDS, HEADLINE, KERNELS, Rows, Split
from trainer.forest import ForestSettings, fit
from trainer.progress import Progress
from trainer.table import MEASURED

Metrics = dict[str, float]
Keep = Callable[[Predictor, pd.DataFrame, pd.DataFrame], None]
"""Is given each fold's model, the rows that it was fitted on, and those that were held out."""

_Array = np.ndarray[Any, np.dtype[np.float64]]

ENOUGH_ROWS = 7_500
"""Kinds of folds other than the headline end with the fold that holds out this row: more folds hardly change their figures."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of rows that were held out. Every table has the index of the rows. NaN: no prediction."""

    predicted: pd.DataFrame
    spreads: pd.DataFrame
    fold: _Array
    # How far each row lies from the other folds: see `trainer.calibration.lies`.
    where: pd.DataFrame


@dataclass(frozen=True)
class Evaluation:
    """One kind of folds: predictions and bounds of each row, and metrics by target."""

    kind: str
    held: OutOfFold
    predicted: pd.DataFrame  # of `held`, with the bounds
    metrics: Mapping[str, Metrics]
    # What this kind and those before it calibrate: the last kind has all that the registered model needs.
    intervals: Mapping[str, Interval]


def measured_outputs(configured: pd.DataFrame) -> pd.DataFrame:
    """The measured values of each configuration: the columns of `OUTPUTS`."""
    stored = configured[[*MEASURED]].astype("float64")
    work = 2.0 * configured["m"] * configured["n"] * configured["k"] * configured["batch"]
    return stored.assign(tflops=work / stored["runtime_ms"] / 1e9)


def out_of_fold(
    device_type: str,
    configured: pd.DataFrame,
    splits: Iterable[tuple[Rows, Rows]],
    settings: ForestSettings,
    keep: Keep | None = None,
    progress: Progress | None = None,
) -> OutOfFold:
    """A prediction for each row by a model that was fitted without the row's fold.

    Everything that is learned is learned from the other folds. A row with a family, type or layout that they lack stays
    NaN: no model would have predicted it.
    """
    empty = pd.DataFrame(np.nan, index=configured.index, columns=list(OUTPUTS))
    where = pd.DataFrame({"kind": None, "distance": np.nan, "unmeasured": False}, configured.index)
    held = OutOfFold(empty, empty.copy(), np.full(len(configured), np.nan), where)
    for number, (training, held_out) in enumerate(splits):
        fitted_on, rows = configured.iloc[training], configured.iloc[held_out]
        model = fit(device_type, fitted_on, settings)
        if progress is not None:
            progress.fitted(len(fitted_on))
        if keep is not None:
            keep(model, fitted_on, rows)
        known = held_out[model.known(rows)]
        held.fold[held_out] = number
        if len(known):
            predicted = configured.iloc[known]
            completed = model.vocabulary.complete(predicted)
            parts = [model.outputs(part, model.see(part)) for part in completed.parts(ROWS_AT_ONCE)]
            held.predicted.iloc[known] = np.concatenate([_columns(outputs) for outputs, _ in parts])
            held.spreads.iloc[known] = np.concatenate([_columns(spreads) for _, spreads in parts])
            held.where.iloc[known] = lies(model.reach(completed), predicted.index)
    return held


def _columns(of_outputs: Mapping[str, _Array]) -> _Array:
    """[rows, outputs]"""
    return np.column_stack([of_outputs[name] for name in OUTPUTS])


def _enough(splits: Sequence[tuple[Rows, Rows]]) -> list[tuple[Rows, Rows]]:
    """The first folds, as many as hold out `ENOUGH_ROWS`."""
    before = np.cumsum([0, *(len(held_out) for _, held_out in splits)])
    return [fold for fold, rows in zip(splits, before, strict=False) if rows < ENOUGH_ROWS]


def error_figures(error: _Array) -> Metrics:
    """Of errors [rows] without their signs, in percent: how many, their mean, median and 90th percentile."""
    return {
        "rows": float(len(error)),
        "mean_error_pct": float(np.mean(error)),
        "median_error_pct": float(np.median(error)),
        "p90_error_pct": float(np.percentile(error, 90)),
    }


def metrics(measured: pd.Series, predicted: pd.Series, bounds: tuple[pd.Series, pd.Series] | None = None) -> Metrics:
    """Of one target, over the rows that have both numbers; empty where there are fewer than two.

    rows; r2 and r2_log (of the numbers, and of their logarithms; left out where all measured are equal); mean, median
    and 90th percentile of |predicted - measured| / measured in percent; bias_pct, the mean of the same with its sign; and
    coverage_pct, the share of rows that lie between the bounds.
    """
    both = (measured.notna() & predicted.notna()).to_numpy()
    y, p = measured.to_numpy("float64")[both], predicted.to_numpy("float64")[both]
    if len(y) < 2:
        return {}
    error = 100.0 * (p - y) / y
    found = {**error_figures(np.abs(error)), "bias_pct": float(np.mean(error))}
    for name, (a, b) in {"r2": (y, p), "r2_log": (np.log(y), np.log(p))}.items():
        spread = float(np.sum((a - a.mean()) ** 2))
        if spread > 0:
            found[name] = 1.0 - float(np.sum((a - b) ** 2)) / spread
    if bounds is not None:
        low, high = (bound.to_numpy("float64")[both] for bound in bounds)
        if np.isfinite(low).all():
            found["coverage_pct"] = 100.0 * float(np.mean((low <= y) & (y <= high)))
    return found


def metrics_by_target(measured: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, Metrics]:
    """The metrics of each target with measured and predicted rows. They include the coverage of the columns `<target>_low` and
    `<target>_high`, if the predictions have them."""
    found = {}
    for target in OUTPUTS:
        if target in predicted:
            low, high = f"{target}_low", f"{target}_high"
            both = (predicted[low], predicted[high]) if low in predicted else None
            found[target] = metrics(measured[target], predicted[target], both)
    return {target: one for target, one in found.items() if one}


def evaluate(
    device_type: str,
    configured: pd.DataFrame,
    settings: ForestSettings,
    keep: Keep | None = None,
    *,
    kinds: Mapping[str, Split] | None = None,
    progress: Progress | None = None,
) -> Iterator[Evaluation]:
    """Each of the kinds, `FOLD_KINDS` if none are given, that the table can be split by. The headline must be the first.

    `keep` is given the headline's models. The other kinds have fewer folds in tables of more than `ENOUGH_ROWS`. Bounds are those
    that the headline's held-out rows calibrate, and of kernels that were never measured those that held-out kernels do; those of
    these two kinds themselves are calibrated by their other folds. `progress` is given the work of all folds before the first, and told
    of each that is done.
    """
    measured, intervals = measured_outputs(configured), dict[str, Interval]()
    splits = {kind: list(split(configured)) for kind, split in (kinds or FOLD_KINDS).items()}
    splits = {kind: folds if kind == HEADLINE else _enough(folds) for kind, folds in splits.items()}
    if progress is not None:
        progress.plan(sum(len(training) for of_kind in splits.values() for training, _ in of_kind))
    for kind, of_kind in splits.items():
        headline = kind == HEADLINE
        held = out_of_fold(device_type, configured, of_kind, settings, keep if headline else None, progress)
        if np.isnan(held.fold).all():
            continue
        if headline or kind == KERNELS:
            new = kind == KERNELS
            tables = (measured, held.predicted, held.spreads)
            intervals = intervals | calibrate(*tables, held.where, unmeasured=new)
            found = out_of_fold_bounds(*tables, held.fold, where=held.where, unmeasured=new)
        else:
            found = bounds(intervals, held.predicted, held.spreads, where=held.where)
        predicted = held.predicted.join(found)
        yield Evaluation(kind, held, predicted, metrics_by_target(measured, predicted), intervals)
