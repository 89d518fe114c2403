"""Why a learning campaign ends, and what it says of a target that it did not reach."""

from __future__ import annotations

from typing import Any

import pytest

from farm.campaign.strategies import Learn
from farm.cli import run
from farm.report.figures.learning_curves import LearningCurve
from support.learning_curves import point
from trainer.rounds import why_stop
from trainer.test_set import Score


def search(**fields: Any) -> Learn:
    return Learn(budget_seconds=100, **fields)


def scored(**means: float) -> dict[str, Score]:
    return {
        name: Score(rows=40, mean_error_pct=mean, low=mean, high=mean, median_error_pct=mean, p90_error_pct=mean)
        for name, mean in means.items()
    }


def curve(*points: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"rows": rows, "test": {"all": {"mean_error_pct": mean}}} for rows, mean in points]


TARGETS = {"cutlass": 3, "cublaslt": 6}
MISSED = " before the target was reached: cutlass 5.1% (target 3%), cublaslt 4.0% (target 6%)"


def test_a_campaign_goes_on_until_every_family_of_the_target_is_good_enough() -> None:
    aimed = search(target=TARGETS)
    assert why_stop(aimed, scored(all=4.5, cutlass=5.1, cublaslt=4.0), 99, 1_000, []) is None
    assert why_stop(aimed, scored(all=4.5, cutlass=3.0), 99, 1_000, []) is None
    assert why_stop(aimed, scored(all=4.5, cutlass=3.0, cublaslt=4.0), 99, 1_000, []) == "the target is reached"


@pytest.mark.parametrize(("target", "reached"), [(None, ""), (TARGETS, MISSED)])
def test_a_used_budget_says_what_was_reached_of_the_target(target: dict[str, float] | None, reached: str) -> None:
    found = why_stop(search(target=target), scored(all=4.5, cutlass=5.1, cublaslt=4.0), 100, 1_000, [])
    assert found == f"the budget of 100 device seconds is used{reached}"


@pytest.mark.parametrize(("target", "reached"), [(None, ""), (TARGETS, MISSED)])
def test_rows_without_a_gain_say_what_was_reached_of_the_target(target: dict[str, float] | None, reached: str) -> None:
    aimed, scores = search(target=target), scored(all=4.5, cutlass=5.1, cublaslt=4.0)
    still = curve((1_000, 9.0), (2_000, 4.55), (2_500, 4.53), (2_900, 4.51))
    assert why_stop(aimed, scores, 50, 3_000, still) == f"the error fell by less than 2% since 2,000 rows{reached}"
    assert why_stop(aimed, scores, 50, 2_999, still) is None  # against 9.0% with 1,000 rows
    assert why_stop(aimed, scores, 50, 3_000, curve((2_000, 4.55), (2_500, 4.4))) is None
    assert why_stop(aimed, scores, 50, 3_000, curve((1_999, 4.6), (2_900, 4.51))) is None
    assert why_stop(aimed, scores, 50, 1_000, curve((0, 9.0), (900, 4.5))) is None


def test_a_family_that_no_test_row_tells_of_is_named() -> None:
    found = why_stop(search(target={"tiled": 5}), {}, 100, 1_000, [])
    assert found is not None
    assert found.endswith(" before the target was reached: tiled without a test row that the model knows")


REASONS = {
    "the target is reached": (search(target={"all": 5}), 50, []),
    "the budget of 100 device seconds is used before the target was reached: all 4.5% (target 3%)": (
        search(target={"all": 3}), 100, [],
    ),
    "the error fell by less than 2% since 2,000 rows": (search(), 50, curve((2_000, 4.55))),
}  # fmt: skip


def ran(*learned: dict[str, Any]) -> dict[str, Any]:
    """What `farm run` prints of a campaign whose learning curves have these last points."""
    return {
        **{"campaign": "sweep", "counts": {"done": 60, "invalid": 0, "dead": 0, "cancelled": 0}, "devices": []},
        **{"rounds": 4, "ranked": {}, "learning": list(learned), "trainings": {}, "predictions": []},
        **{"searches": False, "measured_s": 70.0, "total_s": 75.0},
    }


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_for_an_end_is_printed_and_reported(capsys: pytest.CaptureFixture[str], reason: str) -> None:
    found = why_stop(REASONS[reason][0], scored(all=4.5), REASONS[reason][1], 3_000, REASONS[reason][2])
    assert found == reason
    last = {"pool": "any", "round": 3, "error": None, **point(3, stop=found, all=4.5)}
    run._print(ran({**last, "round": 2}, last))
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("Learning on")] == [
        f"Learning on any ended after round 3: 4.5% mean error on 40 rows of the test set, 300 device seconds used. "
        f"It ended as {reason}."
    ]
    assert any(line.endswith("The test set and 3 rounds took 60 measurements.") for line in printed)
    assert LearningCurve("cpu-x", [last]).conclusion == f"No further round is measured: {reason}."


def test_other_ends_are_printed_for_each_pool(capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"pool": "any", "round": 1, "error": "no memory", "device_seconds": None}
    cancelled = {"pool": "type:cpu-two", "round": 2, "error": None, **point(2, all=22.0)}
    untested = {"pool": "type:cpu-one", "round": 1, "error": None, **point(1, stop="the target is reached")}
    run._print(ran(failed, cancelled, untested))
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("Learning on")] == [
        "Learning on any ended after round 1, which could not be decided: no memory",
        "Learning on type:cpu-two ended after round 2: 22.0% mean error on 40 rows of the test set, 200 device seconds used. "
        "It ended as the campaign was cancelled.",
        "Learning on type:cpu-one ended after round 1: 100 device seconds used. It ended as the target is reached.",
    ]
