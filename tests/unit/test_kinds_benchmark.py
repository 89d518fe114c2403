"""The benchmark of predictions by kind: which rows are of which kind, and what their errors are compared with."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import common, kinds_learned
from support.training_tables import BATCHED_TYPE, KINDS, kinds_table
from trainer.forest import ForestSettings
from trainer.table import configurations

BOTH = "batch=8 scale=tensor fused=relu"
CONFIGURED = configurations(kinds_table([*KINDS, BOTH], shapes=30))


def test_each_row_is_of_one_kind() -> None:
    names = ["plain", "batch", *KINDS[2:], "batch scale=tensor fused=relu"]
    assert kinds_learned.kinds_of(CONFIGURED).value_counts().to_dict() == dict.fromkeys(names, 30)
    groups = kinds_learned.groups_of(CONFIGURED)
    assert list(groups) == ["plain", *sorted(names[1:]), "scaled", "fused"]
    assert (groups["scaled"].sum(), groups["fused"].sum()) == (4 * 30, 3 * 30)


def test_weights_of_fewer_bits_are_a_kind_and_their_factors_none_of_both() -> None:
    low_bit = CONFIGURED.head(2).assign(ab=["f16i4", "f16"], scale=["none:1x128", "none"], fused="none", batch=1)
    assert kinds_learned.kinds_of(low_bit).tolist() == ["low-bit scale=none:1x128", "plain"]
    groups = kinds_learned.groups_of(low_bit)
    assert groups["low-bit weights"].tolist() == [True, False]
    assert "scaled" not in groups


def test_every_kind_has_errors_of_time_and_power_beside_those_of_plain_rows() -> None:
    found = kinds_learned.figures(BATCHED_TYPE, CONFIGURED, ForestSettings(trees=8))
    figures = {(one["kind"], one["target"]): one for one in found}
    for target in ("runtime_ms", "power_w"):
        plain, row = figures["plain", target], figures["scale=row", target]
        assert (plain["rows"], row["rows"], row["refused"]) == (30, 30, 0)
        assert row["over_plain"] == pytest.approx(row["median_error_pct"] / plain["median_error_pct"], rel=0.05)
        assert row["over_plain_of_types"] == row["over_plain"]
        for name in ("median_error_pct", "p90_error_pct", "over_plain"):
            low, high = row[f"{name}_95"]
            assert low <= row[name] <= high
            assert low < high
        assert 0 < row["coverage_pct"] <= 100
        assert "over_plain" not in plain
        assert figures["plain, learned alone", target]["rows"] == 30


def test_each_family_is_compared_with_its_own_plain_rows() -> None:
    family = ["cublaslt", "cublaslt", "triton", "triton", "tiled"]
    rows = pd.DataFrame({"m": range(1, 6), "n": 1, "k": 1, "family": family, "ab": "f16", "cd": "f16", "acc": "f32"})
    rows = rows.assign(batch=[1, 8, 1, 1, 1], scale="none", fused="none", sparsity="none", groups=["none"] * 4 + ["5"])
    rows.loc[3, "ab"] = "f16i4"
    predicted = pd.DataFrame({target: 1 + np.array([0.02, 0.03, 0.1, 0.15, 0.04]) for target in kinds_learned.TARGETS})
    rows = rows.assign(**dict.fromkeys(kinds_learned.TARGETS, 1.0), runtime_burst_ms=1.0, energy_mj=1.0)
    found = list(kinds_learned._lines_of(rows, predicted, kinds_learned.groups_of(rows)))
    over = {(one["kind"], one["family"]): one["over_plain"] for one in found if "over_plain" in one}
    assert over["batch", "cublaslt"] == pytest.approx(1.5)
    assert over["low-bit weights", "triton"] == pytest.approx(1.5)
    assert over["in groups", "tiled"] is None


def test_shapes_are_resampled_whole() -> None:
    """Two rows of a shape are drawn together, so their error is that of the shape in each resample."""
    rows = pd.DataFrame({"m": [1, 1, 2, 3], "n": 1, "k": 1})
    found = kinds_learned.resampled(rows, np.array([5.0, 5.0, 1.0, np.nan]))
    np.testing.assert_array_equal(found.drawn[:, 0], found.drawn[:, 1])
    assert set(found.drawn[:, [0, 2, 3]].sum(axis=1)) == {3}
    value, resamples = found.of(np.array([True, True, False, False]), 50)
    assert value == 5
    assert set(resamples[np.isfinite(resamples)]) == {5.0}
    assert np.isnan(resamples).any()


def test_percentiles_of_resamples_are_those_of_numpy() -> None:
    draw = np.random.default_rng(1)
    error, drawn = draw.exponential(size=9), draw.integers(3, size=(20, 9))
    drawn[0] = np.eye(9)[4]
    for percentile in (50, 90):
        _, found = kinds_learned.Resampled(error, drawn).of(np.full(9, True), percentile)
        expected = [np.percentile(np.repeat(error, counts), percentile) for counts in drawn]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rows_of_a_kind_with_one_shape_are_refused_by_the_model_of_their_fold() -> None:
    alone = kinds_table(["scale=row"], shapes=1).assign(m=4096, n=4096, k=4096)
    configured = configurations(pd.concat([kinds_table([""], shapes=20), alone]))
    found = kinds_learned.figures(BATCHED_TYPE, configured, ForestSettings(trees=4))
    (row,) = (one for one in found if (one["kind"], one["target"]) == ("scale=row", "runtime_ms"))
    assert (row["rows"], row["refused"]) == (0, 1)
    assert (
        kinds_learned._table(found, "runtime_ms").splitlines()[3]
        == "| scale=row | cublaslt | 0 | 0 | 1 | – | – | – | – | – |"
    )


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ([kinds_table([""], shapes=4)], "rows of plain products and of others"),
        ([kinds_table(["scale=row"], shapes=4)], "rows of plain products and of others"),
        (
            [kinds_table(shapes=4), kinds_table(shapes=4).assign(device_type="cpu")],
            r"2 device types \(cpu, nvidia-h200\)",
        ),
    ],
)
def test_files_without_a_comparison_are_refused(
    tables: list[pd.DataFrame],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run(tables, tmp_path, monkeypatch)
    assert re.search(why, capsys.readouterr().err)


def test_the_figures_are_written_as_a_table_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run([kinds_table([""], shapes=8), kinds_table(["batch=8"], shapes=8)], tmp_path, monkeypatch)
    found = json.loads((tmp_path / "kinds_learned.json").read_text())
    assert (found["device_type"], found["configurations"]) == (BATCHED_TYPE, 16)
    assert {one["kind"] for one in found["figures"]} == {"plain", "batch", "plain, learned alone"}
    shown = (tmp_path / "kinds_learned.md").read_text()
    assert "Errors of `power_w`:\n\n| kind | kernels | rows |" in shown
    assert "| kind | kernels | rows | median, % | p90, % | median over that of plain rows of such kernels |\n" in shown
    assert "\n| batches | cublaslt | 8 | " in shown


def test_test_rows_are_predicted_by_a_model_of_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that take twice as long as those learned from have errors of half their time; folds of the others have not."""
    learned, test = kinds_table(["", "batch=8"], shapes=16), kinds_table(["", "batch=8"], shapes=8)
    test = test.assign(m=test["m"] + 8, runtime_ms=2 * test["runtime_ms"])
    run([learned], tmp_path, monkeypatch, test=[test])
    found = json.loads((tmp_path / "kinds_learned.json").read_text())
    (folds,), (tested,) = (
        [one for one in found[part] if (one["kind"], one["target"]) == ("batch", "runtime_ms")]
        for part in ("figures", "test")
    )
    assert (folds["rows"], tested["rows"], tested["refused"]) == (16, 8, 0)
    assert folds["median_error_pct"] < 30 < tested["median_error_pct"] < 70
    assert f"\n\n{kinds_learned.TEST}:\n\n| kind |" in (tmp_path / "kinds_learned.md").read_text()


def test_test_rows_that_others_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = kinds_table(["", "batch=8"], shapes=4)
    with pytest.raises(SystemExit):
        run([table], tmp_path, monkeypatch, test=[table])
    assert "8 problems" in capsys.readouterr().err


def run(
    tables: list[pd.DataFrame], folder: Path, monkeypatch: pytest.MonkeyPatch, test: Sequence[pd.DataFrame] = ()
) -> None:
    """Calls the benchmark with files of these tables. Results go to the folder."""
    paths = [folder / f"{number}.parquet" for number in range(len(tables) + len(test))]
    for table, path in zip([*tables, *test], paths, strict=True):
        table.assign(parameters='{"algorithm": 0}').to_parquet(path)
    learned, tested = map(str, paths[: len(tables)]), map(str, paths[len(tables) :])
    monkeypatch.setattr(common, "RESULTS", folder)
    monkeypatch.setattr(sys, "argv", ["kinds_learned", *learned, *(["--test", *tested] if test else [])])
    kinds_learned.main()
