"""Who becomes champion: judged on the same rows, by a margin, and not by luck."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.registry import PromotionTest
from support.training_tables import blas_table, tiled_table
from trainer.baseline import MEDIAN, ROOFLINE, baselines
from trainer.evaluate import out_of_fold
from trainer.folds import by_shape
from trainer.forest import ForestSettings
from trainer.promotion import Champion, Decision, compare, decide, losses
from trainer.table import configurations

SHAPES = 40
MEASURED = pd.DataFrame(
    {
        **{"m": np.repeat(np.arange(SHAPES), 3) + 1, "n": 64, "k": 64},
        **{"runtime_ms": np.linspace(1, 9, 3 * SHAPES), "power_w": 100.0},
    }
)


def off_by(factor: float, rows: slice = slice(None)) -> pd.DataFrame:
    """Predictions that are off by a factor in some rows, and right elsewhere."""
    predicted = MEASURED[["runtime_ms", "power_w"]].copy()
    predicted.iloc[rows] *= factor
    return predicted


def decided(predicted: pd.DataFrame, champion: pd.DataFrame | None = None, **of_champion: object) -> Decision:
    rival = None if champion is None else Champion(version="7", predicted=champion, **of_champion)  # type: ignore[arg-type]
    return decide(MEASURED, predicted, {"a guess": off_by(2.0)}, rival)


def test_a_loss_is_the_logarithm_of_the_factor_and_at_most_one() -> None:
    measured = pd.DataFrame({"runtime_ms": [1.0, 1, 1, 1, 1, 1], "power_w": [np.nan, 1, 1, 1, 1, 1]})
    predicted = pd.DataFrame({"runtime_ms": [1.1, 1 / 1.1, 9, 0, -1, np.nan], "power_w": [5, np.nan, 1, 1, 1, 1]})
    one = np.log(1.1)
    expected = [[one, np.nan], [one, 1], [1, 0], [1, 0], [1, 0], [1, 0]]
    np.testing.assert_allclose(losses(measured, predicted), expected)


def test_a_score_is_the_mean_over_rows_of_each_target_that_was_measured() -> None:
    ours, theirs = off_by(1.0), off_by(1.2)
    theirs["power_w"] = MEASURED["power_w"]
    assert compare(MEASURED, ours, theirs).other == pytest.approx(np.log(1.2) / 2)
    without_power = MEASURED.assign(power_w=np.nan)
    assert compare(without_power, ours, theirs).other == pytest.approx(np.log(1.2))


def test_power_of_few_rows_counts_as_much_as_the_runtime() -> None:
    few = MEASURED.assign(power_w=[100.0] * 3 + [np.nan] * (len(MEASURED) - 3))
    wrong_power = off_by(1.0).assign(power_w=1e6)
    assert compare(few, wrong_power, off_by(1.0)).score == pytest.approx(0.5)


@given(order=st.permutations(range(6)))
def test_the_order_of_rows_changes_nothing(order: list[int]) -> None:
    rows = [20 * block + at for block in order for at in range(20)]
    shuffled, ours, theirs = (f.iloc[rows] for f in (MEASURED, off_by(1.1, slice(0, 60)), off_by(1.05)))
    one, other = compare(shuffled, ours, theirs), compare(MEASURED, off_by(1.1, slice(0, 60)), off_by(1.05))
    assert one.better_in == other.better_in
    assert (one.score, one.other) == pytest.approx((other.score, other.other))


def test_a_model_against_itself_is_never_better() -> None:
    assert compare(MEASURED, off_by(1.1), off_by(1.1)).better_in == 0


def test_the_first_version_that_beats_the_baselines_is_champion() -> None:
    found = decided(off_by(1.1))
    assert (found.promoted, found.sound, found.champion) == (True, True, None)
    assert found.reason == "scores 0.0953 on shapes held out, and a guess 0.6931; there was no champion before"
    assert (found.verdict.promoted, found.verdict.test, found.verdict.against) == (
        True,
        PromotionTest.BASELINE,
        "the baseline, a guess",
    )


def test_a_verdict_names_the_test_that_failed_and_what_was_needed() -> None:
    baseline = decided(off_by(1.99)).verdict
    assert (baseline.promoted, baseline.test) == (False, PromotionTest.BASELINE)
    assert baseline.needed_score == pytest.approx(0.9 * baseline.against_score)
    assert baseline.score is not None
    assert baseline.score > baseline.needed_score
    champion = decided(off_by(1.1), off_by(1.1)).verdict
    assert (champion.promoted, champion.test, champion.against) == (
        False,
        PromotionTest.CHAMPION,
        "champion version 7",
    )
    kinds = decided(off_by(1.01), off_by(1.1), only_it_knows=("blas f32:f32:f32 nn",)).verdict
    assert (kinds.promoted, kinds.test) == (False, PromotionTest.KINDS)


def test_a_version_that_is_no_better_than_a_baseline_is_never_promoted() -> None:
    for champion in (None, off_by(3.0)):
        found = decided(off_by(1.9), champion)
        assert (found.promoted, found.sound) == (False, False)
        assert "a guess, which knows no kernels, scores 0.6931" in found.reason


def test_the_better_baseline_is_the_one_to_beat() -> None:
    simple = {"a guess": off_by(2.0), "a better one": off_by(1.05)}
    found = decide(MEASURED, off_by(1.1), simple, None)
    assert not found.sound
    assert "a better one" in found.reason


@pytest.mark.parametrize(("champion", "promoted"), [(1.101, False), (1.2, True), (1.05, False), (1.1, False)])
def test_a_challenger_must_be_lower_than_the_champion_by_a_margin(champion: float, promoted: bool) -> None:
    found = decided(off_by(1.1), off_by(champion))
    assert (found.promoted, found.sound, found.champion) == (promoted, True, "7")
    assert found.champion_score == pytest.approx(np.log(champion))


def test_a_challenger_that_is_better_by_the_luck_of_one_shape_is_not_promoted() -> None:
    """Lower by a quarter in the mean, from one shape alone, which a third of the resamples do not draw."""
    champion = off_by(1.05)
    champion.iloc[:3] *= 10
    challenger = off_by(1.05)
    challenger.iloc[3:9] *= 1.01
    found = decided(challenger, champion)
    assert found.champion_score is not None
    assert found.score is not None
    assert found.score < 0.8 * found.champion_score
    assert found.better_in == pytest.approx(1 - np.exp(-1), abs=0.05)
    assert not found.promoted
    assert "must be lower by 2% and in 90%" in found.reason


def test_rows_that_the_champion_cannot_predict_count_against_it() -> None:
    champion = off_by(1.0)
    champion.iloc[::2] = np.nan
    assert decided(off_by(1.1), champion).promoted
    assert not decided(champion, off_by(1.1)).promoted


def test_a_challenger_that_knows_less_than_the_champion_is_not_promoted() -> None:
    found = decided(off_by(1.1), off_by(1.5), only_it_knows=("blas f64:f64:f64 nn",))
    assert (found.promoted, found.sound) == (False, True)
    assert "does not know blas f64:f64:f64 nn, which champion version 7 predicts" in found.reason


def test_a_reason_says_where_the_champion_was_favoured() -> None:
    assert "though it cheats" in decided(off_by(1.1), off_by(1.5), favoured="though it cheats").reason


# --- baselines -------------------------------------------------------------------------------------------


def fold_of(configured: pd.DataFrame) -> pd.Series:
    fold = pd.Series(np.nan, configured.index)
    for number, (_, held_out) in enumerate(by_shape(configured)):
        fold.iloc[held_out] = number
    return fold


def test_baselines_do_not_see_the_rows_that_they_predict() -> None:
    configured = configurations(tiled_table((256, 512, 1024)))
    fold = fold_of(configured)
    absurd = configured.copy()
    absurd.loc[fold == 0, ["runtime_ms", "power_w"]] = 1e6
    for name, plain in baselines(configured, fold).items():
        pd.testing.assert_frame_equal(plain[fold == 0], baselines(absurd, fold)[name][fold == 0])
        assert plain[["runtime_ms", "power_w"]].notna().all(axis=None)


def test_baselines_say_what_their_names_say() -> None:
    configured = configurations(tiled_table((256, 512, 1024)))
    fold = fold_of(configured)
    training = configured[fold != 1]
    found = baselines(configured, fold)
    assert (found[MEDIAN]["runtime_ms"][fold == 1] == training["runtime_ms"].median()).all()
    assert (found[ROOFLINE]["power_w"][fold == 1] == training["power_w"].median()).all()
    off = (found[ROOFLINE]["runtime_ms"] / configured["runtime_ms"])[fold == 1]
    assert 0.4 < off.median() < 2.5


def test_a_family_that_other_folds_do_not_have_is_predicted_by_no_baseline() -> None:
    both = pd.concat([tiled_table((256, 512)), blas_table((100,), threads=(1,))], ignore_index=True)
    configured = configurations(both)
    lonely = configured["family"] == "blas"
    for found in baselines(configured, fold_of(configured)).values():
        assert found[lonely].isna().all(axis=None)
        assert found["runtime_ms"][~lonely].notna().all()


@pytest.mark.parametrize("table", [lambda: tiled_table((256, 512, 1024)), blas_table], ids=["tiled", "blas"])
def test_forests_beat_the_baselines_and_forests_of_shuffled_measurements_do_not(
    table: Callable[[], pd.DataFrame],
) -> None:
    configured = configurations(table())
    targets = ["runtime_ms", "power_w", "energy_mj"]
    for seed in (None, 0, 1, 2):
        learned = configured.copy()
        if seed is not None:
            order = np.random.default_rng(seed).permutation(len(learned))
            learned[targets] = learned[targets].to_numpy()[order]
        settings = ForestSettings(trees=8)
        predicted = out_of_fold("test-device", learned, by_shape(learned), settings).predicted
        found = decide(learned, predicted, baselines(learned, fold_of(learned)), None)
        assert found.sound is (seed is None), found.reason
