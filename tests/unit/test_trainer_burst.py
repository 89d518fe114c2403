"""Burst times: a model learns their ratio to settled times, says where it does not know them, and keeps them in its files."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm.errors import NotPredictable
from farm.forest.arrays import BadFiles
from farm.forest.burst import BURST_ROWS, overload
from farm.forest.energy import Energies
from farm.forest.predictor import DESCRIPTION, Predictor
from farm.kernels import Configuration
from farm.registry import predict, predict_table, recommend
from farm.registry.loaded_model import Model
from farm.registry.recommendations import Objective
from support.burst_tables import DEVICE_TYPE, LIMIT_W, burst_table
from support.old_models import as_format
from support.training_tables import blas_table, tiled_table
from trainer.evaluate import evaluate
from trainer.forest import ForestSettings, fit
from trainer.packaging import described_outputs
from trainer.table import configurations, of_one_protocol
from trainer.table_hash import table_hash

SETTINGS = ForestSettings(trees=16)
UNSEEN = configurations(burst_table(300, seed=1))
LARGE = Configuration.parse("cublaslt() 6144x4096x4096 f16:f16:f32")


@cache
def fitted() -> Predictor:
    """Fitted for the first test that needs it, because every process of the tests imports this module."""
    return fit(DEVICE_TYPE, configurations(burst_table(300)), SETTINGS)


def ratios(table: pd.DataFrame) -> np.ndarray:
    return (table["runtime_burst_ms"] / table["runtime_ms"]).to_numpy("float64")


def test_the_ratio_of_both_times_is_learned_on_shapes_that_were_not_measured() -> None:
    measured, predicted = ratios(UNSEEN), ratios(fitted().predict(UNSEEN))
    limited = measured < 0.97
    assert 0.3 < limited.mean() < 0.7
    error = np.abs(predicted / measured - 1)
    assert np.median(error) < 0.015
    assert np.median(error[limited]) < 0.015
    # The mean ratio for every row would be off by several percent.
    assert np.median(np.abs(np.median(measured[limited]) / measured[limited] - 1)) > 0.04


def test_a_burst_is_not_predicted_to_be_slower_than_the_settled_state() -> None:
    assert (ratios(fitted().predict(UNSEEN)) <= 1.0).all()
    slower = burst_table(100).assign(runtime_burst_ms=lambda table: 1.05 * table["runtime_ms"])
    assert (ratios(fit(DEVICE_TYPE, configurations(slower), SETTINGS).predict(UNSEEN)) == 1.0).all()


def test_rows_above_the_limit_are_overloaded_and_others_are_not() -> None:
    rows = fitted().vocabulary.complete(UNSEEN)
    found = overload(fitted().see(rows), fitted().energies, fitted().card)
    limited = ratios(UNSEEN) < 0.97
    assert np.median(found[limited]) > np.median(found[~limited]) + 0.3
    no_limit = replace(fitted().card, power_w=float("nan"))
    assert not overload(fitted().see(rows), fitted().energies, no_limit).any()
    assert not overload(fitted().see(rows), None, fitted().card).any()


def test_unlimited_power_is_that_of_the_energies_without_the_cards_limit() -> None:
    energies = fitted().energies
    assert isinstance(energies, Energies)
    efforts, ms = fitted().see(fitted().vocabulary.complete(UNSEEN)).efforts, UNSEEN["runtime_burst_ms"].to_numpy()
    unlimited = energies.unlimited_w(efforts, ms)
    assert unlimited.max() > 1.2 * LIMIT_W
    np.testing.assert_array_equal(
        energies.power_w(efforts, ms, fitted().card), np.minimum(unlimited, fitted().card.power_w)
    )


def test_few_rows_with_both_times_are_too_few_and_the_model_says_so() -> None:
    table = burst_table(120)
    table.loc[BURST_ROWS - 1 :, "runtime_burst_ms"] = np.nan
    model = fit(DEVICE_TYPE, configurations(table), SETTINGS)
    assert model.predict(UNSEEN)["runtime_burst_ms"].isna().all()
    with pytest.raises(NotPredictable) as refused:
        predict(Model(model), [LARGE], time="burst")
    assert "49 of the configurations that it learned from have a burst time" in str(refused.value)
    assert f"a model needs {BURST_ROWS}" in str(refused.value)
    assert "`farm train nvidia-h200`" in str(refused.value)
    (settled,) = predict(Model(model), [LARGE], time="settled")
    assert settled.runtime_burst_ms is None
    assert settled.at("burst") is None


def test_one_row_more_is_enough() -> None:
    table = burst_table(120)
    table.loc[BURST_ROWS:, "runtime_burst_ms"] = np.nan
    assert fit(DEVICE_TYPE, configurations(table), SETTINGS).predict(UNSEEN)["runtime_burst_ms"].notna().all()


def test_kernels_without_a_burst_time_have_none_predicted() -> None:
    blas = blas_table().drop(columns=["runtime_burst_ms"], errors="ignore")
    both = pd.concat([burst_table(100), blas.assign(device_type=DEVICE_TYPE)], ignore_index=True)
    model = Model(fit(DEVICE_TYPE, configurations(both), SETTINGS))
    other = Configuration.parse("blas(threads=2) 128x128x128 f32")
    (found,) = predict(model, [other])
    assert (found.runtime_ms > 0, found.runtime_burst_ms) == (True, None)
    with pytest.raises(NotPredictable, match="no burst time of blas with f32:f32:f32 was measured"):
        predict(model, [LARGE, other], time="burst")
    rows = pd.DataFrame({"m": [128], "n": 128, "k": 128, "ab": "f32", "family": "blas"}, index=[7])
    with pytest.raises(NotPredictable, match=r"rows\.csv, row 7: no burst time of blas"):
        predict_table(model, rows, path="rows.csv", time="burst")
    assert predict_table(model, rows)["runtime_burst_ms"].isna().all()


def test_burst_times_have_intervals_that_hold_what_was_measured() -> None:
    of_shapes = next(evaluate(DEVICE_TYPE, configurations(burst_table(300)), SETTINGS))
    figures = of_shapes.metrics["runtime_burst_ms"]
    assert figures["median_error_pct"] < 6
    assert 80 <= figures["coverage_pct"] <= 97
    model = replace(fitted(), intervals=of_shapes.intervals)
    found = model.predict(UNSEEN)
    inside = UNSEEN["runtime_burst_ms"].between(found["runtime_burst_ms_low"], found["runtime_burst_ms_high"])
    assert inside.mean() > 0.8


def test_the_rate_and_bounds_of_a_time_are_its_own() -> None:
    (found,) = predict(Model(fitted()), [LARGE], time="burst")
    burst, settled = found.at("burst"), found.at("settled")
    assert burst is not None
    assert settled is not None
    assert burst.ms == found.runtime_burst_ms
    assert burst.ms < 0.95 * settled.ms
    assert burst.tflops == pytest.approx(2 * 6144 * 4096 * 4096 / burst.ms / 1e9)
    assert found.at(None) == settled
    assert found.energy_mj == pytest.approx((found.power_w or 0) * found.runtime_ms, rel=0.01)


def test_recommendations_rank_by_the_time_that_is_wanted() -> None:
    """Each tile is held by the limiter or not: the one with the shorter burst settles at the longer time."""
    slow, fast = (tiled_table((512, 1024, 2048), tiles=(tile,)).assign(protocol="farm") for tile in (16, 32))
    same = {"runtime_ms": fast["runtime_ms"].to_numpy()}
    steady = slow.assign(**same, runtime_burst_ms=same["runtime_ms"])
    held = fast.assign(runtime_ms=1.1 * same["runtime_ms"], runtime_burst_ms=0.8 * same["runtime_ms"])
    model = Model(fit("test-device", configurations(pd.concat([steady, held])), SETTINGS))
    problem = Configuration.parse("tiled(tile=16) 1024x1024x1024 f32").problem
    first = {time: recommend(model, problem, time=time).ranking[0] for time in (None, "settled", "burst")}
    assert "tile=16" in first["settled"].configuration
    assert first[None] == first["settled"]
    assert "tile=32" in first["burst"].configuration
    assert recommend(model, problem, time="burst", objective=Objective.EDP).time == "burst"


def test_what_is_learned_of_bursts_survives_its_files(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    again = Predictor.load(tmp_path)
    pd.testing.assert_frame_equal(again.predict(UNSEEN), fitted().predict(UNSEEN), check_exact=True)
    assert (again.protocol, again.time, again.both_times) == ("farm", "settled", 300)


def test_models_of_before_bursts_answer_as_before_and_say_that_they_know_none(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    described = json.loads((tmp_path / DESCRIPTION).read_text())
    for name in ("protocol", "time", "both_times", "burst_kinds"):
        del described[name]
    (tmp_path / DESCRIPTION).write_text(json.dumps(described))
    (tmp_path / "burst.npz").unlink()
    as_format(tmp_path, 5)
    old = Predictor.load(tmp_path)
    others = [name for name in fitted().predict(UNSEEN) if not name.startswith("runtime_burst_ms")]
    pd.testing.assert_frame_equal(old.predict(UNSEEN)[others], fitted().predict(UNSEEN)[others], check_exact=True)
    assert old.predict(UNSEEN)["runtime_burst_ms"].isna().all()
    assert predict(Model(old), [LARGE], time="settled") == predict(Model(old), [LARGE])
    with pytest.raises(NotPredictable, match="does not know burst times: an older version of the farm trained it"):
        recommend(Model(old), LARGE.problem, time="burst")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 4}, "model.json is of format 4; this code reads 5 to 10"),
        ({"format": 5}, "model.json must have"),
        ({"time": "cold"}, "time is not burst or settled"),
        ({"time": 3}, "model.json: time is no str"),
        ({"both_times": -1}, "both_times is negative"),
        ({"both_times": "300"}, "model.json: both_times is no int"),
        ({"burst_kinds": [3]}, "model.json: burst_kinds is no str"),
        ({"protocol": None}, "model.json: protocol is no str"),
    ],
)
def test_a_description_that_no_trainer_writes_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    fitted().save(tmp_path)
    described = json.loads((tmp_path / DESCRIPTION).read_text())
    (tmp_path / DESCRIPTION).write_text(json.dumps(described | changes))
    with pytest.raises(BadFiles, match=message):
        Predictor.load(tmp_path)


def test_files_without_the_bursts_trees_or_with_others_are_refused(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    trees = tmp_path / "burst.npz"
    trees.unlink()
    with pytest.raises(BadFiles, match=r"burst\.npz is missing"):
        Predictor.load(tmp_path)
    trees.write_bytes((tmp_path / "power-slowdown.npz").read_bytes())
    with pytest.raises(BadFiles, match=r"burst\.npz: value has the shape"):
        Predictor.load(tmp_path)


def test_a_burst_protocols_runtime_is_the_burst_time() -> None:
    table = burst_table(60).drop(columns=["runtime_burst_ms"]).assign(protocol="aiconfigurator")
    model = fit(DEVICE_TYPE, configurations(table), SETTINGS)
    found = model.predict(UNSEEN)
    pd.testing.assert_series_equal(found["runtime_burst_ms"], found["runtime_ms"], check_names=False)
    (one,) = predict(Model(model), [LARGE], time="burst")
    assert one.runtime_burst_ms == one.runtime_ms
    with pytest.raises(NotPredictable, match="rows of the protocol aiconfigurator, whose times are burst"):
        predict(Model(model), [LARGE], time="settled")
    assert described_outputs(model)["runtime_ms"]["definition"].startswith("burst time")


@pytest.mark.parametrize("time", ["burst", "settled"])
def test_a_protocol_of_neither_time_knows_neither(time: str) -> None:
    model = fit(DEVICE_TYPE, configurations(burst_table(100).assign(protocol="do-bench")), SETTINGS)
    assert model.predict(UNSEEN)["runtime_burst_ms"].isna().all()
    with pytest.raises(NotPredictable, match=f"{time} times: it learned from rows of the protocol do-bench"):
        predict(Model(model), [LARGE], time=time)  # type: ignore[arg-type]


def test_outputs_are_described_with_their_units_and_what_a_model_does_not_know() -> None:
    known = described_outputs(fitted())
    assert known["runtime_ms"]["definition"].startswith("settled time of one GEMM")
    assert known["runtime_burst_ms"] == {
        "unit": "ms",
        "definition": "burst time of one GEMM: in the first milliseconds after a rest, before a power limiter answers",
    }
    assert "note" in described_outputs(replace(fitted(), bursts=None))["runtime_burst_ms"]


def test_the_ratio_of_a_configuration_is_that_of_its_rows_with_both_times() -> None:
    new = burst_table(20, noise=0.0)
    old = pd.concat([new.assign(runtime_ms=0.9 * new["runtime_ms"], runtime_burst_ms=np.nan)] * 3)
    np.testing.assert_allclose(ratios(configurations(pd.concat([old, new]))), ratios(configurations(new)))


# --- rows of one protocol ------------------------------------------------------------------------------


def test_only_rows_of_one_protocol_are_learned_from() -> None:
    farm, nvbench = burst_table(20), burst_table(30, seed=2).assign(protocol="nvbench")
    both = pd.concat([nvbench, farm], ignore_index=True)
    table, left_out = of_one_protocol(both)
    assert (len(table), left_out) == (20, {"nvbench": 30})
    table, left_out = of_one_protocol(both, "nvbench")
    assert (len(table), left_out) == (30, {"farm": 20})
    table, left_out = of_one_protocol(both, "server")
    assert (len(table), left_out) == (0, {"farm": 20, "nvbench": 30})


def test_without_rows_of_the_farm_the_most_frequent_protocol_is_learned_from() -> None:
    rare, frequent = (burst_table(rows).assign(protocol=name) for rows, name in ((9, "server"), (11, "aiconfigurator")))
    table, left_out = of_one_protocol(pd.concat([rare, frequent]))
    assert (set(table["protocol"]), left_out) == ({"aiconfigurator"}, {"server": 9})


def test_rows_that_do_not_say_their_protocol_are_the_farms_and_unknown_where_imported() -> None:
    old = burst_table(10).drop(columns=["protocol"])
    assert set(of_one_protocol(old)[0]["protocol"]) == {"farm"}
    imported = old.assign(source="imported")
    assert set(of_one_protocol(imported)[0]["protocol"]) == {"unknown"}
    assert of_one_protocol(pd.concat([old, imported.head(3)]))[1] == {"unknown": 3}


def test_a_tables_hash_counts_burst_times_and_other_protocols_but_not_that_they_could_be_told() -> None:
    table = burst_table(20)
    plain = table.drop(columns=["protocol", "runtime_burst_ms"])
    assert table_hash(plain) == table_hash(plain.assign(protocol="farm", runtime_burst_ms=np.nan))
    hashes = {table_hash(each) for each in (plain, table, table.assign(protocol="nvbench"))}
    assert len(hashes) == 3
