"""`farm compare --predict`: what a side lacks is asked of its type's champion, bounded, and told apart from what was measured."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine

from farm import registry
from farm.compare.aggregation import CompareQuery
from farm.compare.comparison import Comparison, GroupComparison, compare
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.registry import trust
from support.cheap_training import cheap_trainings
from support.commands import Command, farm_here, refused
from support.compared import Put
from support.model_records import record_models
from support.samples import card, row
from support.training_tables import tiled_table, without_champion
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

H, L, NEVER = "nvidia-h200", "nvidia-l40s", "nvidia-b200"
UNKNOWN, BURSTS = "nvidia-a100-sxm4-80gb", "nvidia-h100-80gb-hbm3"
PROTOCOL = {"protocol": "farm", "l2": "cold", "distribution": "uniform", "clock_policy": "default"}
"""Of the rows that models learned from and of those that are compared, unless a test has others."""
SIZES = (256, 512, 1024)
CONFIGURATIONS = [
    Configuration.parse(f"tiled(tile={tile}) {m}x{n}x512 f32") for m in SIZES for n in SIZES for tile in (8, 16, 32)
]
OTHER_TYPES = [Configuration.parse("tiled(tile=16) 512x512x512 f64")]
BATCHED = [Configuration.parse("tiled(tile=16) 512x512x512 f32 batch=8")]
TOO_LARGE = [Configuration.parse("tiled(tile=16) 8192x8192x8192 f32")]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> str:
    """Champions of four types: on one of them all takes three times as long, one was never measured on the farm, what the rows
    of one were measured by is unknown, and one knows burst times, which are four fifths of the settled ones.
    """
    found = new_registry(tmp_path_factory.mktemp("home"))
    with cheap_trainings():
        for name, factor in ((L, 3.0), (NEVER, 0.5), (UNKNOWN, 2.0), (BURSTS, 3.0)):
            table = tiled_table(SIZES, tiles=(8, 16, 32)).assign(device_type=name)
            table = table.assign(runtime_ms=table["runtime_ms"] * factor, energy_mj=table["energy_mj"] * factor)
            table = table.assign(source="imported" if name == NEVER else "measured")
            table = table.assign(**(PROTOCOL if name != UNKNOWN else {}))
            table = table.assign(runtime_burst_ms=0.8 * table["runtime_ms"] if name == BURSTS else np.nan)
            train_and_register(table, name, tracking_uri=found, code_version="1.0", settings=ForestSettings(trees=10))
    for name in (L, NEVER, UNKNOWN, BURSTS):
        registry.promote(found, name, "1", reason="a test", force=True)
    return found


@pytest.fixture
def command(tmp_path: Path, database_url: str, uri: str, engine: Engine) -> Command:
    record_models(uri, engine)
    farm = farm_here(tmp_path, database_url)
    return lambda *arguments, **more: farm(*arguments, **{"MLFLOW_TRACKING_URI": uri, **more})


def truth(factor: float, **changes: object) -> Callable[[Configuration], Measurement]:
    """What the training table says, by the same physics and under the same protocol."""
    table = tiled_table(SIZES, tiles=(8, 16, 32))
    times = {
        (r["m"], r["n"], r["k"], r["parameters"]["tile"]): (r["runtime_ms"], r["power_w"])
        for r in table.to_dict("records")
    }

    def taken(one: Configuration) -> Measurement:
        shape = one.problem.shape
        ms, watts = times.get((shape.m, shape.n, shape.k, dict(one.kernel.parameters)["tile"]), (1.0, 100.0))
        return row(factor * ms, **{"power_w": watts, "clock_policy": "default", **changes})

    return taken


def asked(engine: Engine, uri: str, *sides: str, **options: Any) -> Comparison:
    record_models(uri, engine)
    return compare(engine, CompareQuery(groups=sides, predict_from=uri, **options))


def only(found: Comparison) -> GroupComparison:
    (side,) = found.groups
    return side


def test_what_a_side_lacks_is_predicted_and_told_apart(engine: Engine, uri: str, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=[*CONFIGURATIONS, *OTHER_TYPES, *BATCHED, *TOO_LARGE])
    put(card(2, kind=L), truth(6.0), configurations=CONFIGURATIONS[:6])
    found = asked(engine, uri, H, L)
    side = only(found)
    assert side.overall is not None
    assert side.predicted is not None
    assert side.predicted.overall is not None
    # The rows that were measured are twice what the champion says of them, and neither stands for the other.
    assert (side.overall.configurations, side.overall.time.ratio) == (6, pytest.approx(6))
    assert side.predicted.overall.configurations == 21
    assert side.predicted.overall.time.ratio == pytest.approx(3, rel=0.15)
    assert side.predicted.overall.power is not None
    assert side.predicted.overall.energy is not None
    assert found.predicted_pairs[L].predicted.all()
    assert not found.predicted_pairs[L].baseline_predicted.any()
    forecast = side.forecast
    assert forecast is not None
    assert (forecast.predicted, forecast.not_learned, forecast.outside) == (21, 2, 1)
    assert (found.baseline.missing, side.missing, found.baseline.forecast) == (0, 24, None)
    assert forecast.sources == "measured"
    said = " ".join(found.notes)
    assert "training data of" not in said
    assert f"gemm-forest-{L} v1 has not learned 2 of the configurations that {L} lacks" in said
    assert f"1 predictions of gemm-forest-{L} v1 lie outside" in said


def test_a_prediction_of_the_baseline_is_the_inverse(engine: Engine, uri: str, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[:1])
    backward = asked(engine, uri, L, H)
    there, back = only(asked(engine, uri, H, L)).predicted, only(backward).predicted
    assert there is not None
    assert there.overall is not None
    assert back is not None
    assert back.overall is not None
    assert backward.predicted_pairs[H].baseline_predicted.all()
    assert not backward.predicted_pairs[H].predicted.any()
    assert back.overall.time.ratio == pytest.approx(1 / there.overall.time.ratio)
    assert (back.overall.time.low, back.overall.time.high) == pytest.approx(
        (1 / (there.overall.time.high or 0), 1 / (there.overall.time.low or 0))
    )
    assert (back.overall.faster, back.overall.unsure) == (there.overall.slower, there.overall.unsure)
    assert there.overall.slower > 0


def test_intervals_and_verdicts_hold_the_bounds_of_the_model(engine: Engine, uri: str, put: Put) -> None:
    put(card(1, kind=H), truth(3.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[:1])
    found = asked(engine, uri, H, L)
    side, pairs = only(found), found.predicted_pairs[L]
    assert side.predicted is not None
    overall, forecast = side.predicted.overall, side.forecast
    assert overall is not None
    assert pairs.bounds is not None
    assert forecast is not None
    assert forecast.error_pct is not None
    with_top = only(asked(engine, uri, H, L, top=99)).predicted
    assert with_top is not None
    rows = with_top.top
    asks = [Configuration.from_columns(dict(one)) for one in rows]
    by_name = {p.configuration: p for p in registry.predict(registry.pull(uri, L), asks)}
    for one, configuration in zip(rows, asks, strict=True):
        said = by_name[configuration.canonical]
        assert said.runtime_ms_low is not None
        assert one["runtime_ms"] == pytest.approx(said.runtime_ms)
        assert one["time_ratio_least"] == pytest.approx(said.runtime_ms_low / one["baseline_runtime_ms"])
        assert (one["predicted"], one["baseline_predicted"]) == (True, False)
        if one["verdict"] in ("faster", "slower"):
            assert not one["time_ratio_least"] <= 1 <= one["time_ratio_most"]
    # The card is as fast as it is predicted: the interval holds that, and is no narrower than the bounds of single predictions.
    assert overall.time.low is not None
    assert overall.time.high is not None
    assert overall.time.low < 1 < overall.time.high
    least = pairs.bounds.min[1].runtime_ms / pairs.bounds.min[0].runtime_ms
    assert overall.time.low <= np.median(least)


@pytest.mark.parametrize(
    ("kind", "changes", "of_model", "of_rows"),
    [
        (L, {"l2": "warm"}, "farm, cold L2, uniform operands, clocks default", "farm, warm L2"),
        (L, {"protocol": "nvbench"}, "(farm, cold L2", "(nvbench, cold L2"),
        (L, {"distribution": "zeros"}, "uniform operands", "zeros operands"),
        (L, {"clock_policy": "locked:1500"}, "clocks default", "clocks locked:1500"),
        (UNKNOWN, {}, "farm, unknown: L2, operands, clocks", "farm, cold L2"),
    ],
    ids=["another L2", "another protocol", "other operands", "other clocks", "a model of unknown protocol"],
)
def test_a_model_of_another_protocol_predicts_nothing_unless_protocols_are_mixed(
    command: Command, put: Put, kind: str, changes: dict[str, object], of_model: str, of_rows: str
) -> None:
    put(card(1, kind=H), truth(1.0, **changes), configurations=CONFIGURATIONS)
    put(card(2, kind=kind), truth(3.0, **changes), configurations=CONFIGURATIONS[:7])
    apart = json.loads(command("compare", H, kind, "--predict", "--json").stdout)
    (side,) = apart["sides"]
    assert (side["predicted"], side["forecast"]) == (None, None)
    assert side["overall"]["configurations"] == 7
    (note,) = [note for note in apart["notes"] if "protocol" in note]
    model = f"gemm-forest-{kind} v1"
    for words in (f"No predictions for {kind}: {model} ", of_model, of_rows, "--mix-protocols"):
        assert words in note
    mixed = json.loads(command("compare", H, kind, "--predict", "--mix-protocols", "--json").stdout)
    assert mixed["sides"][0]["predicted"]["side_predicted"] == 20
    (note,) = [note for note in mixed["notes"] if "protocol" in note]
    for words in ("MIXED protocols", model, of_model, of_rows):
        assert words in note


def test_burst_times_are_predicted_where_they_are_compared_by_models_that_know_them(
    command: Command, engine: Engine, uri: str, put: Put
) -> None:
    def both(one: Configuration) -> Measurement:
        measured = truth(1.0)(one)
        return replace(measured, runtime_burst_ms=measured.runtime_ms)

    put(card(1, kind=H), both, configurations=CONFIGURATIONS)
    settled, burst = (only(asked(engine, uri, H, BURSTS, time=time)).predicted for time in (None, "burst"))
    assert settled is not None
    assert burst is not None
    assert settled.overall is not None
    assert burst.overall is not None
    assert settled.overall.time.ratio == pytest.approx(3, rel=0.15)
    assert burst.overall.time.ratio == pytest.approx(0.8 * settled.overall.time.ratio, rel=0.02)
    assert settled.overall.burst is not None
    assert settled.overall.burst.ratio == pytest.approx(burst.overall.time.ratio, rel=0.001)
    assert burst.overall.energy == settled.overall.energy
    put(card(2, kind=L), both, configurations=CONFIGURATIONS[:3])
    found = asked(engine, uri, H, L, time="burst")
    assert only(found).predicted is None
    assert any(
        f"No predictions for {L}: " in note and "does not know burst times: 0 of" in note for note in found.notes
    )


def test_protocols_are_known_of_the_rows_that_a_prediction_is_compared_with_alone(
    command: Command, engine: Engine, uri: str, put: Put
) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0, l2="warm"), configurations=CONFIGURATIONS[:7])
    # What L measured itself is not compared with what its model says of the rest.
    assert only(asked(engine, uri, H, L)).predicted is not None
    # One model that two groups lack is named once.
    put(card(3, kind=H), truth(1.0, l2="warm"), configurations=CONFIGURATIONS)
    put(card(4, kind=L), truth(3.0), configurations=CONFIGURATIONS[:3])
    found = asked(engine, uri, "GPU-3", "GPU-2", "GPU-4")
    (note,) = [note for note in found.notes if "protocol" in note]
    assert "No predictions for GPU-2 and GPU-4: " in note
    refused(command("compare", H, L, "--mix-protocols"), 2, "--mix-protocols: this goes with predict")


def test_sources_and_protocol_of_the_model_stand_beside_what_it_predicts(command: Command, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    for line in (
        f"training data of gemm-forest-{NEVER} v1\n  rows: 81 imported\n",
        "  protocol: farm, cold L2, uniform operands, clocks default\n",
        "  measured: 81 rows without a date\n",
    ):
        assert line in command("compare", H, NEVER, "--predict").stdout
    mixed = command("compare", H, UNKNOWN, "--predict", "--mix-protocols").stdout
    assert "  protocol: farm, unknown: L2, operands, clocks\n" in mixed
    found = json.loads(command("compare", H, NEVER, "--predict", "--json").stdout)
    (protocol,) = found["sides"][0]["forecast"]["conditions"]["protocols"]
    assert (protocol["name"], protocol["l2"], protocol["rows"]) == ("farm", "cold", 81)


def test_a_challenger_that_predicts_is_labelled(command: Command, uri: str, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[:7])
    assert "not the champion" not in command("compare", H, L, "--predict").stdout
    with without_champion(uri, L):
        told = command("compare", H, L, "--predict").stdout
    assert f"20 of B by gemm-forest-{L} v1 (CHALLENGER, not the champion)" in told
    assert f"note: gemm-forest-{L} v1 is a challenger and not the champion: {L} has none." in told


def test_a_type_that_was_never_measured_is_asked_of_its_model_alone(command: Command, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    done = command("compare", H, NEVER, "--predict", "--top", "1", "--price", f"{H}=4", "--price", f"{NEVER}=6")
    assert done.returncode == 0, done.stderr
    for words in (
        f"Of 27 pairs of B and A, 27 have one predicted value: 27 of B by gemm-forest-{NEVER} v1 (90% of its errors are within ±",
        "PREDICTED: median ratio over shapes", "90% bounds", "PREDICTED: configurations by time",
        "PREDICTED: B / A by type", "PREDICTED: cost", "(predicted)", f"gemm-forest-{NEVER} v1 learned from imported rows",
    ):  # fmt: skip
        assert words in done.stdout, words
    assert "shared" not in done.stdout
    found = json.loads(command("compare", H, NEVER, "--predict", "--json").stdout)
    (side,) = found["sides"]
    assert (side["overall"], side["rows"], side["gpu"], side["devices"]) == (None, 0, "B200", [])
    assert side["predicted"]["overall"]["time"]["ratio"] == pytest.approx(0.5, rel=0.15)
    assert side["forecast"]["model"] == f"gemm-forest-{NEVER}"
    assert side["predicted"]["by_type"]["f32"]["configurations"] == 27
    refused(command("compare", H, NEVER), 4, "no type, host or device 'nvidia-b200'")


def test_the_file_says_of_every_figure_whether_it_was_measured(command: Command, put: Put, tmp_path: Path) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS[:20])
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[10:])
    file = tmp_path / "pairs.csv"
    done = command("compare", L, H, "--predict", "-o", str(file))
    assert "20 pairs" in done.stderr
    lines = list(csv.DictReader(file.read_text().splitlines()))
    told = [(line["baseline_predicted"], line["predicted"], bool(line["time_ratio_least"])) for line in lines]
    assert sorted(told) == [("false", "false", False)] * 10 + [("true", "false", True)] * 10
    assert "there is no model of nvidia-h200" in done.stdout


def test_what_a_model_cannot_tell_apart_is_not_predicted(command: Command, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[:1])
    done = command("compare", H, f"{L},library=1.0", "--predict")
    assert (
        "No predictions for nvidia-l40s,library=1.0: a model covers a whole device type and cannot separate library=1.0"
        in done.stdout
    )
    put(card(3, kind=L), truth(3.0), configurations=OTHER_TYPES)
    refused(
        command("compare", H, "GPU-3,until=2099-01-01", "--predict"),
        4,
        "share no configuration",
        "cannot separate until",
    )
    refused(command("compare", H, "GPU-3"), 4, "share no configuration", "--fill")
    assert json.loads(command("compare", H, "GPU-3", "--predict", "--json").stdout)["sides"][0]["overall"] is None


def test_a_fill_and_predictions_at_once(command: Command, put: Put) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[:7])
    found = json.loads(command("compare", H, L, "--predict", "--fill", "--json").stdout)
    assert [fill["jobs"] for fill in found["fills"]] == [20]
    assert found["sides"][0]["predicted"]["overall"]["configurations"] == 20


def test_a_champion_that_nobody_signed_predicts_nothing_and_the_comparison_says_why(
    engine: Engine, uri: str, put: Put
) -> None:
    put(card(1, kind=H), truth(1.0), configurations=CONFIGURATIONS)
    put(card(2, kind=L), truth(3.0), configurations=CONFIGURATIONS[:7])
    name = registry.model_name(L)
    with registry.registry_client(uri) as client:
        signature = client.get_model_version(name, "1").tags[trust.TAG]
        client.set_model_version_tag(name, "1", trust.TAG, "{}")
        try:
            found = compare(engine, CompareQuery(groups=(H, L), predict_from=uri))
        finally:
            client.set_model_version_tag(name, "1", trust.TAG, signature)
    assert only(found).predicted is None
    assert any(f"{name} version 1 is not loaded: it is not signed" in note for note in found.notes)
