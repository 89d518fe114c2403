"""Whoever can write to the registry, or to its files, makes no program of the farm run code or load what nobody signed."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine, text

import farm
import trainer
from farm import registry
from farm.api.pulled import PulledModels
from farm.errors import ModelNotTrusted
from farm.forest.arrays import MAX_BYTES, BadFiles, Expected, read_arrays
from farm.forest.predictor import Predictor
from farm.forest.trees import Trees
from farm.kernels import Configuration
from farm.registry import files, trust
from farm.registry.held_out import predict_held_out
from farm.registry.manifest import MANIFEST, BadManifest, File, Manifest
from farm.settings import Settings, settings
from farm.signing import Purpose, Signer
from farm.signing_keys import FOLDER
from support.cheap_training import cheap_trainings
from support.commands import NOWHERE, Command, farm_here, refused
from support.model_records import record_models
from support.serving import served
from support.training_tables import DEVICE_TYPE, tiled_table
from trainer.forest import ForestSettings, fit
from trainer.packaging import save_model
from trainer.registry import train_and_register
from trainer.table import configurations

NAME = registry.model_name(DEVICE_TYPE)
TEXT = "tiled(tile=16) 512x512x512 f32"
ARRAYS = "artifacts/forest/runtime.npz"
FOREST = "artifacts/forest"


@dataclass
class Planting:
    """A registry that an attacker writes to, and what the attacker's code would leave."""

    uri: str
    folder: Path
    mark: Path

    def register(self, folder: Path) -> str:
        with registry.registry_client(self.uri) as client:
            tags = {"device_type": DEVICE_TYPE, "sound": "true"}
            version = str(client.create_model_version(NAME, source=folder.as_uri(), tags=tags).version)
            client.set_registered_model_alias(NAME, registry.CHAMPION, version)
        return version

    def sign(self, version: str, folder: Path, by: registry.Trust) -> None:
        with registry.registry_client(self.uri) as client:
            manifest = Manifest.of(folder, None)
            (folder / MANIFEST).write_bytes(manifest.to_bytes())
            files.sign(client, NAME, version, manifest, by)

    def code(self, folder: Path) -> None:
        """Has every file of code in that model leave the mark."""
        for path in folder.rglob("*.py"):
            path.write_text(
                f"open({str(self.mark)!r}, 'w').close()\n" + path.read_text().replace("from __future__", "#")
            )

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.folder, self.folder.with_name(name)))

    def champion(self) -> str:
        """The planted champion: its code was changed, and nobody signed it."""
        folder = self.copy("planted")
        self.code(folder)
        return self.register(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    configured = configurations(tiled_table((256, 512)))
    folder = tmp_path_factory.mktemp("model") / "made"
    save_model(fit(DEVICE_TYPE, configured, ForestSettings(trees=5)), configured, folder, metadata={})
    return folder


@pytest.fixture
def planting(tmp_path: Path, made: Path, new_registry: Callable[[Path], str]) -> Planting:
    """A registry with one version, which is signed, and the champion."""
    found = Planting(new_registry(tmp_path), tmp_path / "signed", tmp_path / "it-ran")
    shutil.copytree(made, found.folder)
    with registry.registry_client(found.uri) as client:
        client.create_registered_model(NAME)
    found.sign(found.register(found.folder), found.folder, registry.Trust(settings()))
    return found


@pytest.fixture
def command(planting: Planting, tmp_path: Path) -> Command:
    run = farm_here(tmp_path, NOWHERE)
    return lambda *arguments, **more: run(*arguments, **{"MLFLOW_TRACKING_URI": planting.uri, **more})


@pytest.fixture(params=["file", "MLflow"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's files are read from their folder, or fetched by MLflow."""
    if request.param == "MLflow":
        monkeypatch.setattr(files, "files_in_folder", lambda *_: None)
        monkeypatch.setattr(files, "run_folder", lambda *_: None)
        monkeypatch.setattr(files, "local_folder", lambda _: None)


# --- a planted champion --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        ("predict", TEXT), ("predict", "--file", "asked.csv"), ("recommend", "512x512x512", "--family", "tiled"),
        ("models", "pull", DEVICE_TYPE, "--to", "pulled"),
    ],
    ids=lambda line: " ".join(line[:2]),
)  # fmt: skip
def test_a_planted_champion_is_refused_by_commands_and_its_code_does_not_run(
    planting: Planting, command: Command, tmp_path: Path, line: tuple[str, ...]
) -> None:
    (tmp_path / "asked.csv").write_text("m,n,k,ab,family,tile\n512,512,512,f32,tiled,16\n")
    assert command(*line).returncode == 0
    shutil.rmtree(tmp_path / "pulled", ignore_errors=True)
    version = planting.champion()
    refused(command(*line), 3, f"{NAME} version {version} is not loaded: it is not signed", "farm models sign")
    assert not planting.mark.exists()
    assert not (tmp_path / "pulled").exists()


def test_a_planted_champion_costs_nothing_over_the_api(planting: Planting, engine: Engine, command: Command) -> None:
    record_models(planting.uri, engine)
    planting.champion()
    with served(engine, tracking_uri=planting.uri) as url:
        refused(command("predict", TEXT, FARM_API_URL=url), 3, "it is not signed")
        (cost,) = json.loads(command("recommend", "512x512x512", "--every-type", "--json", FARM_API_URL=url).stdout)
        assert "it is not signed" in cost["why_not"]
    assert not planting.mark.exists()


def test_a_server_refuses_a_version_that_its_database_has_no_record_of(planting: Planting, engine: Engine) -> None:
    recorded = PulledModels(planting.uri, registry.Trust(settings(), engine))
    with pytest.raises(ModelNotTrusted, match="the database has no record of it"):
        recorded.pull(DEVICE_TYPE, None)
    record_models(planting.uri, engine)
    assert recorded.pull(DEVICE_TYPE, None)[0].version == "1"
    with engine.begin() as connection:
        connection.execute(text("UPDATE model_signatures SET manifest = repeat('0', 64)"))
    with pytest.raises(ModelNotTrusted, match="the database has other files on record"):
        PulledModels(planting.uri, registry.Trust(settings(), engine)).pull(DEVICE_TYPE, None)


def test_a_trainer_does_not_ask_a_planted_champion_and_trains_on(planting: Planting, engine: Engine) -> None:
    version = planting.champion()
    with cheap_trainings():
        outcome = train_and_register(
            tiled_table((256, 512, 1024)),
            DEVICE_TYPE,
            tracking_uri=planting.uri,
            code_version="1.0",
            settings=ForestSettings(trees=10),
            trust=registry.Trust(settings(), engine),
        )
    assert not planting.mark.exists()
    assert outcome.alias == "champion"
    assert (
        f"the champion before is not compared: {NAME} version {version} is not loaded: it is not signed"
        in outcome.decision
    )
    # What the trainer made is loaded, by a server too; and the models of its evaluation are checked like it.
    model = registry.model_info(planting.uri, DEVICE_TYPE)
    configuration = registry.predict(registry.load(planting.uri, model, registry.Trust(settings(), engine)), [])
    assert configuration == []
    asked = Configuration.parse(TEXT)
    assert predict_held_out(planting.uri, model, asked) is not None
    (fold,) = Path(planting.uri.removeprefix("sqlite:///")).parent.rglob("held_out/fold_0/runtime.npz")
    fold.write_bytes(bytes(reversed(fold.read_bytes())))
    with pytest.raises(ModelNotTrusted, match=r"held_out/fold_0/runtime.npz"):
        predict_held_out(planting.uri, model, asked)


# --- signatures ----------------------------------------------------------------------------------------


def test_a_signature_by_another_key_is_refused(planting: Planting, command: Command, tmp_path: Path) -> None:
    Signer.make(tmp_path / "attacker.pem")
    own = Settings.model_validate({**settings().model_dump(), "model_signing_key": tmp_path / "attacker.pem"})
    version, folder = planting.champion(), planting.folder.with_name("planted")
    planting.sign(version, folder, registry.Trust(own))
    refused(command("predict", TEXT), 3, "is by none of the keys that are trusted here")
    # Naming a trusted key beside it does not help.
    with registry.registry_client(planting.uri) as client:
        tag = json.loads(client.get_model_version(NAME, version).tags[trust.TAG])
        tag["public_key"] = Signer.load(Path(os.environ["FARM_MODEL_SIGNING_KEY"])).public
        client.set_model_version_tag(NAME, version, trust.TAG, json.dumps(tag))
    refused(command("predict", TEXT), 3, "is by none of the keys that are trusted here")
    assert not planting.mark.exists()


def test_a_signature_holds_for_one_version_alone(planting: Planting, command: Command) -> None:
    with registry.registry_client(planting.uri) as client:
        signature = client.get_model_version(NAME, "1").tags[trust.TAG]
        version = planting.register(planting.folder)
        client.set_model_version_tag(NAME, version, trust.TAG, signature)
    refused(command("predict", TEXT), 3, "is by none of the keys")


@pytest.mark.parametrize(
    "tag", ["", "{}", "[]", "null", '{"manifest": 1, "public_key": 2, "signature": 3}', "[" * 4000]
)
def test_a_signature_that_is_none_is_refused(planting: Planting, command: Command, tag: str) -> None:
    with registry.registry_client(planting.uri) as client:
        client.set_model_version_tag(NAME, "1", trust.TAG, tag)
    refused(command("predict", TEXT), 3, "it is not signed")


def test_a_home_trusts_what_it_signs_and_no_other_home(planting: Planting, command: Command, tmp_path: Path) -> None:
    """Without any setting."""
    refused(command("predict", TEXT, FARM_MODEL_SIGNING_KEY=""), 3, "is by none of the keys")
    own = Settings.model_validate({"home": tmp_path / ".farm", "model_signing_key": None, "model_keys": ""})
    planting.sign("1", planting.folder, registry.Trust(own))
    assert command("predict", TEXT, FARM_MODEL_SIGNING_KEY="").returncode == 0
    assert (tmp_path / ".farm" / FOLDER / f"{Purpose.MODEL}.pem").stat().st_mode & 0o777 == 0o600


def test_an_operator_signs_a_version_that_was_registered_before(
    planting: Planting, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    with registry.registry_client(planting.uri) as client:
        client.delete_model_version_tag(NAME, "1", trust.TAG)
    (planting.folder / MANIFEST).unlink()
    run = farm_here(tmp_path, database_url)
    refused(run("predict", TEXT, MLFLOW_TRACKING_URI=planting.uri), 3, "it is not signed")
    signed = run("models", "sign", DEVICE_TYPE, "1", MLFLOW_TRACKING_URI=planting.uri)
    assert (signed.returncode, "version 1 is signed: " in signed.stdout) == (0, True), signed.stderr
    assert run("predict", TEXT, MLFLOW_TRACKING_URI=planting.uri).returncode == 0
    assert PulledModels(planting.uri, registry.Trust(settings(), engine)).pull(DEVICE_TYPE, None)[0].version == "1"


def test_signing_refuses_links_and_what_the_predictor_cannot_read(
    planting: Planting, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    run = farm_here(tmp_path, database_url)
    secret = tmp_path / "secret"
    secret.write_text("of the operator")
    (planting.folder / "artifacts" / "linked").symlink_to(secret)
    refused(run("models", "sign", DEVICE_TYPE, "1", MLFLOW_TRACKING_URI=planting.uri), 3, "is a link")
    (planting.folder / "artifacts" / "linked").unlink()
    (planting.folder / MANIFEST).unlink()
    (planting.folder / MANIFEST).symlink_to(secret)
    refused(run("models", "sign", DEVICE_TYPE, "1", MLFLOW_TRACKING_URI=planting.uri), 3, "outside")
    assert secret.read_text() == "of the operator"
    (planting.folder / MANIFEST).unlink()
    (planting.folder / ARRAYS).write_bytes(b"no arrays")
    refused(run("models", "sign", DEVICE_TYPE, "1", MLFLOW_TRACKING_URI=planting.uri), 3, "is no file of arrays")


# --- files that were changed after signing -----------------------------------------------------------------


def other_arrays(planting: Planting) -> None:
    path = planting.folder / ARRAYS
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez_compressed(path, **{**arrays, "value": arrays["value"] * 2})


def huge(planting: Planting) -> None:
    with (planting.folder / ARRAYS).open("r+b") as file:
        file.truncate(1 << 40)


def linked(planting: Planting) -> None:
    (planting.folder / ARRAYS).unlink()
    (planting.folder / ARRAYS).symlink_to("/dev/zero")


def piped(planting: Planting) -> None:
    (planting.folder / ARRAYS).unlink()
    os.mkfifo(planting.folder / ARRAYS)


def missing(planting: Planting) -> None:
    (planting.folder / ARRAYS).unlink()


def another_manifest(planting: Planting) -> None:
    other_arrays(planting)
    (planting.folder / MANIFEST).write_bytes(Manifest.of(planting.folder, None).to_bytes())


CHANGES = [other_arrays, huge, linked, piped, missing, another_manifest]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_files_that_were_changed_after_signing_are_refused(
    planting: Planting, command: Command, tmp_path: Path, change: Callable[[Planting], None]
) -> None:
    change(planting)
    which = MANIFEST if change is another_manifest else Path(ARRAYS).name
    refused(command("predict", TEXT), 3, f"{NAME} version 1 is not loaded: ", which)
    refused(command("models", "pull", DEVICE_TYPE, "--to", "pulled"), 3, which)
    assert not (tmp_path / "pulled").exists()


@pytest.mark.usefixtures("way")
def test_arrays_that_were_changed_are_refused_however_they_are_fetched(planting: Planting) -> None:
    assert registry.pull(planting.uri, DEVICE_TYPE)
    other_arrays(planting)
    with pytest.raises(ModelNotTrusted, match=r"runtime.npz is not the one that was signed"):
        registry.pull(planting.uri, DEVICE_TYPE)


@pytest.mark.parametrize("changed", ["artifacts/code/predictor.py", "MLmodel", "gemm_forest.py"])
def test_other_code_does_not_run_and_is_not_handed_on(planting: Planting, command: Command, changed: str) -> None:
    """The farm reads arrays, so it predicts as before; who pulls the model to load it with MLflow gets nothing."""
    before = command("predict", TEXT).stdout
    planting.code(planting.folder)
    (planting.folder / "MLmodel").write_text("flavors: {python_function: {loader_module: os}}")
    assert command("predict", TEXT).stdout == before
    refused(command("models", "pull", DEVICE_TYPE, "--to", "pulled"), 3, "is not the one that was signed")
    assert not planting.mark.exists()


def test_files_that_nobody_signed_are_not_handed_on(planting: Planting, command: Command, tmp_path: Path) -> None:
    for name in (
        "python_model.pkl",
        "artifacts/forest/more.npz",
        "artifacts/code/__pycache__/predictor.cpython-311.pyc",
    ):
        (planting.folder / name).parent.mkdir(exist_ok=True)
        (planting.folder / name).write_bytes(b"cos\nsystem\n(S'touch it-ran'\ntR.")
    assert command("predict", TEXT).returncode == 0
    assert command("models", "pull", DEVICE_TYPE, "--to", "pulled").returncode == 0
    pulled = {str(path.relative_to(tmp_path / "pulled")) for path in (tmp_path / "pulled").rglob("*") if path.is_file()}
    assert pulled == {*Manifest.from_bytes((planting.folder / MANIFEST).read_bytes()).model, MANIFEST}


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a/../../x", "a//b", "", "C:/x", "a\\..\\x", "a\nb", "a/./b", "x" * 500]
)
def test_a_manifest_names_no_file_outside_of_its_folder(path: str) -> None:
    with pytest.raises(BadManifest, match="which is not a file of a model"):
        Manifest.from_bytes(Manifest({path: File.of(b"")}, {}).to_bytes())


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[" * 100_000, b'{"model": [], "run": {}}', b'{"model": {"a": ["x", 1]}, "run": {}}',
     json.dumps({"model": {"a": ["0" * 64, 1 << 60]}, "run": {}}).encode()],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(BadManifest):
        Manifest.from_bytes(content)


# --- arrays --------------------------------------------------------------------------------------------


def zipped(**arrays: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def array(values: object, dtype: str | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array(values, dtype), version=(1, 0))
    return stream.getvalue()


def claims(header: str) -> bytes:
    padded = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK\x05\x06", zipped(), zipped(a=array([1.0]), b=array([1.0])), zipped(a=b""), zipped(a=array([[1.0]])),
        zipped(a=array([1], "i4")), zipped(a=array([{"a": 1}], "O")), zipped(a=array(["x"])),
        zipped(a=claims("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }")),
        zipped(a=claims("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }")),
        zipped(a=claims("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"cos\nsystem\n."),
        zipped(a=claims("__import__('os').system('true')")), zipped(a=claims("(" * 110)),
    ],
)  # fmt: skip
def test_a_file_of_arrays_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(BadFiles):
        read_arrays(content, "a.npz", {"a": Expected("<f8", (None,))})


def test_a_file_that_unpacks_to_too_much_is_not_unpacked() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as out:
        for _ in range((MAX_BYTES >> 24) + 1):
            out.write(bytes(1 << 24))
    with pytest.raises(BadFiles, match="unpacks to"):
        read_arrays(stream.getvalue(), "a.npz", {"a": Expected("<f8", (None,))})


TREE = {
    "roots": array([0], "<i4"), "feature": array([0, 0, 0], "<i2"), "threshold": array([0.5, np.inf, np.inf], "<f4"),
    "left": array([1, 1, 2], "<i4"), "value": array([[0.0], [1.0], [2.0]], "<f4"), "depth": array(1, "<i8"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"left": array([1, 0, 2], "<i4")}, "no nodes below it"),  # a circle
        ({"left": array([2, 1, 2], "<i4")}, "no nodes below it"),  # its right child is not there
        ({"left": array([-1, 1, 2], "<i4")}, "no nodes below it"),
        ({"left": array([2**31 - 1, 1, 2], "<i4")}, "no nodes below it"),
        ({"roots": array([3], "<i4")}, "a root is no node"),
        ({"roots": array([-1], "<i4")}, "a root is no node"),
        ({"roots": array([], "<i4")}, "has no trees"),
        ({"feature": array([1, 0, 0], "<i2")}, "a feature that there is not"),
        ({"feature": array([-1, 0, 0], "<i2")}, "a feature that there is not"),
        ({"threshold": array([0.5, 0.5, np.inf], "<f4")}, "bad thresholds"),  # a leaf that is left again
        ({"threshold": array([np.nan, np.inf, np.inf], "<f4")}, "bad thresholds"),
        ({"value": array([[0.0], [np.nan], [2.0]], "<f4")}, "is no number"),
        ({"value": array([[0.0], [1.0]], "<f4")}, "not of one number"),
        ({"depth": array(2**62, "<i8")}, "not so deep"),
        ({"depth": array(-1, "<i8")}, "not so deep"),
    ],
)
def test_trees_that_lead_nowhere_are_refused(changed: dict[str, bytes], why: str) -> None:
    assert Trees.read(zipped(**TREE), "runtime.npz", features=1, outputs=1).depth == 1
    with pytest.raises(BadFiles, match=why):
        Trees.read(zipped(**{**TREE, **changed}), "runtime.npz", features=1, outputs=1)


def cut(path: tuple[str, ...], value: object) -> Callable[[bytes], bytes]:
    """Sets something in `model.json`."""

    def change(content: bytes) -> bytes:
        described = json.loads(content)
        *above, last = path
        at = described
        for step in above:
            at = at[step]
        at[last] = value
        return json.dumps(described).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"[" * 100_000, lambda _: b"null", cut(("format",), "5"), cut(("features",), ["no such feature"]),
        cut(("features",), []), cut(("forests",), [["../../../etc/passwd"]]), cut(("forests",), []),
        cut(("forests",), [["runtime"], ["runtime"]]), cut(("vocabulary", "families"), {}), cut(("card", "multiprocessors"), 0),
        cut(("card", "device_type"), ["x"]), cut(("vocabulary", "families", "tiled", "kernels_by_types"), {"f32:f32:f32": [10**9]}),
        cut(("vocabulary", "families", "tiled", "kernels"), [[1.0, 2.0, 3.0]]), cut(("vocabulary", "usual_output"), {"f32": ["f32"]}),
        cut(("intervals",), {"runtime_ms": {"floor": 1.0, "quantiles": {}}}), cut(("card", "bytes_per_ms"), float("nan")),
    ],
)  # fmt: skip
def test_a_description_that_contradicts_itself_is_refused(made: Path, change: Callable[[bytes], bytes]) -> None:
    whole = {path.name: path.read_bytes() for path in (made / FOREST).iterdir()}
    assert Predictor.read(whole).device_type == DEVICE_TYPE
    with pytest.raises(BadFiles):
        Predictor.read({**whole, "model.json": change(whole["model.json"])})


# --- nothing that runs what it loads --------------------------------------------------------------------


def programs() -> Iterator[Path]:
    for package in (farm, trainer):
        yield from Path(package.__path__[0]).rglob("*.py")


def test_no_program_imports_or_unpickles_what_it_loads() -> None:
    """But for the entry point, which is stored with a model and run by MLflow, and modules of the farm's own."""
    bad = {"load_model", "exec_module", "spec_from_file_location", "unsafe_load"}
    for path in programs():
        if path.name == "gemm_forest.py":
            continue
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        modules = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & bad, path
        if path.parent.name == "web" and path.name in ("process.py", "processes.py"):
            continue  # the server tells processes of its own what they need, over a socket pair
        assert not modules & {"pickle", "cloudpickle", "joblib", "dill", "marshal", "shelve"}, path
