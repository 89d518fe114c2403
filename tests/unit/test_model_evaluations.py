"""Errors of a version as `farm models show` prints them: the independent test set first, then folds, labelled as such."""

from __future__ import annotations

import pytest

from farm.api.trainings import TrainingNow
from farm.cli.train import print_outcomes
from farm.cli.versions import print_errors, print_side_by_side
from farm.db.states import TrainingState
from farm.registry import Metrics
from farm.registry.evaluations import in_order
from support.training_tables import TESTED

FOLD = {"rows": 12.0, "r2": 0.9, "median_error_pct": 1.5, "mean_error_pct": 2.5, "p90_error_pct": 3.5}
METRICS: Metrics = {
    "another_card": {"runtime_ms": FOLD},
    "promotion": {"challenger": {"score": 1.0}},
    "test_set": {"power_w": {**FOLD, "rows": 7.0}, "runtime_ms": TESTED},
    "unseen_shapes": {"runtime_ms": FOLD},
}


def test_the_test_set_is_first_and_other_numbers_are_no_evaluation() -> None:
    assert list(in_order(METRICS)) == ["test_set", "unseen_shapes", "another_card"]


def test_errors_on_the_test_set_have_their_interval_coverage_and_choice(capsys: pytest.CaptureFixture[str]) -> None:
    print_errors(METRICS)
    tested, folds = capsys.readouterr().out.split("folds: interpolation inside the training table")
    assert tested.split("\n")[0].strip() == "independent test set"
    lines = {line.split()[0]: " ".join(line.split()) for line in tested.split("\n") if line.strip()}
    assert lines["runtime_ms"] == "runtime_ms 1,200 6.5 5.9 to 7.25 4.25 15.5 51.5 79 88.5 93.5"
    assert list(lines)[-2:] == ["runtime_ms", "power_w"]
    assert lines["power_w"].startswith("power_w 7 2.5 – 1.5 3.5"), "numbers that it lacks are dashes"
    assert "test set" not in folds
    assert folds.index("unseen shapes") < folds.index("another card")


def trained(metrics: Metrics) -> TrainingNow:
    """A training that registered a version with these errors, as it is stored."""
    outcome = {
        **{"model_name": "gemm-forest-x", "version": "3", "shapes": 40, "metrics": metrics, "reused": False},
        **{"alias": None, "decision": "scores 0.1"},
    }
    return TrainingNow(
        id=1, device_type="x", state=TrainingState.DONE, outcome=outcome, error=None, progress=1.0, running_s=60.0
    )


def test_a_training_prints_the_test_set_first_and_folds_as_interpolation(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcomes({"x": trained(METRICS)})
    tested, folds = capsys.readouterr().out.split("error on shapes held out: interpolation inside the training table")
    assert tested.split("\n")[0].strip() == "error on the independent test set"
    lines = [" ".join(line.split()) for line in tested.split("\n")]
    assert "gemm-forest-x v3 runtime_ms 1,200 6.5 5.9 to 7.25 4.25 15.5 51.5 79 88.5 93.5" in lines
    assert "gemm-forest-x v3 runtime_ms" in " ".join(folds.split())
    print_outcomes({"x": trained({"unseen_shapes": METRICS["unseen_shapes"]})})
    assert "test set" not in capsys.readouterr().out


def test_without_a_test_set_there_are_folds_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_errors({"unseen_shapes": METRICS["unseen_shapes"]})
    assert "test set" not in capsys.readouterr().out


def test_two_versions_are_compared_on_the_test_set_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_side_by_side(["1", "2"], [{"unseen_shapes": METRICS["unseen_shapes"]}, METRICS])
    out = capsys.readouterr().out
    assert out.index("independent test set") < out.index("unseen shapes")
