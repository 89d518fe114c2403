"""A local registry is read, and its models are asked, without MLflow: the answers are those of MLflow, and never old ones."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from farm import registry
from farm.errors import ModelUnreadable
from farm.forest.described import FORMAT
from farm.kernels import Configuration
from farm.registry import deletions, files, models
from farm.registry.local_registry import files_in_folder, run_folder, versions_in_file
from farm.registry.manifest import MANIFEST, Manifest
from farm.settings import settings
from support.commands import NOWHERE, farm_here
from support.imports import farm_alone
from support.training_tables import DEVICE_TYPE, blas_table, tiled_table
from trainer.forest import ForestSettings, fit
from trainer.packaging import save_model
from trainer.table import configurations

NAME = registry.model_name(DEVICE_TYPE)
TEXT = "tiled(tile=16) 512x512x512 f32"
ASKED = [Configuration.parse(f"tiled(tile={tile}) 512x{n}x300 f32") for tile in (8, 32) for n in (256, 4096)]
BLAS = Configuration.parse("blas(threads=1) 64x64x64 f32")
WEB_STACK = {"fastapi", "flask", "starlette", "uvicorn", "httpx"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of tiled kernels and one of a BLAS, as MLflow saves them."""
    base, found = tmp_path_factory.mktemp("models"), {}
    for name, table, trees in (("first", tiled_table((256, 512)), 5), ("second", tiled_table((256, 512)), 7),
                               ("blas", blas_table(), 5)):  # fmt: skip
        configured = configurations(table)
        model = fit(DEVICE_TYPE, configured, ForestSettings(trees=trees))
        save_model(model, configured, base / name, metadata={"rows": len(table)})
        found[name] = base / name
    return found


@dataclass
class Local:
    uri: str
    folders: dict[str, Path]

    @property
    def file(self) -> Path:
        return Path(self.uri.removeprefix("sqlite:///"))

    def register(self, model: str) -> str:
        with registry.registry_client(self.uri) as client:
            if not client.search_registered_models(filter_string=f"name = '{NAME}'"):
                client.create_registered_model(NAME)
            tags = {"device_type": DEVICE_TYPE, "sound": "true", "rows": "12"}
            source = f"file://{self.folders[model]}"
            version = str(client.create_model_version(NAME, source=source, tags=tags).version)
            manifest = Manifest.of(self.folders[model], None)
            (self.folders[model] / MANIFEST).write_bytes(manifest.to_bytes())
            files.sign(client, NAME, version, manifest, registry.Trust(settings()))
            client.set_registered_model_alias(NAME, registry.CHALLENGER, version)
        return version

    def answers(self) -> str:
        """The version that answers."""
        return registry.answering_model(self.uri, DEVICE_TYPE).version


@pytest.fixture
def local(tmp_path: Path, new_registry: Callable[[Path], str], folders: dict[str, Path]) -> Local:
    made = Local(new_registry(tmp_path), folders)
    made.register("first")
    return made


@contextmanager
def through_mlflow() -> Iterator[None]:
    with patch.object(models, "versions_in_file", lambda *_, **__: None), patch.object(
        files, "files_in_folder", lambda *_: None
    ):  # fmt: skip
        yield


def check_same(uri: str) -> list[registry.ModelInfo]:
    """The list of versions, which is MLflow's too."""
    found = registry.list_models(uri)
    assert versions_in_file(uri, prefix=registry.PREFIX) is not None
    with through_mlflow():
        assert registry.list_models(uri) == found
    return found


# --- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "asked"),
    [("first", ASKED[:1]), ("first", ASKED), ("blas", [BLAS]), ("first", [])],
    ids=["one", "several", "no power", "none"],
)
def test_a_model_gives_the_same_numbers_with_and_without_mlflow(
    local: Local, model: str, asked: list[Configuration]
) -> None:
    info = registry.model_info(local.uri, NAME, local.register(model))
    direct = registry.load(local.uri, info)
    with through_mlflow():
        fetched = registry.load(local.uri, info)
    assert repr(registry.predict(direct, asked)) == repr(registry.predict(fetched, asked))  # every digit
    assert direct.families == fetched.families


def test_a_third_party_gets_the_same_numbers_through_mlflow(local: Local) -> None:
    """With the code that is stored with the model, where the farm uses its own."""
    model = registry.pull(local.uri, NAME, "1")
    with registry.mlflow_warnings_ignored():
        loaded = registry.load_pyfunc().load_model(str(local.folders["first"]))
    assert loaded.metadata.metadata["families"] == model.families
    table = configurations(tiled_table((256,)))[["m", "n", "k", "ab", "family", "tile"]]
    assert loaded.predict(table).equals(model.predict(table))


