"""Champion and challenger in a real registry: who takes whose place, by hand and by itself, and what is written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from farm import registry
from farm.errors import NoChampionBefore, NoSuchModel, NotPromotable
from farm.kernels import Configuration
from farm.registry.held_out import predict_held_out
from farm.registry.promotions import MAX_TAG_CHARACTERS
from support.cheap_training import cheap_trainings
from support.commands import NOWHERE, Command, farm_here, refused
from support.training_tables import DEVICE_TYPE, blas_table, tiled_table
from trainer import evaluate, folds
from trainer.folds import Splits
from trainer.forest import ForestSettings
from trainer.promotion import losses
from trainer.registry import TrainingOutcome, train_and_register
from trainer.table import configurations

NAME = f"gemm-forest-{DEVICE_TYPE}"
FEW, MORE = tiled_table((256, 512, 1024)), tiled_table((256, 512, 640, 1024, 2048))
TARGETS = ["runtime_ms", "power_w", "energy_mj"]


def shuffled(table: pd.DataFrame = FEW) -> pd.DataFrame:
    order = np.random.default_rng(3).permutation(len(table))
    return table.assign(**{target: table[target].to_numpy()[order] for target in TARGETS})


def leaking(frame: pd.DataFrame) -> Splits:
    """Folds with a mistake: what is held out stays in training."""
    for training, held_out in folds.by_shape(frame):
        yield np.concatenate([training, held_out]), held_out


def train(uri: str, table: pd.DataFrame = FEW, *, trees: int = 8) -> TrainingOutcome:
    settings = ForestSettings(trees=trees)
    return train_and_register(table, DEVICE_TYPE, tracking_uri=uri, code_version="1.0", settings=settings)


@pytest.fixture(autouse=True, scope="module")
def only_what_is_compared() -> Iterator[None]:
    with cheap_trainings():
        yield


def aliases(uri: str) -> dict[str, tuple[str, ...]]:
    return {model.version: model.aliases for model in registry.list_models(uri)}


@pytest.fixture
def uri(tmp_path: Path, new_registry: Callable[[Path], str]) -> str:
    return new_registry(tmp_path)


# --- by itself -------------------------------------------------------------------------------------------


def test_a_better_version_takes_the_place_of_the_champion_and_a_worse_one_does_not(uri: str) -> None:
    assert train(uri).alias == "champion"
    better = train(uri, MORE)
    assert (better.version, better.alias) == ("2", "champion")
    assert "champion version 1" in better.decision
    assert "375 configurations of shapes that neither has seen" in better.decision
    worse = train(uri, MORE, trees=1)
    assert (worse.version, worse.alias) == ("3", "challenger")
    assert "champion version 2" in worse.decision
    assert aliases(uri) == {"1": (), "2": ("champion",), "3": ("challenger",)}
    assert [reign.version for reign in registry.champions(uri, NAME)] == ["1", "2"]
    info = registry.model_info(uri, DEVICE_TYPE, "3")
    assert (info.decision, info.sound) == (worse.decision, True)


def test_a_version_that_was_not_promoted_is_not_trained_again_either(uri: str) -> None:
    train(uri, MORE)
    first, again = train(uri, MORE, trees=1), train(uri, MORE, trees=1)
    assert (first.alias, first.reused, again.reused) == ("challenger", False, True)
    same = ("version", "run_id", "alias", "decision", "metrics")
    assert [getattr(again, name) for name in same] == [getattr(first, name) for name in same]


def test_a_version_whose_run_did_not_end_well_is_made_again(uri: str) -> None:
    first = train(uri)
    with registry.registry_client(uri) as client:
        client.set_terminated(first.run_id, "FAILED")
    assert (train(uri).reused, train(uri).version) == (False, "2")


def test_a_model_of_shuffled_measurements_never_becomes_champion(uri: str) -> None:
    first = train(uri, shuffled())
    assert (first.alias, registry.model_info(uri, DEVICE_TYPE, "1").sound) == ("challenger", False)
    assert "knows no kernels" in first.decision
    with pytest.raises(NoSuchModel, match=r"version or alias champion. It has: version 1 = challenger"):
        registry.pull(uri, DEVICE_TYPE)
    train(uri)
    assert train(uri, shuffled(MORE)).alias == "challenger"
    assert aliases(uri)["2"] == ("champion",)


def test_a_model_whose_folds_leak_never_becomes_champion(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train(uri)
    monkeypatch.setitem(evaluate.FOLD_KINDS, "unseen_shapes", leaking)
    leaked = train(uri, MORE)
    assert leaked.alias == "challenger"
    assert "leaks: 42 shapes that should be unseen were in its training" in leaked.decision
    assert leaked.metrics["unseen_shapes"]["runtime_ms"]["median_error_pct"] < 1  # as it would look
    assert registry.model_info(uri, DEVICE_TYPE, "2").sound is False


def test_a_champion_that_leaks_is_judged_by_the_model_that_others_pull(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setitem(evaluate.FOLD_KINDS, "unseen_shapes", leaking)
        train(uri, tiled_table((256, 512)))
    registry.promote(uri, DEVICE_TYPE, "1", reason="it looks good", force=True)
    better = train(uri, MORE)
    assert better.alias == "champion"
    assert "that champion may have seen them" in better.decision


def test_shapes_that_the_champion_never_had_are_asked_of_its_final_model_and_others_of_its_folds(uri: str) -> None:
    """The final model knows its own shapes by heart: judged by it there, no challenger would ever be lower."""
    train(uri)
    second = train(uri, FEW, trees=20)
    with registry.registry_client(uri) as client:
        scores = client.get_run(second.run_id).data.metrics
        first = client.get_run(registry.model_info(uri, NAME, "1").run_id).data.metrics
    assert scores["promotion.champion_score"] == pytest.approx(first["promotion.score"])
    champion = registry.pull(uri, NAME)
    others = configurations(tiled_table((300, 700, 1500)))
    elsewhere = train(uri, tiled_table((300, 700, 1500)))
    with registry.registry_client(uri) as client:
        scores = client.get_run(elsewhere.run_id).data.metrics
    final = losses(others, champion.predict(others[["m", "n", "k", "ab", "family", "tile"]]))
    assert scores["promotion.champion_score"] == pytest.approx(np.nanmean(final))
    assert "of shapes that neither has seen" in elsewhere.decision


def test_a_version_that_knows_fewer_kinds_does_not_take_the_place_of_one_that_knows_more(uri: str) -> None:
    train(uri, pd.concat([FEW, blas_table()], ignore_index=True))
    fewer = train(uri, MORE)
    assert fewer.alias == "challenger"
    assert "does not know blas f32:f32:f32 nn, which champion version 1 predicts" in fewer.decision


_OWN = """
import mlflow
import pandas as pd

