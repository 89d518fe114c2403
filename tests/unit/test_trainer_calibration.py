"""Intervals: that they hold what they claim where the truth is known, and are made of other rows than they are judged by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from farm.forest.columns import OUTPUTS
from farm.forest.numeric import Floats
from farm.forest.predictor import UNMEASURED, Interval, half_widths
from support.training_tables import tiled_table
from trainer.calibration import CLAIMS, FEWEST, bounds, calibrate, out_of_fold_bounds
from trainer.evaluate import evaluate, metrics
from trainer.folds import FOLD_KINDS, HEADLINE, KERNELS
from trainer.forest import ForestSettings, fit
from trainer.table import configurations

Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
"""Measured, predicted, spreads."""


def noisy(rows: int, seed: int) -> Tables:
    """(measured, predicted, spreads): errors of which the spread tells the size, from 1% to 20%."""
    random = np.random.default_rng(seed)
    sigma = random.uniform(0.01, 0.2, rows)
    predicted = np.exp(random.normal(size=rows))
    measured = predicted * np.exp(sigma * random.standard_t(4, rows))
    return tuple(  # type: ignore[return-value]
        pd.DataFrame(dict.fromkeys(OUTPUTS, column))
        for column in (measured, predicted, sigma * random.uniform(0.7, 1.3, rows))
    )


@pytest.mark.parametrize("claim", CLAIMS)
def test_intervals_hold_the_share_of_new_rows_that_they_claim(claim: float) -> None:
    intervals = calibrate(*noisy(4000, 0))
    measured, predicted, spreads = noisy(20_000, 1)
    held = bounds(intervals, predicted, spreads, claim)
    found = metrics(measured["power_w"], predicted["power_w"], (held["power_w_low"], held["power_w_high"]))
    assert found["coverage_pct"] == pytest.approx(100 * claim, abs=1.5)


def test_an_interval_is_wider_where_the_trees_disagree() -> None:
    intervals = calibrate(*noisy(1000, 0))
    (half,) = half_widths(intervals, ["runtime_ms"], [([""], slice(None))], np.array([[0.01, 0.1]]), np.ones(2), 0.9)
    assert half[1] > 3 * half[0]


def test_claims_order_the_quantiles() -> None:
    quantiles = list(calibrate(*noisy(500, 0))["energy_mj"].quantiles.values())
    assert quantiles == sorted(quantiles)


def test_too_few_rows_make_no_interval() -> None:
    measured, predicted, spreads = noisy(FEWEST - 1, 0)
    assert calibrate(measured, predicted, spreads) == {}
    enough = noisy(FEWEST, 0)
    enough[0]["power_w"] = np.nan
    assert set(calibrate(*enough)) == set(OUTPUTS) - {"power_w"}


def test_the_bounds_of_a_row_do_not_know_its_own_fold() -> None:
    measured, predicted, spreads = noisy(300, 0)
    fold = np.arange(300.0) % 5
    first = out_of_fold_bounds(measured, predicted, spreads, fold)
    absurd = measured.mask(pd.Series(fold == 2), 1e6)
    second = out_of_fold_bounds(absurd, predicted, spreads, fold)
    pd.testing.assert_frame_equal(first[fold == 2], second[fold == 2])
    assert (second[fold != 2]["runtime_ms_high"] > first[fold != 2]["runtime_ms_high"]).all()


def lying(rows: int, **columns: object) -> pd.DataFrame:
    """Rows of a measured kernel on measured problems, unless `columns` say otherwise."""
    return pd.DataFrame({"kind": "tiled:f32:f32:f32", "distance": 0.0, "unmeasured": False}, range(rows)).assign(
        **columns
    )


def coverage(intervals: Mapping[str, Interval], tables: Tables, where: pd.DataFrame, claim: float) -> pd.Series:
    """Which measured powers are between the bounds."""
    measured, predicted, spreads = tables
    held = bounds(intervals, predicted, spreads, claim, where)
    return measured["power_w"].between(held["power_w_low"], held["power_w_high"])


def further_off(tables: Tables, factor: Floats) -> Tables:
    """Measurements whose logarithms are further from the predictions by a factor for each row."""
    measured, predicted, spreads = tables
    return predicted * np.exp(np.log(measured / predicted).mul(factor, axis=0)), predicted, spreads


@pytest.mark.parametrize("separator", ["family", "types"])
def test_each_family_and_its_types_have_intervals_that_hold_what_they_claim(separator: str) -> None:
    """One group is off by five times as much as its trees say."""
    odd = np.arange(4000) % 4 == 0
    other = "cublaslt:f32:f32:f32" if separator == "family" else "tiled:f16:f16:f32"
    where = lying(4000, kind=np.where(odd, other, "tiled:f32:f32:f32"))
    first, second = (further_off(noisy(4000, seed), np.where(odd, 5.0, 1.0)) for seed in (0, 1))
    inside = coverage(calibrate(*first, where), second, where, 0.8)
    assert inside.groupby(where["kind"]).mean().tolist() == pytest.approx([0.8, 0.8], abs=0.04)


def test_intervals_hold_what_they_claim_near_and_far_where_errors_grow_with_distance() -> None:
    distance = np.random.default_rng(2).uniform(0, 8, 8000)
    first, second = (further_off(noisy(8000, seed), 1 + (distance / 4.5) ** 2) for seed in (0, 1))
    where = lying(8000, distance=distance)
    intervals = calibrate(*first, where)
    assert coverage(intervals, second, where, 0.8)[distance < 2].mean() == pytest.approx(0.8, abs=0.04)
    assert coverage(intervals, second, where, 0.8)[distance > 6].mean() == pytest.approx(0.8, abs=0.04)


def test_kernels_that_were_never_measured_have_intervals_of_their_own() -> None:
    """Errors of held-out kernels are five times as large as those of held-out shapes."""
    shapes, kernels = noisy(4000, 0), further_off(noisy(4000, 1), np.full(4000, 5.0))
    new = lying(4000, unmeasured=True)
    intervals = calibrate(*shapes, lying(4000)) | calibrate(*kernels, new, unmeasured=True)
    fresh = further_off(noisy(4000, 2), np.full(4000, 5.0))
    assert coverage(intervals, fresh, new, 0.9).mean() == pytest.approx(0.9, abs=0.03)
    assert coverage(intervals, noisy(4000, 3), lying(4000), 0.9).mean() == pytest.approx(0.9, abs=0.03)
    assert coverage(calibrate(*shapes, lying(4000)), fresh, new, 0.9).mean() < 0.6


def test_the_evaluation_calibrates_kernels_that_were_never_measured_on_held_out_kernels() -> None:
    configured = configurations(tiled_table(tiles=(4, 8, 12, 16, 20, 24)))
    *_, last = evaluate(
        "test-device", configured, ForestSettings(trees=8), kinds={k: FOLD_KINDS[k] for k in (HEADLINE, KERNELS)}
    )
    assert last.kind == KERNELS
    assert last.held.where["unmeasured"].all()
    assert "runtime_ms" in last.intervals
    model = fit("test-device", configured, ForestSettings(trees=8), last.intervals)
    asked = {
        "m": [512, 512],
        "n": [512, 512],
        "k": [512, 512],
        "ab": ["f32"] * 2,
        "family": ["tiled"] * 2,
        "tile": [16, 18],
    }
    found = model.predicted(asked)
    measured, unmeasured = found["runtime_ms_high"] / found["runtime_ms"]
    assert unmeasured > measured
    names = {name: one for name, one in last.intervals.items() if UNMEASURED not in name}
    without = fit("test-device", configured, ForestSettings(trees=8), names).predicted(asked)
    assert without["runtime_ms_high"][1] < found["runtime_ms_high"][1]
