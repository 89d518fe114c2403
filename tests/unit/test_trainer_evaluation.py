"""That the evaluation holds out what it says, and tells a model that has learned from one that has not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.forest.predictor import CLAIM
from support.training_tables import blas_table, foreign_tiled_table, tiled_table
from trainer.calibration import bounds
from trainer.evaluate import Metrics, evaluate, measured_outputs, metrics, out_of_fold
from trainer.folds import HEADLINE, Split, Splits, by_device, by_kernel, by_m, by_nk, by_row, by_shape, by_size
from trainer.forest import ForestSettings
from trainer.plots import HeldOutRows, importance_plot, plots
from trainer.progress import Progress
from trainer.table import configurations

SMALL = ForestSettings(trees=10)
CONFIGURED = configurations(tiled_table((256, 512, 1024)))


def errors(configured: pd.DataFrame, kinds: Mapping[str, Split] | None = None) -> dict[str, dict[str, Metrics]]:
    return {one.kind: dict(one.metrics) for one in evaluate("test-device", configured, SMALL, kinds=kinds)}


def on_unseen_shapes(configured: pd.DataFrame) -> dict[str, Metrics]:
    return errors(configured, {HEADLINE: by_shape})[HEADLINE]


@pytest.fixture(scope="module")
def plain() -> dict[str, Metrics]:
    """Errors of `CONFIGURED` on unseen shapes."""
    return on_unseen_shapes(CONFIGURED)


@given(
    rows=st.lists(st.tuples(*[st.sampled_from([64, 65, 128])] * 3), min_size=12, max_size=60).filter(
        lambda r: len(set(r)) >= 4
    )
)
@settings(max_examples=40)
def test_no_shape_is_ever_on_both_sides_of_a_fold(rows: list[tuple[int, int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["m", "n", "k"])
    held_out_rows: list[int] = []
    for training, held_out in by_shape(frame):
        sides = [set(map(tuple, frame.iloc[side].to_numpy().tolist())) for side in (training, held_out)]
        assert sides[0].isdisjoint(sides[1])
        held_out_rows += list(held_out)
    assert sorted(held_out_rows) == list(range(len(frame)))


@pytest.mark.parametrize(
    ("split", "columns"),
    [(by_shape, ["m", "n", "k"]), (by_nk, ["n", "k"]), (by_m, ["m"]), (by_kernel, ["family", "tile", "threads"])],
)
def test_a_fold_holds_out_what_its_name_says(split: type(by_shape), columns: list[str]) -> None:  # type: ignore[valid-type]
    table = configurations(pd.concat([tiled_table((64, 128, 256)), blas_table((64, 128))], ignore_index=True))
    held_out_rows: list[int] = []
    for training, held_out in split(table):
        sides = [set(map(tuple, table.iloc[side][columns].fillna(-1).to_numpy())) for side in (training, held_out)]
        assert sides[0].isdisjoint(sides[1])
        held_out_rows += held_out.tolist()
    assert sorted(held_out_rows) == list(range(len(table)))


def test_the_tenth_with_the_most_operations_is_larger_than_all_that_is_learned_from() -> None:
    ((training, held_out),) = by_size(CONFIGURED)
    work = (CONFIGURED["m"] * CONFIGURED["n"] * CONFIGURED["k"]).to_numpy()
    assert work[training].max() < work[held_out].min()
    shapes = CONFIGURED.iloc[held_out].drop_duplicates(["m", "n", "k"])
    assert len(shapes) >= 2
    assert list(by_size(CONFIGURED.head(9))) == []


def test_a_card_is_held_out_with_what_it_alone_measured() -> None:
    cards = np.array(["GPU-a", "GPU-b", ""])[np.arange(len(CONFIGURED)) % 3]
    table = CONFIGURED.assign(device_uuid=cards)
    found = [set(cards[held_out]) for _, held_out in by_device(table)]
    assert found == [{"GPU-a"}, {"GPU-b"}]
    assert all(len(training) + len(held_out) == len(table) for training, held_out in by_device(table))
    assert list(by_device(CONFIGURED.assign(device_uuid="GPU-a"))) == []


def test_more_cards_than_folds_are_held_out_several_at_a_time() -> None:
    cards = np.array([f"GPU-{i % 8}" for i in range(len(CONFIGURED))])
    found = [set(cards[held_out]) for _, held_out in by_device(CONFIGURED.assign(device_uuid=cards))]
    assert sorted(card for group in found for card in group) == sorted(set(cards))
    assert sorted(len(group) for group in found) == [1, 1, 2, 2, 2]


def test_a_configuration_that_several_cards_measured_is_nobodys() -> None:
    twice = pd.concat([tiled_table((64, 128)).assign(device_uuid=uuid) for uuid in ("GPU-a", "GPU-b")])
    once = tiled_table((256,)).assign(device_uuid="GPU-a")
    found = configurations(pd.concat([twice, once], ignore_index=True))
    assert set(found[found["repeats"] == 2]["device_uuid"]) == {""}
    assert set(found[found["repeats"] == 1]["device_uuid"]) == {"GPU-a"}


def test_held_out_rows_lie_between_their_bounds_as_often_as_is_claimed() -> None:
    noise = np.exp(0.05 * np.random.default_rng(5).normal(size=2 * len(CONFIGURED)))
    table = configurations(tiled_table((128, 256, 384, 512, 768, 1024)))
    table["runtime_ms"] *= np.resize(noise, len(table))
    found = on_unseen_shapes(table)["runtime_ms"]
    assert 100 * CLAIM - 5 < found["coverage_pct"] < 100 * CLAIM + 5


def test_other_kinds_of_folds_can_be_asked_for_and_their_held_out_rows_are_handed_out() -> None:
    def halves(frame: pd.DataFrame) -> Splits:
        rows = np.arange(len(frame))
        yield rows[::2], rows[1::2]

    kinds = {HEADLINE: by_shape, "every other row": halves, "impossible": lambda _: iter(())}
    first, second = evaluate("test-device", CONFIGURED, SMALL, kinds=kinds)
    assert (first.kind, second.kind) == (HEADLINE, "every other row")
    assert sorted(set(first.held.fold)) == [0, 1, 2, 3, 4]
    assert second.held.fold[1::2].tolist() == [0] * (len(CONFIGURED) // 2)
    assert second.held.predicted[::2].isna().all(axis=None)
    assert second.metrics["runtime_ms"]["rows"] == len(CONFIGURED) // 2
    assert second.intervals == first.intervals
    for one in (first, second):
        pd.testing.assert_frame_equal(one.predicted[one.held.predicted.columns], one.held.predicted)
    calibrated = bounds(first.intervals, second.held.predicted, second.held.spreads, where=second.held.where)
    pd.testing.assert_frame_equal(second.predicted[calibrated.columns], calibrated)


@pytest.mark.parametrize("split", [by_shape, by_row])
def test_folds_are_the_same_every_time(split: type(by_shape)) -> None:  # type: ignore[valid-type]
    first, second = ([held_out.tolist() for _, held_out in split(CONFIGURED)] for _ in range(2))
    assert first == second
    assert sorted(row for fold in first for row in fold) == list(range(len(CONFIGURED)))


def test_a_model_that_has_learned_is_near_on_shapes_it_never_saw(plain: dict[str, Metrics]) -> None:
    assert set(plain) == {"runtime_ms", "power_w", "energy_mj", "tflops"}
    assert plain["runtime_ms"]["median_error_pct"] < 5
    assert plain["runtime_ms"]["r2_log"] > 0.98
    assert plain["power_w"]["median_error_pct"] < 5
    assert plain["runtime_ms"]["rows"] == len(CONFIGURED)


def test_energy_is_held_against_that_of_the_rows(plain: dict[str, Metrics]) -> None:
    """A card that runs 10% longer while its power is read: power x runtime would be wrong by as much."""
    table = CONFIGURED.assign(energy_mj=1.1 * CONFIGURED["energy_mj"])
    pd.testing.assert_series_equal(measured_outputs(table)["energy_mj"], table["energy_mj"])
    found = on_unseen_shapes(table)["energy_mj"]
    assert found["bias_pct"] == pytest.approx(plain["energy_mj"]["bias_pct"], abs=0.1)


def test_noise_of_the_energy_spoils_no_prediction_of_time_and_power(plain: dict[str, Metrics]) -> None:
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=len(CONFIGURED)))
    found = on_unseen_shapes(CONFIGURED.assign(energy_mj=noise * CONFIGURED["energy_mj"]))
    for target in ("runtime_ms", "power_w"):
        assert found[target]["mean_error_pct"] < 1.2 * plain[target]["mean_error_pct"]


def test_shuffled_measurements_evaluate_badly() -> None:
    """A held-out row that reached its model would show here as an error that is too small."""
    order = np.random.default_rng(3).permutation(len(CONFIGURED))
    shuffled = CONFIGURED.assign(**{t: CONFIGURED[t].to_numpy()[order] for t in ("runtime_ms", "power_w")})
    for kind, found in errors(shuffled).items():
        assert found["runtime_ms"]["median_error_pct"] > 50, kind
        assert found["power_w"]["r2"] < 0.2, kind


def test_a_held_out_row_does_not_influence_its_own_prediction() -> None:
    absurd = CONFIGURED.copy()
    absurd.loc[7, ["runtime_ms", "power_w"]] = [1e6, 1e6]
    plain, changed = (
        out_of_fold("test-device", frame, by_shape(frame), SMALL).predicted for frame in (CONFIGURED, absurd)
    )
    pd.testing.assert_series_equal(plain.loc[7], changed.loc[7])
    assert not plain.equals(changed)


def test_a_row_whose_like_is_nowhere_else_is_left_out_of_the_evaluation() -> None:
    lonely = CONFIGURED.copy()
    lonely.loc[3, "layout"] = "tt"
    predicted = out_of_fold("test-device", lonely, by_shape(lonely), SMALL).predicted
    assert predicted.loc[3].isna().all()
    assert predicted.drop(index=3, columns="runtime_burst_ms").notna().all(axis=None)


def test_metrics_are_those_of_a_worked_example() -> None:
    found = metrics(pd.Series([1.0, 2.0, 4.0, np.nan]), pd.Series([1.1, 1.0, 4.0, 3.0]))
    assert found == pytest.approx(
        {
            **{"rows": 3, "mean_error_pct": 20.0, "median_error_pct": 10.0, "p90_error_pct": 42.0},
            **{"bias_pct": -40 / 3, "r2": 1 - 1.01 / (14 / 3)},
            "r2_log": 1 - (np.log(1.1) ** 2 + np.log(2) ** 2) / (2 * np.log(2) ** 2),
        }
    )


def test_power_that_was_never_measured_has_no_metrics() -> None:
    found = on_unseen_shapes(configurations(tiled_table((256, 512), power=False)))
    assert set(found) == {"runtime_ms", "tflops"}


def test_a_table_in_a_published_format_can_be_learned() -> None:
    found = on_unseen_shapes(configurations(foreign_tiled_table()))
    assert found["runtime_ms"]["r2_log"] > 0.9
    assert found["power_w"]["median_error_pct"] < 5.42


@pytest.mark.parametrize("power", [True, False])
def test_the_parity_plot_has_a_panel_for_each_measured_target(tmp_path: Path, power: bool) -> None:
    from matplotlib.image import imread

    configured = configurations(tiled_table((256, 512), power=power))
    measured = measured_outputs(configured)
    plots(tmp_path, HeldOutRows("test-device", configured, measured, measured * 1.1))
    height, width = imread(tmp_path / "parity.png").shape[:2]
    assert (width / height > 1.5) is power


@pytest.mark.parametrize("sizes", [(256, 512), (512,)], ids=["many sizes", "one size"])
def test_pictures_of_intervals_and_importances_are_drawn_where_there_are_any(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    configured = configurations(tiled_table(sizes))
    measured = measured_outputs(configured)
    plots(tmp_path, HeldOutRows("test-device", configured, measured, measured * 1.1))
    importance_plot(tmp_path, "test-device", {})
    always = {"parity.png", "error_by_flops.png", "error_by_intensity.png"}
    assert {path.name for path in tmp_path.iterdir()} == always
    bounds = {"runtime_ms_low": measured["runtime_ms"] * 0.9, "runtime_ms_high": measured["runtime_ms"] * 1.2}
    plots(tmp_path, HeldOutRows("test-device", configured, measured, measured.assign(**bounds)))
    importance_plot(tmp_path, "test-device", {"log2_m": 0.7, "log2_n": 0.3})
    assert {path.name for path in tmp_path.iterdir()} == {*always, "interval_coverage.png", "importance.png"}


class Watched(Progress):
    """Remembers the share after each fit."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[float] = []

    def fitted(self, rows: int) -> None:
        super().fitted(rows)
        assert self.share is not None
        self.shares.append(self.share)