class Own(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return pd.DataFrame(1.0, model_input.index, ["runtime_ms", "power_w", "energy_mj", "tflops"])

mlflow.models.set_model(Own())
"""
"""Somebody's own model, which says the same of everything."""


def test_a_champion_from_elsewhere_can_be_replaced_by_a_version_that_is_better(uri: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_OWN)
    with registry.mlflow_warnings_ignored():
        registry.load_pyfunc().save_model(
            str(tmp_path / "own"), python_model=str(tmp_path / "own.py"), pip_requirements=[]
        )
    with registry.registry_client(uri) as client:
        client.create_registered_model(NAME)
        client.create_model_version(NAME, source=(tmp_path / "own").as_uri())
        client.set_registered_model_alias(NAME, "champion", "1")
    assert registry.model_info(uri, NAME).sound is None
    assert train(uri).alias == "champion"
    assert [(r.version, r.since is None) for r in registry.champions(uri, NAME)] == [("1", True), ("2", False)]


def test_the_card_says_what_was_learned_and_decided(uri: str) -> None:
    outcome = train(uri)
    info = registry.model_info(uri, NAME)
    card = registry.model_card(uri, info)
    assert card is not None
    for words in (
        f"# {NAME}",
        "Became the champion: it scores",
        "81 measurements of 81 configurations (81 of them with power) over 27 shapes, 3 kernels",
        "Sources: measured",
        "`tiled f32:f32:f32 nn`",
        "| unseen_shapes | runtime_ms | 81 |",
        "m 256 to 1,024",
        f"models:/{NAME}@champion",
    ):
        assert words in card
    with registry.registry_client(uri) as client:
        version = client.get_model_version(NAME, "1")
        assert card.startswith(version.description)
        assert client.get_run(outcome.run_id).data.tags["decision"] == outcome.decision


# --- by hand ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> SimpleNamespace:
    """Three versions: the first champion, the present one, and one of shuffled measurements."""
    folder = tmp_path_factory.mktemp("home")
    uri = new_registry(folder)
    train(uri)
    train(uri, MORE)
    train(uri, shuffled())
    return SimpleNamespace(folder=folder, uri=uri)


@pytest.fixture
def as_before(home: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """That registry, with aliases and history set back afterwards."""
    with registry.registry_client(home.uri) as client:
        tag = client.get_registered_model(NAME).tags["champions"]
        yield home
        client.set_registered_model_tag(NAME, "champions", tag)
        client.set_registered_model_alias(NAME, "champion", "2")
        client.set_registered_model_alias(NAME, "challenger", "3")


def test_a_version_is_promoted_by_hand_with_its_reason(as_before: SimpleNamespace) -> None:
    model, changed = registry.promote(as_before.uri, DEVICE_TYPE, "1", reason="it is smaller")
    assert (model.version, model.aliases, changed) == ("1", ("champion",), True)
    last = registry.champions(as_before.uri, NAME)[-1]
    assert (last.version, last.reason, last.back) == ("1", "it is smaller", False)
    assert registry.promote(as_before.uri, DEVICE_TYPE, "1", reason="again")[1] is False
    assert registry.champions(as_before.uri, NAME)[-1] == last


def test_a_version_that_is_worth_nothing_is_promoted_only_by_force(as_before: SimpleNamespace) -> None:
    with pytest.raises(
        NotPromotable, match=r"version 3 is not promoted: it scores .* --force promotes it all the same"
    ):
        registry.promote(as_before.uri, DEVICE_TYPE, "challenger", reason="why not")
    assert registry.model_info(as_before.uri, NAME).version == "2"
    registry.promote(as_before.uri, DEVICE_TYPE, "3", reason="why not", force=True)
    assert aliases(as_before.uri) == {"1": (), "2": (), "3": ("champion",)}


def test_rolling_back_goes_to_the_champion_before_and_not_to_what_was_taken_back(as_before: SimpleNamespace) -> None:
    uri = as_before.uri
    registry.promote(uri, NAME, "3", reason="a mistake", force=True)
    assert [model.version for model in registry.rollback(uri, NAME)] == ["2", "3"]
    assert [model.version for model in registry.rollback(uri, NAME)] == ["1", "2"]
    with pytest.raises(NoChampionBefore, match="no champion before version 1"):
        registry.rollback(uri, NAME)
    last = registry.champions(uri, NAME)[-1]
    assert (last.version, last.reason, last.back) == ("1", "rolled back from version 2", True)


def test_the_history_stays_within_what_the_registry_stores(as_before: SimpleNamespace) -> None:
    for number in range(40):
        registry.promote(as_before.uri, NAME, str(1 + number % 2), reason=f"{number} " + "ü" * 1000)
    with registry.registry_client(as_before.uri) as client:
        stored = client.get_registered_model(NAME).tags["champions"]
    assert len(stored) <= MAX_TAG_CHARACTERS
    champions = registry.champions(as_before.uri, NAME)
    assert len(champions) > 8
    assert champions[-1].reason.startswith("39 ")


# --- commands --------------------------------------------------------------------------------------------


@pytest.fixture
def farm(as_before: SimpleNamespace, engine: Engine, database_url: str) -> Command:
    return farm_here(as_before.folder, database_url)


def test_without_a_champion_the_challenger_answers_and_is_labelled(uri: str, engine: Engine, database_url: str) -> None:
    assert train(uri, shuffled()).alias == "challenger"
    farm = farm_here(Path(uri.removeprefix("sqlite:///")).parent, database_url)
    answers = [("predict", "tiled(tile=8) 512x512x512 f32"), ("recommend", "512x512x512")]
    for words in answers:
        told = farm(*words).stdout
        assert f"{NAME} v1 (CHALLENGER, not the champion)" in told
        assert "error on held-out shapes of its training table: time " in told
        assert "not the champion: It failed the test against the baseline, " in told
        assert f"`farm models promote {NAME} 1 --force --reason TEXT`" in told
        by = json.loads(farm(*words, "--json").stdout)["answered_by"]
        assert by["standing"] == "challenger"
        assert by["why_not_champion"].startswith("It failed the test against the baseline")
        assert by["conditions"]["sources"] == [{"source": "measured", "file": None, "provenance": None, "rows": 81}]
    refused(farm(*answers[0], "--version", "champion"), 4, f"{NAME} has no version or alias champion", "challenger")
    farm("models", "promote", DEVICE_TYPE, "1", "--force")
    by = json.loads(farm(*answers[0], "--json").stdout)["answered_by"]
    assert (by["standing"], by["why_not_champion"], by["to_get_a_champion"]) == ("champion", None, None)


def test_a_version_without_conditions_says_that_they_are_unknown(uri: str) -> None:
    train(uri)
    with registry.registry_client(uri) as client:
        for tag in ("conditions", "verdict"):
            client.delete_model_version_tag(NAME, "1", tag)
    farm = farm_here(Path(uri.removeprefix("sqlite:///")).parent, NOWHERE)
    question = ("predict", "tiled(tile=8) 512x512x512 f32")
    assert json.loads(farm(*question, "--json").stdout)["answered_by"]["conditions"] is None
    assert "conditions: unknown" in farm(*question).stdout


def test_a_held_out_prediction_is_of_the_model_that_has_not_seen_the_shape(uri: str) -> None:
    train(uri)
    model = registry.model_info(uri, DEVICE_TYPE)
    known = Configuration.parse("tiled(tile=8) 512x512x512 f32")
    found = predict_held_out(uri, model, known)
    # As the evaluation logged it, and not as the final model, which was fitted on that shape, says.
    logged = predictions_of(uri, model)
    mine = logged[(logged[["m", "n", "k", "tile"]] == [512, 512, 512, 8]).all(axis=1)]
    assert found == pytest.approx(mine["predicted_runtime_ms"].item())
    (final,) = registry.predict(registry.pull(uri, DEVICE_TYPE), [known])
    assert found != pytest.approx(final.runtime_ms, rel=1e-6)
    # A shape that the version never had is answered by the registered model.
    new = Configuration.parse("tiled(tile=8) 300x300x300 f32")
    (final,) = registry.predict(registry.pull(uri, DEVICE_TYPE), [new])
    assert predict_held_out(uri, model, new) == pytest.approx(final.runtime_ms)


def test_models_that_leak_give_no_held_out_prediction(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluate.FOLD_KINDS, "unseen_shapes", leaking)
    train(uri)
    model = registry.answering_model(uri, DEVICE_TYPE)
    assert model.standing == "challenger"
    assert predict_held_out(uri, model, Configuration.parse("tiled(tile=8) 512x512x512 f32")) is None


def predictions_of(uri: str, model: registry.ModelInfo) -> pd.DataFrame:
    """The held-out predictions that the evaluation logged."""
    with registry.registry_client(uri) as client:
        run = client.get_run(model.run_id)
        (child,) = client.search_runs(
            [run.info.experiment_id],
            filter_string=f"tags.`mlflow.parentRunId` = '{model.run_id}' and tags.fold = 'unseen_shapes'",
        )
        return pd.read_parquet(client.download_artifacts(child.info.run_id, "predictions.parquet"))


def test_the_commands_show_compare_promote_and_roll_back(farm: Command) -> None:
    listed = farm("models", "--json")
    assert [(m["version"], m["sound"]) for m in json.loads(listed.stdout)] == [("3", False), ("2", True), ("1", True)]

    shown = json.loads(farm("models", "show", DEVICE_TYPE, "--json", "--card").stdout)
    assert (shown["version"], shown["aliases"]) == ("2", ["champion"])
    assert set(shown["metrics"]) == {"unseen_shapes", "random_rows"}
    assert [reign["version"] for reign in shown["champions"]] == ["1", "2"]
    assert shown["card"].startswith(f"# {NAME}")
    assert farm("models", "show", DEVICE_TYPE, "--card").stdout == shown["card"] + "\n"
    said = farm("models", "show", DEVICE_TYPE, "--version", "3").stdout
    assert "no: not promoted without --force" in said

    assert "independent test set" not in said
    assert "unseen shapes" in said[said.index("folds: interpolation inside the training table") :]

    two = farm("models", "compare", DEVICE_TYPE)
    assert "median error % v2" in two.stdout
    assert f"{NAME} version 3 is a challenger and not the champion: it scores" in two.stdout.replace("\n", " ")
    assert [m["version"] for m in json.loads(farm("models", "compare", NAME, "1", "3", "--json").stdout)] == ["1", "3"]

    refused(farm("models", "promote", DEVICE_TYPE, "3"), 2, "--force promotes it all the same")
    refused(farm("models", "promote", DEVICE_TYPE, "9"), 4, "version or alias 9")
    refused(farm("models", "show", "nowhere"), 4, "no model gemm-forest-nowhere", f"Known: {NAME}")
    promoted = farm("models", "promote", DEVICE_TYPE, "1", "--reason", "smaller", "--json")
    assert json.loads(promoted.stdout)["aliases"] == ["champion"]
    assert "version 2 is the champion again, instead of 1" in farm("models", "rollback", DEVICE_TYPE).stdout
    assert farm("models", "rollback", NAME).returncode == 0
    refused(farm("models", "rollback", NAME), 4, "no champion before version 1")
