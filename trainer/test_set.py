"""The independent test set: rows of the domain that no model learns from and no setting is chosen by.

What a model is quoted on. Folds of the training table say how well it interpolates between its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from farm.errors import TestRowsInTraining
from farm.forest.numeric import Floats
from farm.forest.predictor import CLAIM, Predictor
from farm.formatting import scalars_text
from farm.gemm import ADDED_COLUMNS
from farm.groups import NONE
from farm.measurement import ALL_FAMILIES
from farm.registry.models import TEST_SET
from trainer.evaluate import Metrics, error_figures, measured_outputs, metrics_by_target
from trainer.table import PROBLEM, with_added_columns

__all__ = ["TEST_SET", "Score", "check_apart", "choosing", "evaluate_on", "score"]

Ints = np.ndarray[Any, np.dtype[np.int64]]

CLAIMS = (0.5, 0.8, CLAIM)
RESAMPLES = 1000
"""Bootstrap samples of an interval."""

KERNELS_TO_CHOOSE = 4
"""Kernels of a problem from which choosing the fastest is a choice."""


def check_apart(training: pd.DataFrame, test: pd.DataFrame) -> None:
    """Raises `TestRowsInTraining` where a problem of the test set is in a training table as well, or with groups one of its shape with
    other groups."""
    if test.empty or training.empty:
        return
    learned, tested = (with_added_columns(table)[PROBLEM] for table in (training, test))
    learned, tested = (table.assign(grouped=table["groups"] != NONE) for table in (learned, tested))
    key = [*(name for name in PROBLEM if name != "groups"), "grouped"]
    shared = pd.merge(learned[key].drop_duplicates(), tested.drop_duplicates(key), on=key)
    if len(shared):
        m, n, k, ab, layout, *added = shared.iloc[0][PROBLEM]
        more = scalars_text(1, 0, **dict(zip(ADDED_COLUMNS, added, strict=True)))
        raise TestRowsInTraining(problems=len(shared), example=f"{m}x{n}x{k} {ab} {layout}{more}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far predictions of the runtime are from test rows, in percent."""

    rows: int
    mean_error_pct: float
    # The 95% interval of the mean.
    low: float
    high: float
    median_error_pct: float
    p90_error_pct: float


def score(model: Predictor, configured: pd.DataFrame) -> dict[str, Score]:
    """The errors of a model's runtimes on the rows of a test set: of each family, and of `ALL_FAMILIES`.

    The errors of `evaluate_on` for the runtime, in a third of its time. Empty if the model knows none of the rows.
    """
    frame = _known_rows(model, configured)
    if frame.empty:
        return {}
    error = _errors(frame["runtime_ms"], model.predicted(frame)["runtime_ms"])
    problem, families = _problems(frame), frame["family"].to_numpy()
    groups = {ALL_FAMILIES: np.full(len(frame), True), **{name: families == name for name in sorted(set(families))}}
    return {name: _score(error[which], problem[which]) for name, which in groups.items()}


def _score(error: Floats, problem: Ints) -> Score:
    low, high = mean_interval(error, problem)
    figures = error_figures(error)
    return Score(
        rows=len(error),
        mean_error_pct=figures["mean_error_pct"],
        low=low,
        high=high,
        median_error_pct=figures["median_error_pct"],
        p90_error_pct=figures["p90_error_pct"],
    )


