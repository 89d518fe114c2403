"""The independent test set: kept apart from training, and what a model is quoted on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm.errors import TestRowsInTraining
from support.cheap_training import cheap_trainings
from support.training_tables import DEVICE_TYPE, tiled_table
from trainer.evaluate import measured_outputs
from trainer.forest import ForestSettings, fit
from trainer.learn import TableFacts, learn
from trainer.table import configurations
from trainer.test_set import TEST_SET, check_apart, choosing, evaluate_on, mean_interval, score

CHEAP = ForestSettings(trees=4)
TILES = (4, 8, 16, 32)


def split() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A training table and a test set of other shapes."""
    table = tiled_table(tiles=TILES)
    tested = table["k"] == table["k"].max()
    return table[~tested], table[tested]


def test_a_training_that_has_seen_a_test_problem_is_refused(tmp_path: Path) -> None:
    training, test = split()
    check_apart(training, test)
    leaking = pd.concat([training, test.head(1)])
    with pytest.raises(TestRowsInTraining, match="1 problems of the test set are in the training table"):
        check_apart(leaking, test)
    with pytest.raises(TestRowsInTraining):
        learn(leaking, TableFacts.of(leaking, DEVICE_TYPE), CHEAP, tmp_path, test=test)


def test_errors_are_those_of_the_test_rows() -> None:
    training, test = split()
    tested = configurations(test)
    model = fit(DEVICE_TYPE, configurations(training), CHEAP)
    found, predicted = evaluate_on(model, tested)
    truth = measured_outputs(tested)["runtime_ms"]
    error = 100 * np.abs(predicted["runtime_ms"] - truth) / truth
    runtime = found["runtime_ms"]
    assert runtime["rows"] == len(tested)
    assert runtime["mean_error_pct"] == pytest.approx(error.mean())
    assert runtime["mean_error_low_pct"] <= error.mean() <= runtime["mean_error_high_pct"]


def test_a_model_that_ranks_kernels_rightly_chooses_the_best_and_one_that_does_not_loses_its_share() -> None:
    _, test = split()
    model = fit(DEVICE_TYPE, configurations(tiled_table(tiles=TILES)), CHEAP)
    rightly, _ = evaluate_on(model, configurations(test))
    assert rightly["runtime_ms"]["choose_share_pct"] == pytest.approx(100, abs=0.5)
    turned = test.assign(
        runtime_ms=test.groupby(["m", "n", "k"])["runtime_ms"].transform(lambda t: t.max() + t.min() - t)
    )
    wrongly, _ = evaluate_on(model, configurations(turned))
    best, worst = (turned.groupby(["m", "n", "k"])["runtime_ms"].agg(how) for how in ("min", "max"))
    assert wrongly["runtime_ms"]["choose_share_pct"] == pytest.approx(100 * (best / worst).mean(), rel=0.02)


def test_choosing_is_judged_over_problems_with_enough_kernels_by_mean_percentile_and_the_first_three() -> None:
    measured = np.array([1.0, 2.0, 4.0, 8.0, 5.0, 2.0, 1.0, 1.5, 1.0, 1.0])
    predicted = np.array([4.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0])
    problem = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])  # the last has two kernels only
    found = choosing(measured, predicted, problem)
    assert found == {
        "choose_share_pct": pytest.approx((50 + 20) / 2),
        "choose_share_p10_pct": pytest.approx(20 + 0.1 * 30),
        "first_three_share_pct": pytest.approx((50 + 100) / 2),
        "choose_problems": 2,
    }
    assert choosing(measured[8:], predicted[8:], problem[8:]) == {}


def test_a_score_says_of_the_runtime_what_the_full_evaluation_says_of_all_and_of_each_family() -> None:
    training, test = split()
    model = fit(DEVICE_TYPE, configurations(training), CHEAP)
    tested = configurations(test)
    found, runtime = score(model, tested), evaluate_on(model, tested)[0]["runtime_ms"]
    assert set(found) == {"all", "tiled"}
    assert asdict(found["all"]) == asdict(found["tiled"])
    names = {"low": "mean_error_low_pct", "high": "mean_error_high_pct"}
    assert asdict(found["all"]) == {
        name: pytest.approx(runtime[names.get(name, name)]) for name in asdict(found["all"])
    }
    one = score(model, tested.head(1))["tiled"]
    assert one.rows == 1
    assert one.low == one.high == one.mean_error_pct
    assert score(model, tested.assign(family="cublaslt")) == {}
    assert score(model, tested.head(0)) == {}


def test_an_interval_is_wider_where_rows_of_one_problem_err_together() -> None:
    rng = np.random.default_rng(1)
    of_problem = rng.exponential(size=50)
    together, problem = np.repeat(of_problem, 8), np.repeat(np.arange(50), 8)
    alone = mean_interval(together, np.arange(400))
    clustered = mean_interval(together, problem)
    assert clustered[0] < together.mean() < clustered[1]
    assert clustered[1] - clustered[0] > 2 * (alone[1] - alone[0])


def test_a_registered_model_is_evaluated_on_the_test_set_first(tmp_path: Path) -> None:
    training, test = split()
    with cheap_trainings():
        learned = learn(training, TableFacts.of(training, DEVICE_TYPE), CHEAP, tmp_path, test=test)
    assert next(iter(learned.metrics)) == TEST_SET
    assert learned.metrics[TEST_SET]["runtime_ms"]["rows"] == len(configurations(test))
    stored = pd.read_parquet(tmp_path / "folds" / TEST_SET / "predictions.parquet")
    assert stored["predicted_runtime_ms"].notna().all()
