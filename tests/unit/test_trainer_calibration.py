"""Intervals: that they hold what they claim where the truth is known, and are made of other rows than they are judged by."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trainer.calibration import CLAIMS, FEWEST, bounds, calibrate, out_of_fold_bounds
from trainer.evaluate import metrics
from trainer.model.columns import OUTPUTS


def noisy(rows: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
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
    half = intervals["runtime_ms"].half_width(np.array([0.01, 0.1]), 0.9)
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


def test_each_family_has_intervals_that_hold_what_they_claim() -> None:
    """One family is off by five times as much as its trees say."""

    def rows(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.Series]:
        measured, predicted, spreads = noisy(4000, seed)
        family = pd.Series(np.where(np.arange(4000) % 4 == 0, "cublaslt", "tiled"))
        off = np.log(measured / predicted).mul(np.where(family == "cublaslt", 5.0, 1.0), axis=0)
        return predicted * np.exp(off), predicted, spreads, family

    intervals = calibrate(*rows(0))
    measured, predicted, spreads, family = rows(1)
    held = bounds(intervals, predicted, spreads, 0.8, family)
    inside = measured["power_w"].between(held["power_w_low"], held["power_w_high"])
    assert inside.groupby(family).mean().to_dict() == pytest.approx({"cublaslt": 0.8, "tiled": 0.8}, abs=0.04)
