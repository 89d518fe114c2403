"""The independent test set: rows of the domain that no model learns from and no setting is chosen by.

What a model is quoted on. Folds of the training table say how well it interpolates between its own rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from farm.errors import TestRowsInTraining
from farm.registry.models import TEST_SET
from trainer.evaluate import Metrics, measured_outputs, metrics_by_target
from trainer.model.predictor import CLAIM, Predictor

__all__ = ["TEST_SET", "check_apart", "evaluate_on"]

PROBLEM = ["m", "n", "k", "ab", "layout"]
"""What makes two rows those of one problem."""

CLAIMS = (0.5, 0.8, CLAIM)
RESAMPLES = 1000
"""Bootstrap samples of an interval."""

KERNELS_TO_CHOOSE = 4
"""Kernels of a problem from which choosing the fastest is a choice."""


def check_apart(training: pd.DataFrame, test: pd.DataFrame) -> None:
    """Raises `TestRowsInTraining` where a problem of the test set is in a training table as well."""
    if test.empty or training.empty:
        return
    shared = pd.merge(training[PROBLEM].drop_duplicates(), test[PROBLEM].drop_duplicates(), on=PROBLEM)
    if len(shared):
        m, n, k, ab, layout = shared.iloc[0]
        raise TestRowsInTraining(problems=len(shared), example=f"{m}x{n}x{k} {ab} {layout}")


def evaluate_on(model: Predictor, configured: pd.DataFrame) -> tuple[dict[str, Metrics], pd.DataFrame]:
    """How far a model is off on the rows of a test set, which has one row per configuration.

    Returns:
        By target: what `trainer.evaluate.metrics` gives, the 95% interval of the mean error (`mean_error_low_pct`,
        `mean_error_high_pct`; bootstrap over problems, since kernels of one problem err together) and the coverage of
        the intervals at 50 and 80% (`coverage_50_pct`, `coverage_80_pct`; `coverage_pct` is at 90%). For the runtime
        also `choose_share_pct`: the speed of the kernel that the model finds fastest, as a share of that of the fastest
        that was measured, over problems with at least `KERNELS_TO_CHOOSE` kernels. And the predictions of each row, NaN
        where the model does not know its family, types or layout.
    """
    known = model.known(configured) if len(configured) else np.zeros(0, dtype=bool)
    frame = configured[known]
    if frame.empty:
        return {}, pd.DataFrame(index=configured.index)
    measured = measured_outputs(frame)
    by_claim = {claim: pd.DataFrame(model.predicted(frame, claim=claim), index=frame.index) for claim in CLAIMS}
    predicted = by_claim[CLAIM]
    found = metrics_by_target(measured, predicted)
    problem = frame.groupby(PROBLEM, sort=True).ngroup().to_numpy()
    for target, numbers in found.items():
        y, p = measured[target].to_numpy("float64"), predicted[target].to_numpy("float64")
        both = np.isfinite(y) & np.isfinite(p)
        low, high = mean_interval(100 * np.abs(p[both] - y[both]) / y[both], problem[both])
        numbers |= {"mean_error_low_pct": low, "mean_error_high_pct": high}
        for claim in CLAIMS[:-1]:
            bounds = [by_claim[claim][f"{target}_{end}"].to_numpy("float64")[both] for end in ("low", "high")]
            if np.isfinite(bounds).all():
                inside = (bounds[0] <= y[both]) & (y[both] <= bounds[1])
                numbers[f"coverage_{100 * claim:.0f}_pct"] = 100 * float(inside.mean())
    if "runtime_ms" in found:
        found["runtime_ms"] |= _choosing(measured["runtime_ms"].to_numpy(), predicted["runtime_ms"].to_numpy(), problem)
    return found, predicted.reindex(configured.index)


def mean_interval(error: Any, problem: Any) -> tuple[float, float]:
    """The 95% interval of the mean of errors [rows], by bootstrap over their problems [rows]: those of one err together."""
    _, group = np.unique(problem, return_inverse=True)
    sums, counts = np.bincount(group, weights=error), np.bincount(group)
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _choosing(measured: Any, predicted: Any, problem: Any) -> Metrics:
    shares = []
    for group in np.unique(problem):
        own = np.flatnonzero(problem == group)
        if len(own) >= KERNELS_TO_CHOOSE:
            shares.append(100 * measured[own].min() / measured[own[np.argmin(predicted[own])]])
    return {"choose_share_pct": float(np.mean(shares)), "choose_problems": float(len(shares))} if shares else {}
