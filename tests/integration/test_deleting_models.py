"""Model versions are deleted, restored and vacuumed in a registry that MLflow keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from farm import registry
from farm.errors import NoSuchDeletion, NoSuchModel
from farm.registry import deletions
from support.commands import Command, farm_here, refused

NAME = "gemm-forest-cpu-test"


@pytest.fixture
def uri(tmp_path: Path, new_registry: Callable[[Path], str]) -> str:
    """Three versions: 1 was the champion, 2 is, and 3 is the challenger. Each has a run with a file, and files."""
    made = new_registry(tmp_path)
    with registry.registry_client(made) as client:
        client.create_registered_model(NAME)
        experiment = client.create_experiment("test", artifact_location=f"file://{tmp_path}/files")
        for number in (1, 2, 3):
            run = client.create_run(experiment)
            child = client.create_run(experiment, tags={"mlflow.parentRunId": run.info.run_id})
            client.log_text(run.info.run_id, "card", "model_card.md")
            client.log_text(child.info.run_id, "predictions", "predictions.csv")
            logged = client.create_logged_model(experiment, name=NAME, source_run_id=run.info.run_id)
            client.log_model_artifacts(logged.model_id, str(_folder(tmp_path, number)))
            client.create_model_version(
                NAME, source=logged.artifact_location, run_id=run.info.run_id, model_id=logged.model_id,
                tags={"device_type": "cpu-test"},
            )  # fmt: skip
        registry.make_champion(client, NAME, "1", "the first")
        registry.make_champion(client, NAME, "2", "better")
        client.set_registered_model_alias(NAME, "challenger", "3")
    return made


def _folder(base: Path, number: int) -> Path:
    folder = base / f"model-{number}"
    folder.mkdir()
    (folder / "MLmodel").write_text("x" * 1000)
    return folder


def aliases(uri: str) -> dict[str, tuple[str, ...]]:
    return {model.version: model.aliases for model in registry.list_models(uri)}


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in (folder / "files").rglob("*") if path.is_file())


def test_a_deleted_champion_makes_room_for_the_one_before_and_takes_its_place_again(uri: str) -> None:
    before = aliases(uri)
    found = deletions.delete(uri, "cpu-test/champion", by="ann")
    assert ([model.version for model in found.versions], found.next_champion) == (["2"], "1")
    assert aliases(uri) == {"1": ("champion",), "3": ("challenger",)}
    with pytest.raises(NoSuchModel):
        registry.model_info(uri, NAME, "2")
    last = registry.champions(uri, NAME)[-1]
    assert (last.version, last.reason, last.back) == ("1", "version 2 was deleted", True)
    (kept,) = deletions.deleted_versions(uri)
    assert (kept.version, kept.deleted_by, kept.aliases, kept.instead) == ("2", "ann", ("champion",), "1")
    assert kept.bytes >= 1000
    deletions.restore(uri, NAME)
    assert aliases(uri) == before
    assert deletions.deleted_versions(uri) == []


def test_a_champion_that_was_promoted_since_stays(uri: str) -> None:
    deletions.delete(uri, f"{NAME}/2", by="ann")
    registry.promote(uri, NAME, "3", reason="by hand")
    deletions.restore(uri, f"{NAME}/2")
    assert aliases(uri) == {"1": (), "2": (), "3": ("champion",)}


def test_an_alias_that_another_version_got_since_stays_there(uri: str) -> None:
    deletions.delete(uri, f"{NAME}/3", by="ann")
    with registry.registry_client(uri) as client:
        client.set_registered_model_alias(NAME, "challenger", "1")
    deletions.restore(uri, f"{NAME}/3")
    assert aliases(uri) == {"1": ("challenger",), "2": ("champion",), "3": ()}


def test_a_deleted_champion_without_one_before_leaves_none(uri: str) -> None:
    deletions.delete(uri, f"{NAME}/1", by="ann")
    found = deletions.delete(uri, f"{NAME}/2", by="ann")
    assert found.next_champion is None
    assert aliases(uri) == {"3": ("challenger",)}
    with pytest.raises(NoSuchModel):
        registry.model_info(uri, NAME)
    deletions.restore(uri, f"{NAME}/2")
    assert aliases(uri)["2"] == ("champion",)


def test_a_whole_model_goes_and_comes_back(uri: str) -> None:
    before = aliases(uri)
    deletions.delete(uri, "cpu-test", by="ann")
    assert registry.list_models(uri) == []
    with pytest.raises(NoSuchModel):
        deletions.delete(uri, "cpu-test", by="ann")
    deletions.restore(uri, "cpu-test")
    assert aliases(uri) == before


def test_a_vacuum_removes_the_version_its_runs_and_its_files(uri: str, tmp_path: Path) -> None:
    every = files(tmp_path)
    deletions.delete(uri, f"{NAME}/2", by="ann")
    assert deletions.vacuum(uri, older_than=timedelta(days=1)) == []
    assert len(deletions.vacuum(uri, older_than=timedelta(), dry_run=True)) == 1
    assert files(tmp_path) == every
    (removed,) = deletions.vacuum(uri, older_than=timedelta())
    left = files(tmp_path)
    assert len(every) == 9
    assert len(left) == 6, "its card, its predictions and its model"
    assert aliases(uri) == {"1": ("champion",), "3": ("challenger",)}
    with registry.registry_client(uri) as client:
        assert client.get_run(removed.run_id).info.lifecycle_stage == "deleted"
        assert len(client.search_runs(["1"])) == 4
    with pytest.raises(NoSuchDeletion, match="Deleted: none"):
        deletions.restore(uri, f"{NAME}/2")


def test_the_commands_delete_and_restore_a_model(uri: str, engine: Engine, tmp_path: Path, database_url: str) -> None:
    farm: Command = farm_here(tmp_path, database_url)
    refused(farm("delete", "model", "nowhere", "--yes"), 4, "no model gemm-forest-nowhere")
    asked = farm("delete", "model", "cpu-test/2")
    refused(asked, 2, "Version 1 becomes the champion", "--yes confirms it")
    assert aliases(uri)["2"] == ("champion",)
    done = farm("delete", "model", "cpu-test/2", "--yes")
    assert "farm restore model gemm-forest-cpu-test/2" in done.stdout
    assert "2" not in aliases(uri)
    restored: Any = json.loads(farm("restore", "model", "cpu-test/2", "--json").stdout)
    assert (restored["versions"], restored["champion"]) == (["2"], "2")