def test_progress_is_the_share_of_rows_that_models_were_fitted_on() -> None:
    progress = Watched()
    assert progress.share is None
    kinds = {HEADLINE: by_shape, "random_rows": by_row}
    list(evaluate("test-device", CONFIGURED, SMALL, kinds=kinds, progress=progress))
    sizes = np.cumsum([len(training) for split in kinds.values() for training, _ in split(CONFIGURED)])
    assert progress.shares == pytest.approx(list(sizes / sizes[-1]))
    assert progress.shares[-1] == 1


def test_large_tables_are_evaluated_on_all_folds_of_the_headline_and_enough_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.evaluate.ENOUGH_ROWS", len(CONFIGURED) // 4)
    kinds = {HEADLINE: by_shape, "random_rows": by_row}
    progress = Progress()
    found = {one.kind: one for one in evaluate("test-device", CONFIGURED, SMALL, kinds=kinds, progress=progress)}
    assert not np.isnan(found[HEADLINE].held.fold).any()
    assert set(found["random_rows"].held.fold) - {np.nan} >= {0.0, 1.0}
    held_out = int((~np.isnan(found["random_rows"].held.fold)).sum())
    assert len(CONFIGURED) // 4 <= held_out < len(CONFIGURED) // 2
    assert found["random_rows"].metrics["runtime_ms"]["rows"] == held_out
    assert progress.share == 1.0
