"""Both times asked of registered models, by the command and from Python; and models of rows of one protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm import registry
from farm.errors import NotPredictable, TooFewMeasurements
from farm.kernels import Configuration
from farm.registry.version_details import model_card
from support.burst_tables import DEVICE_TYPE, burst_table
from support.cheap_training import cheap_trainings
from support.commands import NOWHERE, Command, farm_here, refused
from trainer.forest import ForestSettings
from trainer.registry import TrainingOutcome, train_and_register

SMALL = ForestSettings(trees=10)
LIMITED, SMALLER = "cublaslt() 6144x4096x4096 f16", "cublaslt() 256x256x256 f16"
TABLE = burst_table(150)
OTHERS = pd.concat([TABLE, burst_table(40, seed=3).assign(protocol="nvbench")], ignore_index=True)


def train(uri: str, table: pd.DataFrame, device_type: str = DEVICE_TYPE, **options: object) -> TrainingOutcome:
    table = table.assign(device_type=device_type)
    with cheap_trainings():
        return train_and_register(table, device_type, tracking_uri=uri, code_version="1.0", settings=SMALL, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> str:
    """Models of two types: one knows burst times, and the other does not."""
    found = new_registry(tmp_path_factory.mktemp("home"))
    train(found, OTHERS)
    train(found, TABLE.assign(runtime_burst_ms=np.nan), "nvidia-l40s")
    return found


@pytest.fixture
def farm(uri: str) -> Command:
    return farm_here(Path(uri.removeprefix("sqlite:///")).parent, NOWHERE)


def test_both_times_are_shown_where_they_differ(farm: Command) -> None:
    both = farm("predict", LIMITED, SMALLER, "--type", DEVICE_TYPE).stdout
    assert "settled" in both
    assert "burst" in both
    same = farm("predict", SMALLER, "--type", DEVICE_TYPE).stdout
    assert "runtime" in same
    assert "settled" not in same.split("gemm-forest", 2)[1]
    (found,) = json.loads(farm("predict", LIMITED, "--type", DEVICE_TYPE, "--json").stdout)["predictions"]
    assert found["runtime_burst_ms"] < 0.95 * found["runtime_ms"]
    assert found["runtime_burst_ms_low"] < found["runtime_burst_ms"] < found["runtime_burst_ms_high"]


def test_the_burst_time_is_predicted_where_it_is_wanted(farm: Command) -> None:
    shown = farm("predict", LIMITED, SMALLER, "--type", DEVICE_TYPE, "--time", "burst")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.index("burst") < shown.stdout.index("settled")
    told = json.loads(farm("predict", LIMITED, "--type", DEVICE_TYPE, "--time", "burst", "--json").stdout)
    assert told["time"] == "burst"
    refused(
        farm("predict", LIMITED, "--type", "nvidia-l40s", "--time", "burst"), 2, "0 of the configurations", "needs 50"
    )
    refused(farm("predict", LIMITED, "--type", DEVICE_TYPE, "--time", "cold"), 2, "'cold' is not one of")


def test_kernels_and_types_are_ranked_by_the_time_that_is_wanted(farm: Command) -> None:
    shown = farm("recommend", "6144x4096x4096", "--dtype", "f16", "--type", DEVICE_TYPE, "--time", "burst").stdout
    assert "least burst time of 1 kernels" in shown
    assert "settled" in shown
    both = farm("recommend", "6144x4096x4096", "--dtype", "f16", "--type", DEVICE_TYPE).stdout
    assert both.index("settled") < both.index("burst")
    refused(farm("recommend", "600", "--dtype", "f16", "--type", "nvidia-l40s", "--time", "burst"), 2, "burst times")
    every = json.loads(farm("recommend", "600", "--dtype", "f16", "--every-type", "--time", "burst", "--json").stdout)
    assert [(one["device_type"], one["found"] is None) for one in every] == [
        (DEVICE_TYPE, False),
        ("nvidia-l40s", True),
    ]
    assert "does not know burst times" in every[1]["why_not"]
    every_type = farm("recommend", "6144x4096x4096", "--dtype", "f16", "--every-type", "--time", "burst").stdout
    assert "least burst time" in every_type
    refused(farm("recommend", "600", "--dtype", "f16", "--confirm", "--time", "burst"), 2, "--confirm compares settled")


def test_errors_and_card_have_the_burst_time(farm: Command, uri: str) -> None:
    info = registry.model_info(uri, DEVICE_TYPE)
    assert info.burst_configurations == 150
    assert info.errors["runtime_burst_ms"]["median_error_pct"] < 10
    shown = farm("models", "show", DEVICE_TYPE).stdout
    for words in ("runtime_burst_ms", "150 configurations", "farm, unknown: L2"):
        assert words in shown
    assert "burst time" in farm("predict", LIMITED, "--type", DEVICE_TYPE).stdout
    card = model_card(uri, info) or ""
    for words in (
        "| `runtime_ms` | ms | settled time of one GEMM",
        "| `runtime_burst_ms` | ms | burst time of one GEMM",
        "150 configurations have a burst time",
        "Rows of other protocols than `farm` were left out: 40 of `nvbench`.",
    ):
        assert words in card
    other = model_card(uri, registry.answering_model(uri, "nvidia-l40s")) or ""
    assert "`runtime_burst_ms` is NaN: 0 configurations have a burst time, and a model needs 50." in other


def test_what_mlflow_loads_documents_and_predicts_both_times(uri: str, tmp_path: Path) -> None:
    folder = registry.download(uri, DEVICE_TYPE, to=tmp_path / "model")
    with registry.mlflow_warnings_ignored():
        loaded = registry.load_pyfunc().load_model(str(folder))
    assert {"runtime_ms", "runtime_burst_ms", "runtime_burst_ms_low"} <= {
        one.name for one in loaded.metadata.signature.outputs
    }
    outputs = loaded.metadata.metadata["outputs"]
    assert outputs["runtime_burst_ms"]["unit"] == "ms"
    assert loaded.metadata.metadata["protocol"] == "farm"
    rows = pd.DataFrame({"m": [6144], "n": 4096, "k": 4096, "ab": "f16", "family": "cublaslt"})
    with registry.mlflow_warnings_ignored():
        elsewhere = loaded.predict(rows)
    (here,) = registry.predict(registry.pull(uri, DEVICE_TYPE), [Configuration.parse(LIMITED)])
    assert elsewhere["runtime_burst_ms"][0] == pytest.approx(here.runtime_burst_ms, rel=1e-12)


def test_a_version_of_another_protocol_does_not_replace_the_champion_but_the_farms_does(
    tmp_path: Path, new_registry: Callable[[Path], str]
) -> None:
    uri = new_registry(tmp_path)
    published = burst_table(90, seed=5).drop(columns=["runtime_burst_ms"]).assign(protocol="aiconfigurator")
    first = train(uri, published)
    assert (first.alias, first.protocol, first.left_out) == ("champion", "aiconfigurator", {})
    with pytest.raises(NotPredictable, match="whose times are burst"):
        registry.predict(registry.pull(uri, DEVICE_TYPE), [Configuration.parse(LIMITED)], time="settled")
    done = farm_here(tmp_path, NOWHERE)("recommend", "600", "--dtype", "f16", "--confirm")
    refused(done, 2, "--confirm measures by the protocol farm", "learned from rows of aiconfigurator")
    both = pd.concat([published, TABLE], ignore_index=True)
    second = train(uri, both)
    assert (second.alias, second.protocol, second.left_out) == ("champion", "farm", {"aiconfigurator": 90})
    assert "champion version 1 learned from rows of another protocol (aiconfigurator)" in second.decision
    third = train(uri, pd.concat([both, published.assign(m=40)]), protocol="aiconfigurator")
    assert (third.alias, third.left_out) == ("challenger", {"farm": 150})
    assert "champion version 2 from those of farm" in third.decision
    info = registry.model_info(uri, DEVICE_TYPE, third.version)
    assert str(info.verdict) == "Its rows are of another protocol than those of champion version 2."


def test_a_version_that_knows_burst_times_replaces_one_that_does_not(
    tmp_path: Path, new_registry: Callable[[Path], str]
) -> None:
    uri = new_registry(tmp_path)
    train(uri, TABLE.assign(runtime_burst_ms=np.nan))
    registry.promote(uri, DEVICE_TYPE, "1", reason="a test", force=True)
    second = train(uri, TABLE)
    assert second.alias == "champion"
    assert "champion version 1" in second.decision


def test_too_few_rows_of_a_protocol_name_the_others(uri: str) -> None:
    few = pd.concat([burst_table(5), burst_table(70, seed=2).assign(protocol="server")])
    with pytest.raises(TooFewMeasurements, match=r"Rows of other protocols are left out \(70 of server\)") as refusal:
        train(uri, few)
    assert "`farm train nvidia-h200 --protocol NAME` learns from them." in str(refusal.value)
