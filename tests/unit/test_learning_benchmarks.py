"""The benchmarks of learning: what they read, hold out and count, and that their targets are judged by their own figures."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import aiconfigurator, burst_model, choosing, gpperf, h200, learning, predict_speed
from farm.importers import aiconfigurator as aiconfigurator_tables
from farm.importers import gpperf as gpperf_tables
from support.burst_tables import burst_table
from support.foreign_tables import LAYER, SGEMM, layers, sheet
from support.training_tables import tiled_table
from trainer.folds import by_shape
from trainer.forest import ForestSettings
from trainer.table import configurations, with_added_columns, with_parameter_columns

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONFIGURED = configurations(tiled_table((256, 512, 1024)))
NAMES = ("gpperf", "aiconfigurator", "h200")


def test_a_foreign_table_is_what_an_import_makes_of_it(tmp_path: Path) -> None:
    rows = [SGEMM, {**SGEMM, "block_m": "128"}, {**SGEMM, "k": "512"}]
    table = learning.imported(gpperf_tables.look(sheet(tmp_path / "sgemm.csv.gz", rows)))
    assert table["row"].tolist() == [1, 2, 3]
    assert table["power_w"].isna().all()
    assert set(table["device_type"]) == {"nvidia-geforce-rtx-4070"}
    assert sorted(configurations(table)["repeats"]) == [1, 2]


def test_burst_figures_are_of_held_out_rows_and_tell_limited_ones_apart() -> None:
    configured = configurations(burst_table(150))
    found = {row["rows of"]: row for row in burst_model.judged("nvidia-h200", configured, "unseen_shapes")}
    assert set(found) == {"all", "limited", "not limited", "cublaslt"}
    assert found["limited"]["rows"] + found["not limited"]["rows"] == found["all"]["rows"] == 150
    assert found["limited"]["ratio: median %"] < 1.5 < 10 < found["limited"]["ratio 1: median %"]
    assert found["all"]["burst: median %"] > found["all"]["ratio: median %"]


def test_power_of_short_layers_is_left_out_and_energy_goes_with_it(tmp_path: Path) -> None:
    rows = [{**LAYER, "power": 300.0, "power_limit": 350.0}, {**LAYER, "latency": 0.05, "power": 300.0}]
    table = learning.imported(aiconfigurator_tables.look(layers(tmp_path / "l40s.parquet", rows)))
    assert table["energy_mj"].iloc[0] == pytest.approx(75.0)
    assert np.isnan(table["energy_mj"].iloc[1])


def test_a_benchmark_without_its_data_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="GPPerf's table is not here"):
        learning.needed(tmp_path / "none.csv", "GPPerf's table", "Name its folder with --data.")


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # a few exact rows have endless intervals
def test_alternatives_answer_for_the_rows_that_the_farm_answers_for() -> None:
    models = learning.alternatives(jobs=1)
    some = {name: models[name] for name in ("ridge on the features", "linear roofline")}
    ours = learning.judge(
        "test-device", CONFIGURED, {"unseen_shapes": by_shape}, settings=ForestSettings(trees=20, jobs=1)
    )
    said = learning.compare("test-device", CONFIGURED, by_shape(CONFIGURED), some)
    for predicted in said.values():
        assert predicted["runtime_ms"].notna().all()
    figure = learning.pick(ours.figures, target="runtime_ms", part="all")
    assert figure["rows"] == len(CONFIGURED)
    assert {one["claimed_pct"] for one in ours.coverage} == {50, 80, 90, 95}
    with pytest.raises(LookupError):
        learning.pick(ours.figures, target="runtime_ms", part="none")


def test_a_target_is_met_on_the_right_side() -> None:
    target = learning.Target
    assert target("mean", 6.9, 7.0).met
    assert not target("mean", 7.1, 7.0).met
    assert target("R2", 0.99, 0.99, at_least=True).met
    assert not target("R2", 0.98, 0.99, at_least=True).met


def test_wide_layers_are_held_out_together() -> None:
    frame = pd.DataFrame({"n": [64, 8192, 8193, 16384]})
    ((training, held_out),) = aiconfigurator.beyond(frame)
    assert training.tolist() == [0, 1]
    assert held_out.tolist() == [2, 3]
    assert list(aiconfigurator.beyond(frame[:2])) == []


def test_a_chooser_gets_the_share_of_what_it_chose() -> None:
    measured = np.array([2.0, 1.0, 4.0])
    assert choosing.share_of_best(measured, np.array([5.0, 6.0, 7.0])) == 0.5
    assert choosing.share_of_best(measured, np.array([5.0, np.nan, 7.0])) == 0.5
    assert choosing.share_of_best(measured, np.array([1.0, 1.0, 7.0])) == pytest.approx(0.75)
    assert choosing.share_of_first(measured, np.array([1.0, 3.0, 2.0]), 2) == 0.5
    assert choosing.share_of_first(measured, np.array([1.0, 2.0, 3.0]), 2) == 1.0


def test_problems_with_few_kernels_are_not_counted() -> None:
    table = with_added_columns(with_parameter_columns(tiled_table((256, 512), tiles=(4, 8, 16, 32))))
    fewer = table.drop(index=table.index[0]).assign(score=table["runtime_ms"])
    found = {one["chooser"]: one for one in choosing.chosen(fewer, "runtime_ms", {"oracle": "score"})}
    assert found["oracle"]["problems"] == 7
    assert found["oracle"]["share_of_best_pct"] == found["first 3"]["share_of_best_pct"] == 100.0
    assert found["random"]["share_of_best_pct"] < 100.0


def test_rows_are_repeated_in_their_order() -> None:
    frame = pd.DataFrame({"m": [1, 2, 3]})
    assert predict_speed.repeated(frame, 5)["m"].tolist() == [1, 2, 3, 1, 2]


def test_a_card_is_at_rest_where_nothing_loads_or_warms_it() -> None:
    state = pd.DataFrame({"temp_c": [28, 40, 41, 28], "gpu_util": [0, 0, 0, 65]})
    assert gpperf.rested(state).tolist() == [True, True, False, False]


def test_states_of_a_card_are_compared_on_the_same_configurations() -> None:
    """The second layout was measured in one state alone; the small shape was always measured at rest."""
    rows = pd.DataFrame({
        "m": [512, 512, 512, 512, 64], "n": 512, "k": 512, "layout": ["nn", "nn", "nn", "tt", "nn"],
        "alpha": 1.0, "beta": 0.0, "runtime_ms": [1.0, 1.2, 2.2, 9.0, 1.0],
    })  # fmt: skip
    (one,) = gpperf.by_state(rows, np.array([True, True, False, False, True]))
    assert (one["m"], one["rows_at_rest"], one["rows_otherwise"]) == (512, 2, 2)
    assert one["slower"] == pytest.approx(2.0)
    (never,) = gpperf.by_state(rows[3:4], np.array([False]))
    assert (never["at_rest_ms"], never["slower"]) == (None, None)


def test_roughness_is_how_far_a_time_lies_from_its_neighbours_in_m() -> None:
    """Times grow by a tenth from m to m, and that of m = 12 is half as long again: its neighbours are off by the root of that."""
    ms = list(range(8, 19))
    times = np.array([0.02 * 1.1**m for m in range(len(ms))])
    frame = pd.DataFrame({"m": ms, "n": 64, "k": 64, "runtime_ms": times})
    every = aiconfigurator.roughness(frame)[0]
    assert (every["rows"], every["p90_pct"]) == (6, pytest.approx(0.0, abs=1e-9))
    frame.loc[frame["m"] == 12, "runtime_ms"] *= 1.5
    rough = aiconfigurator.roughness(frame)
    assert rough[0]["p90_pct"] == pytest.approx(100 * (0.5 + (1 - 1.5**-0.5)) / 2)
    assert sum(one["rows"] for one in rough[1:]) == rough[0]["rows"]
    assert aiconfigurator.roughness(frame[frame["m"] > 16]) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_benchmark_says_of_its_targets_follows_from_its_figures(name: str) -> None:
    found = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    figures = found["figures"]
    if name == "gpperf":
        one = learning.pick(figures, model="this farm", folds="unseen_shapes")
        expected = [one["mean_error_pct"], one["median_error_pct"]]
    elif name == "aiconfigurator":
        cards = list(found["configurations"])
        expected = [one.found for one in aiconfigurator.targets_of(figures, cards)]
    else:
        expected = [one.found for one in h200.targets_of(figures, found["coverage"])]
    assert [one["found"] for one in found["targets"]] == expected
    for one in found["targets"]:
        sign, asked = one["asked"].split()
        assert one["met"] == (one["found"] >= float(asked) if sign == ">=" else one["found"] <= float(asked))
    shown = (BENCHMARKS / "results" / f"{name}.md").read_text()
    assert shown.count("**missed**") == sum(not one["met"] for one in found["targets"])


# --- what the documents quote of the independent test set -----------------------------------------------------

FRESH = json.loads((BENCHMARKS / "results" / "fresh_shapes.json").read_text())["domain and learn"]
ROOT = BENCHMARKS.parent
ERRORS = ("mean_error_pct", "median_error_pct", "p90_error_pct")
CLAIMS = {"coverage_50_pct": 50, "coverage_80_pct": 80, "coverage_pct": 90}
CUTLASS = {"mean_error_pct": 3, "median_error_pct": 1.5, "p90_error_pct": 7}
TARGETS: dict[str, tuple[str, dict[str, float]]] = {
    "cutlass": ("CUTLASS 2.x", CUTLASS),
    "cutlass3x": ("CUTLASS 3.x", CUTLASS),
    "cublaslt": ("cuBLASLt", {"mean_error_pct": 6, "median_error_pct": 3.5}),
    "tiled": ("tiled", {"mean_error_pct": 5}),
}
OFF_BY = 4
"""Points by which the share of rows in an interval may differ from what the interval claims."""


def percent(value: float) -> str:
    return f"{Decimal(str(value)).quantize(Decimal('0.1'), ROUND_HALF_UP)}"


def judged(value: float, *, missed: bool, target: float | None = None) -> str:
    text = f"**{percent(value)}%**" if missed else f"{percent(value)}%"
    return text if target is None else f"{text} ({target:g}%)"


@pytest.mark.parametrize("family", TARGETS)
def test_the_documents_quote_the_test_set_with_its_targets(family: str) -> None:
    (name, targets), found = TARGETS[family], FRESH["groups"][family]
    errors = [
        judged(found[figure], missed=found[figure] > targets.get(figure, np.inf), target=targets.get(figure))
        for figure in ERRORS
    ]
    coverage = [judged(found[figure], missed=abs(found[figure] - claim) > OFF_BY) for figure, claim in CLAIMS.items()]
    assert f"| {' | '.join([name, *errors, *coverage])} |" in (ROOT / "docs" / "models.md").read_text().splitlines()
    low, high = map(percent, found["mean_error_95"])
    mean, median, p90 = (f"{percent(found[figure])}%" for figure in ERRORS)
    (shown,) = (
        row for row in (ROOT / "README.md").read_text().splitlines() if re.match(rf"\| {name}[ |(].*% \|$", row)
    )
    assert (
        shown.split(" | ", 1)[1] == f"{mean} ({low} to {high}) | {median} | {p90} | {percent(found['coverage_pct'])}% |"
    )


def test_the_documents_quote_power_and_the_choice_of_kernels() -> None:
    models, readme = (" ".join((ROOT / name).read_text().split()) for name in ("docs/models.md", "README.md"))
    choosing, power = FRESH["choosing"], FRESH["groups"]["all"]["power_median_error_pct"]
    chosen, tenth = percent(choosing["choose_share_pct"]), percent(choosing["choose_share_p10_pct"])
    three = percent(choosing["first_three_share_pct"]).removesuffix(".0")
    assert f"| both | {chosen}% | {tenth}% | {three}% |" in models
    assert "| target, at least | 98.5% | 95% | 99.5% |" in models
    assert (
        f"reaches {chosen}% of the speed of the fastest on average, and the best of its first three {three}%" in readme
    )
    assert f"its median error is {percent(power)}%" in models
    assert f"Power is off by {percent(power)}% in the median" in readme
