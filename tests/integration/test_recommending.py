"""Which kernel for a problem: asked of a registered model, by the Python API and by the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from farm import registry
from farm.errors import NotPredictable
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.registry import Objective
from support.cheap_training import cheap_trainings
from support.commands import NOWHERE, Command, farm_here, refused
from support.training_tables import tiled_table
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

CARD = "nvidia-h200"
PROBLEM = Problem(Shape.parse("700x700x700"), ElementTypes.parse("f32"))
SMALL = ForestSettings(trees=10)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> str:
    found = new_registry(tmp_path_factory.mktemp("home"))
    table = tiled_table((256, 512, 1024), tiles=(8, 16, 24, 32)).assign(device_type=CARD)
    unpowered = tiled_table((256, 512), power=False)
    with cheap_trainings():
        for name, rows in ((CARD, table), ("no-power", unpowered)):
            train_and_register(rows, name, tracking_uri=found, code_version="1.0", settings=SMALL)
    return found


@pytest.fixture(scope="module")
def model(uri: str) -> Any:
    return registry.pull(uri, CARD)


def test_kernels_are_ranked_by_what_is_asked_for(model: Any) -> None:
    found = registry.recommend(model, PROBLEM)
    times = [one.runtime_ms for one in found.ranking]
    assert found.kernels == len(times) == 4
    assert times == sorted(times)
    assert found.ranking[0].configuration.startswith("tiled(tile=32) 700x700x700")
    energies = [one.energy_mj for one in registry.recommend(model, PROBLEM, objective=Objective.ENERGY).ranking]
    assert energies == sorted(energies, key=lambda energy: energy or 0)
    assert len(registry.recommend(model, PROBLEM, top=2).ranking) == 2


def test_only_kernels_that_were_measured_in_the_types_of_the_problem_are_ranked(
    tmp_path: Path, new_registry: Callable[[Path], str]
) -> None:
    f32 = tiled_table((256, 512), tiles=(8, 16))
    f64 = tiled_table((256, 512), tiles=(16, 24)).assign(ab="f64", cd="f64", acc="f64")
    table = pd.concat([f32, f64], ignore_index=True).assign(device_type=CARD)
    uri = new_registry(tmp_path)
    with cheap_trainings():
        train_and_register(table, CARD, tracking_uri=uri, code_version="1.0", settings=SMALL)
    found = registry.pull(uri, CARD)

    def ranked(types: str, **options: bool) -> set[str]:
        problem = Problem(PROBLEM.shape, ElementTypes.parse(types))
        ranking = registry.recommend(found, problem, **options).ranking  # type: ignore[arg-type]
        return {one.configuration.split(" ")[0] for one in ranking}

    assert ranked("f32") == {"tiled(tile=8)", "tiled(tile=16)"}
    assert ranked("f64") == {"tiled(tile=16)", "tiled(tile=24)"}
    assert ranked("f32", unmeasured=True) == {"tiled(tile=8)", "tiled(tile=16)", "tiled(tile=24)"}


def test_the_safe_choice_has_the_least_upper_bound_and_says_what_it_costs(model: Any) -> None:
    found = registry.recommend(model, PROBLEM)
    assert found.safe is not None
    assert found.safe_costs_pct is not None
    assert found.safe.runtime_ms_high == min(one.runtime_ms_high or 0 for one in found.ranking)
    costs = 100 * (found.safe.runtime_ms / found.ranking[0].runtime_ms - 1)
    assert found.safe_costs_pct == pytest.approx(costs)


def test_only_kernels_that_the_card_can_run_are_ranked(uri: str) -> None:
    """A tile of 32 in f64 needs 1,024 threads and 16 KiB, which is allowed; a type that was not measured is not."""
    model = registry.pull(uri, CARD)
    with pytest.raises(
        NotPredictable, match=r"f64:f64:f64 nn was not measured: the model knows tiled with f32:f32:f32 in nn"
    ):
        registry.recommend(model, Problem(PROBLEM.shape, ElementTypes.parse("f64")))
    with pytest.raises(NotPredictable, match="f32:f32:f32 nt was not measured"):
        registry.recommend(model, Problem(PROBLEM.shape, PROBLEM.types, Layout.NT))


def test_a_problem_that_the_card_has_no_memory_for_is_refused(model: Any) -> None:
    """Of 141 GB nine tenths are for operands: in f32, 100,000 squared needs 120 GB, and 110,000 squared 145."""
    assert registry.recommend(model, Problem(Shape.parse("100000x100000x100000"), PROBLEM.types)).kernels == 4
    with pytest.raises(NotPredictable, match="can run 110000x110000x110000 on the card"):
        registry.recommend(model, Problem(Shape.parse("110000x110000x110000"), PROBLEM.types))


def test_a_family_or_an_objective_that_was_never_measured_is_refused(uri: str, model: Any) -> None:
    with pytest.raises(NotPredictable, match="has not seen cutlass; it knows tiled"):
        registry.recommend(model, PROBLEM, families=["cutlass"])
    with pytest.raises(NotPredictable, match="no power of such kernels was measured"):
        registry.recommend(registry.pull(uri, "no-power"), PROBLEM, objective=Objective.EDP)


@pytest.fixture
def farm(uri: str) -> Command:
    return farm_here(Path(uri.removeprefix("sqlite:///")).parent, NOWHERE)


def test_the_command_prints_a_table_and_the_safe_choice(farm: Command) -> None:
    found = farm("recommend", "700", "--type", CARD, "--top", "2")
    assert found.returncode == 0, found.stderr
    assert "least time of 4 kernels" in found.stdout
    assert "tiled(tile=32)" in found.stdout
    assert "afe choice" in found.stdout


def test_the_command_gives_json(farm: Command) -> None:
    found = json.loads(farm("recommend", "700x600x500", "--type", CARD, "--objective", "edp", "--json").stdout)
    assert found["model"] == f"gemm-forest-{CARD}"
    assert found["problem"].startswith("700x600x500 f32")
    assert {"configuration", "runtime_ms", "runtime_ms_high", "outside"} <= set(found["ranking"][0])
    assert found["kernels"] == 4


def test_predictions_come_with_their_bounds_and_what_is_outside(farm: Command) -> None:
    found = farm("predict", "tiled(tile=8) 512 f32", "tiled(tile=8) 4096 f32", "--type", CARD)
    assert "± " in found.stdout
    assert "outside" in found.stdout
    far = json.loads(
        farm("predict", "tiled(tile=8) 512x512x512 f32", "tiled(tile=9) 8x512x512 f32", "--type", CARD, "--json").stdout
    )
    near, away = far["predictions"]
    assert (near["distance_octaves"], near["outside"]) == (0.0, "")
    assert away["distance_octaves"] == pytest.approx(5.0)
    assert away["outside"] == "kernel never measured; nearest measured problem is 5.0 octaves away (m 8 → 256)"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["7x", "--type", CARD], 2, "is not a shape"),
        (["700", "--type", CARD, "--dtype", "f15"], 2, "is not an element type"),
        (["700", "--type", "nowhere"], 4, "no model gemm-forest-nowhere"),
        (["700"], 2, "Which one?"),
        (["700", "--type", CARD, "--family", "cutlass"], 2, "has not seen cutlass; it knows tiled"),
    ],
)
def test_mistakes_are_told_without_a_traceback(farm: Command, words: list[str], code: int, why: str) -> None:
    refused(farm("recommend", *words), code, why)


def test_device_types_are_ranked_by_protocol_unless_mixed(farm: Command, uri: str) -> None:
    """One model of the two says that its rows are from published tables, by another protocol."""
    question = ("recommend", "300", "--every-type")
    together = json.loads(farm(*question, "--json").stdout)
    assert [(one["group"], one["rank"]) for one in together] == [(1, 1), (1, 2)]
    slower = together[-1]["model"]
    with registry.registry_client(uri) as client:
        before = client.get_model_version(slower, "1").tags["conditions"]
        tables = before.replace("measured by gemm-farm", "somebody's tables").replace('"measured"', '"imported"')
        assert tables != before
        client.set_model_version_tag(slower, "1", "conditions", tables)
    try:
        apart = json.loads(farm(*question, "--json").stdout)
        assert sorted((one["group"], one["rank"]) for one in apart) == [(1, 1), (2, 1)]
        shown = farm(*question).stdout
        assert "protocol 2 of 2" in shown
        assert "Device types of different tables are not ranked" in shown
        for one in apart:
            assert f"{one['model']} v1" in shown
        assert " imported from unknown" in shown or " imported\n" in shown
        mixed = json.loads(farm(*question, "--mix-protocols", "--json").stdout)
        assert [(one["group"], one["rank"]) for one in mixed] == [(1, 1), (1, 2)]
    finally:
        with registry.registry_client(uri) as client:
            client.set_model_version_tag(slower, "1", "conditions", before)


def test_options_that_cannot_go_together_are_refused(farm: Command) -> None:
    refused(farm("recommend", "300", "--mix-protocols"), 2, "--mix-protocols needs --every-type")
    refused(farm("recommend", "300", "--every-type", "--type", CARD), 2, "cannot be combined")


@pytest.mark.parametrize(
    ("tile", "why"),
    [
        ("-8", "tile goes from 1 to 32"),
        ("0", "tile goes from 1 to 32"),
        ("33", "tile goes from 1 to 32"),
        ("8.5", "tile is a whole number"),
    ],
)
def test_kernels_that_cannot_exist_are_not_predicted(farm: Command, tmp_path: Path, tile: str, why: str) -> None:
    refused(farm("predict", f"tiled(tile={tile}) 512 f32", "--type", CARD), 2, why)
    option = why if float(tile).is_integer() else "write it as name=whole number"
    refused(farm("predict", "--shape", "512", "--family", "tiled", "-p", f"tile={tile}", "--type", CARD), 2, option)
    table = tmp_path / "asked.csv"
    table.write_text(f"m,n,k,ab,family,tile\n512,512,512,f32,tiled,16\n512,512,512,f32,tiled,{tile}\n")
    said = f"tiled does not accept tile={tile}: {why} ({table}, row 1)."
    refused(farm("predict", "--file", str(table), "--type", CARD), 2, said)