def test_a_model_of_another_format_is_refused_with_what_to_do(local: Local, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(local.folders["first"], other)
    described = other / "artifacts" / "forest" / "model.json"
    described.write_text(described.read_text().replace(f'"format": {FORMAT}', '"format": 2'))
    version = Local(local.uri, {"other": other}).register("other")
    with pytest.raises(
        ModelUnreadable, match=r"format 2, and this .* reads the formats 5 to 10.*Train it again .* mlflow.pyfunc"
    ):
        registry.pull(local.uri, NAME, version)


# --- changes are seen at once ------------------------------------------------------------------------


def test_promotion_rollback_deletion_and_restoring_are_seen_at_once(local: Local) -> None:
    assert local.answers() == "1"  # a challenger, where there is no champion
    check_same(local.uri)
    registry.promote(local.uri, DEVICE_TYPE, "1", reason="the first")
    second = local.register("second")
    assert local.answers() == "1"
    registry.promote(local.uri, DEVICE_TYPE, second, reason="better")
    assert local.answers() == second
    check_same(local.uri)
    registry.rollback(local.uri, DEVICE_TYPE)
    assert local.answers() == "1"
    deletions.delete(local.uri, f"{NAME}/1", by="ann")
    assert local.answers() == second
    assert [model.version for model in check_same(local.uri)] == [second]
    deletions.restore(local.uri, f"{NAME}/1")
    assert local.answers() == "1"
    assert [model.version for model in check_same(local.uri)] == [second, "1"]


def test_a_version_that_mlflow_deleted_is_gone(local: Local) -> None:
    second = local.register("second")
    with registry.registry_client(local.uri) as client:
        client.delete_model_version(NAME, second)
    assert [model.version for model in check_same(local.uri)] == ["1"]


def test_farm_predict_answers_from_what_another_process_registered_since(local: Local, tmp_path: Path) -> None:
    farm = farm_here(tmp_path, NOWHERE)
    environment = {"MLFLOW_TRACKING_URI": local.uri}
    first = farm("predict", TEXT, "--json", **environment).stdout
    local.register("second")
    second = farm("predict", TEXT, "--json", **environment).stdout
    assert ('"version": "1"' in first, '"version": "2"' in second) == (True, True)
    with through_mlflow():
        assert farm("predict", TEXT, "--json", **environment).stdout == second


# --- when MLflow is asked ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:1", "postgresql://x@127.0.0.1:1/y", "sqlite:////no/such/file.db", "sqlite:///x.db?cache=private"]
)  # fmt: skip
def test_a_registry_that_is_no_local_file_is_left_to_mlflow(uri: str) -> None:
    assert versions_in_file(uri, prefix=registry.PREFIX) is None
    assert files_in_folder(uri, NAME, "1") is None
    assert run_folder(uri, "1") is None


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE model_versions RENAME COLUMN current_stage TO phase",
        "DROP TABLE registered_model_aliases",
        "INSERT INTO registered_models (name, workspace) VALUES ('other', 'another')",
    ],
)
def test_tables_that_this_code_does_not_know_are_left_to_mlflow(local: Local, change: str) -> None:
    with closing(sqlite3.connect(local.file)) as file:
        file.execute(change)
        file.commit()
    assert versions_in_file(local.uri, prefix=registry.PREFIX) is None


def test_a_file_that_a_killed_writer_left_half_written_is_left_to_mlflow(local: Local) -> None:
    local.file.write_bytes(b"no database" * 1000)
    assert versions_in_file(local.uri, prefix=registry.PREFIX) is None
    assert files_in_folder(local.uri, NAME, "1") is None


def test_files_that_lie_elsewhere_are_fetched_by_mlflow(local: Local) -> None:
    assert files_in_folder(local.uri, NAME, "1") == local.folders["first"]
    for source in ("s3://bucket/model", "mlflow-artifacts:/1", "file:///no/such/folder", "relative/folder"):
        with closing(sqlite3.connect(local.file)) as file:
            file.execute("UPDATE model_versions SET source = ?, storage_location = ?", (source, source))
            file.commit()
        assert files_in_folder(local.uri, NAME, "1") is None


def test_the_files_of_a_run_are_found_where_mlflow_has_them(local: Local, tmp_path: Path) -> None:
    with registry.registry_client(local.uri) as client:
        experiment = client.create_experiment("runs", artifact_location=f"file://{tmp_path / 'runs'}")
        run = client.create_run(experiment)
        client.log_text(run.info.run_id, "rows", "table.txt")
        location = client.get_run(run.info.run_id).info.artifact_uri
    assert run_folder(local.uri, run.info.run_id) == Path(location.removeprefix("file://"))
    assert run_folder(local.uri, "another") is None


# --- what commands import ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("predict", TEXT), ("models",)], ids=" ".join)
def test_asking_a_local_registry_imports_neither_mlflow_nor_pandas_nor_a_web_stack(
    local: Local, tmp_path: Path, command: tuple[str, ...]
) -> None:
    ran = farm_alone(*command, environment={"MLFLOW_TRACKING_URI": local.uri, "FARM_HOME": str(tmp_path / "home")})
    assert ran.code == 0, ran.stderr
    assert NAME in ran.stdout
    assert ran.packages & {"mlflow", "pandas", "sklearn", "scipy", "sqlalchemy", "psycopg", *WEB_STACK} == set()