def evaluate_on(model: Predictor, configured: pd.DataFrame) -> tuple[dict[str, Metrics], pd.DataFrame]:
    """How far a model is off on the rows of a test set, which has one row per configuration.

    Returns:
        By target: what `trainer.evaluate.metrics` gives, the 95% interval of the mean error (`mean_error_low_pct`,
        `mean_error_high_pct`; bootstrap over problems, since kernels of one problem err together) and the coverage of
        the intervals at 50 and 80% (`coverage_50_pct`, `coverage_80_pct`; `coverage_pct` is at 90%). For the runtime
        also what `choosing` gives. And the predictions of each row, NaN where the model does not know its family, types, layout,
        scale factors, fused operations, groups or sparsity.
    """
    frame = _known_rows(model, configured)
    if frame.empty:
        return {}, pd.DataFrame(index=configured.index)
    measured = measured_outputs(frame)
    by_claim = {claim: pd.DataFrame(model.predicted(frame, claim=claim), index=frame.index) for claim in CLAIMS}
    predicted = by_claim[CLAIM]
    found = metrics_by_target(measured, predicted)
    problem = _problems(frame)
    for target, numbers in found.items():
        y, p = measured[target].to_numpy("float64"), predicted[target].to_numpy("float64")
        both = np.isfinite(y) & np.isfinite(p)
        low, high = mean_interval(_errors(y[both], p[both]), problem[both])
        numbers |= {"mean_error_low_pct": low, "mean_error_high_pct": high}
        for claim in CLAIMS[:-1]:
            bounds = [by_claim[claim][f"{target}_{end}"].to_numpy("float64")[both] for end in ("low", "high")]
            if np.isfinite(bounds).all():
                inside = (bounds[0] <= y[both]) & (y[both] <= bounds[1])
                numbers[f"coverage_{100 * claim:.0f}_pct"] = 100 * float(inside.mean())
    if "runtime_ms" in found:
        found["runtime_ms"] |= choosing(measured["runtime_ms"].to_numpy(), predicted["runtime_ms"].to_numpy(), problem)
    return found, predicted.reindex(configured.index)


def _known_rows(model: Predictor, configured: pd.DataFrame) -> pd.DataFrame:
    """The rows with a family, types and layout that the model knows."""
    return configured[model.known(configured)] if len(configured) else configured


def _problems(frame: pd.DataFrame) -> Ints:
    """The number of each row's problem [rows]."""
    numbers: Ints = np.asarray(frame.groupby(PROBLEM, sort=True).ngroup(), dtype=np.int64)
    return numbers


def _errors(measured: Any, predicted: Any) -> Floats:
    """How far predictions [rows] are off, in percent of what was measured, without their signs."""
    y = np.asarray(measured, dtype=np.float64)
    error: Floats = 100 * np.abs(np.asarray(predicted, dtype=np.float64) - y) / y
    return error


def mean_interval(error: Any, problem: Any) -> tuple[float, float]:
    """The 95% interval of the mean of errors [rows], by bootstrap over their problems [rows]: those of one err together."""
    _, group = np.unique(problem, return_inverse=True)
    sums, counts = np.bincount(group, weights=error), np.bincount(group)
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def choosing(measured: Floats, predicted: Floats, problem: Ints) -> Metrics:
    """What choosing kernels by predicted times [rows] is worth; empty where no problem has `KERNELS_TO_CHOOSE` kernels.

    Returns:
        The speed of the kernel that was predicted to be the fastest, as a share of that of the fastest that was measured, over
        problems with at least `KERNELS_TO_CHOOSE` kernels: the mean (`choose_share_pct`) and the 10th percentile
        (`choose_share_p10_pct`). The mean of the same for the best of the first three (`first_three_share_pct`). And how
        many such problems there are (`choose_problems`).
    """
    first, first_three = [], []
    for group in np.unique(problem):
        own = np.flatnonzero(problem == group)
        if len(own) >= KERNELS_TO_CHOOSE:
            ranked = measured[own[np.argsort(predicted[own], kind="stable")]]
            first.append(100 * ranked.min() / ranked[0])
            first_three.append(100 * ranked.min() / ranked[:3].min())
    if not first:
        return {}
    return {
        "choose_share_pct": float(np.mean(first)),
        "choose_share_p10_pct": float(np.percentile(first, 10)),
        "first_three_share_pct": float(np.mean(first_three)),
        "choose_problems": float(len(first)),
    }
