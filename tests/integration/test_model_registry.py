"""A model's whole way: trained, registered, pulled, and loaded where nothing of the farm is installed."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from farm import registry
from farm.errors import BadInput, MissingColumns, NoSuchModel, NotPredictable, RegistryUnreachable, TooFewMeasurements
from farm.kernels import Configuration
from farm.registry.predictions import OUTSIDE
from support.cheap_training import cheap_trainings
from support.programs import free_port
from support.training_tables import DEVICE_TYPE, tiled_table
from trainer.folds import FOLD_KINDS
from trainer.forest import ForestSettings
from trainer.reading import read_training_table
from trainer.registry import TrainingOutcome, train_and_register
from trainer.table_hash import table_hash

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
TABLE = tiled_table((256, 512, 1024))
SMALL = ForestSettings(trees=8)
CONFIGURATIONS = [Configuration.parse(f"tiled(tile={tile}) 512x512x512 f32") for tile in (8, 32)]


def train(uri: str, table: pd.DataFrame = TABLE, device_type: str = DEVICE_TYPE, **changes: object) -> TrainingOutcome:
    arguments: dict[str, object] = {"tracking_uri": uri, "code_version": "1.0", "settings": SMALL, **changes}
    return train_and_register(table, device_type, **arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> SimpleNamespace:
    """A model that was trained with `here` as the current folder."""
    home, here = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("here")
    uri = new_registry(home)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(here)
        return SimpleNamespace(home=home, here=here, uri=uri, outcome=train(uri, campaign="first"))


@pytest.fixture(scope="module")
def model(trained: SimpleNamespace) -> object:
    return registry.pull(trained.uri, DEVICE_TYPE)


def test_a_training_says_what_it_came_to(trained: SimpleNamespace) -> None:
    outcome = trained.outcome
    assert (outcome.rows, outcome.configurations, outcome.shapes, outcome.sources) == (81, 81, 27, ["measured"])
    assert (outcome.model_name, outcome.version, outcome.alias) == ("gemm-forest-test-device", "1", "champion")
    assert outcome.table_hash == table_hash(TABLE)
    # One device measured all of it, so that nothing can be held out by card.
    assert set(outcome.metrics) == set(FOLD_KINDS) - {"another_card"}
    assert json.loads(json.dumps(outcome.to_json(), allow_nan=False)) == outcome.to_json()


def test_the_registry_lists_what_was_trained(trained: SimpleNamespace) -> None:
    (info,) = [model for model in registry.list_models(trained.uri) if model.device_type == DEVICE_TYPE]
    outcome = trained.outcome
    assert (info.name, info.version, info.aliases) == (outcome.model_name, "1", ("champion",))
    assert (info.device_type, info.rows, info.shapes, info.run_id) == (DEVICE_TYPE, 81, 27, outcome.run_id)
    runtime = outcome.metrics["unseen_shapes"]["runtime_ms"]
    assert info.median_error_pct == pytest.approx(runtime["median_error_pct"], rel=1e-4)
    assert registry.model_info(trained.uri, DEVICE_TYPE) == registry.model_info(trained.uri, info.name, 1) == info


def test_a_run_holds_its_parameters_table_and_pictures(trained: SimpleNamespace, tmp_path: Path) -> None:
    with registry.registry_client(trained.uri) as client:
        run = client.get_run(trained.outcome.run_id)
        files = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    assert run.info.status == "FINISHED"
    assert run.data.params["trees"] == "8"
    assert run.data.tags["campaign"] == "first"
    assert run.inputs.dataset_inputs[0].dataset.digest == trained.outcome.table_hash[:36]
    assert table_hash(pd.read_parquet(files / "training" / "table.parquet")) == trained.outcome.table_hash
    assert (files / "evaluation" / "parity.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_has_a_child_for_each_fold_kind_with_its_metrics_and_predictions(
    trained: SimpleNamespace, tmp_path: Path
) -> None:
    outcome = trained.outcome
    with registry.registry_client(trained.uri) as client:
        run = client.get_run(outcome.run_id)
        children = client.search_runs(
            [run.info.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{outcome.run_id}'"
        )
        assert {child.info.run_name for child in children} == set(outcome.metrics)
        for child in children:
            kind = child.info.run_name
            by_target = outcome.metrics[kind]
            assert child.data.metrics == {f"{t}.{n}": v for t, found in by_target.items() for n, v in found.items()}
            file = client.download_artifacts(child.info.run_id, "predictions.parquet", str(tmp_path))
            assert len(pd.read_parquet(file)) == 81
    assert {name.split(".")[0] for name in run.data.metrics} == {"unseen_shapes", "promotion"}
    assert registry.metrics_of(trained.uri, registry.model_info(trained.uri, DEVICE_TYPE)) == outcome.metrics


@pytest.fixture
def cheap() -> Iterator[None]:
    with cheap_trainings():
        yield


def test_everything_lies_beside_the_database_and_nothing_in_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, trained: SimpleNamespace
) -> None:
    monkeypatch.chdir(trained.here)
    registry.predict(registry.pull(trained.uri, DEVICE_TYPE), CONFIGURATIONS)
    assert list(trained.here.iterdir()) == []
    assert {path.name for path in trained.home.iterdir()} == {"mlflow.db", "mlartifacts"}


def test_equal_tables_and_code_are_not_trained_again(
    tmp_path: Path, cheap: None, new_registry: Callable[[Path], str]
) -> None:
    uri = new_registry(tmp_path)
    first = train(uri)
    again = train(uri, TABLE.sample(frac=1, random_state=1))
    assert (first.reused, again.reused) == (False, True)
    assert (again.version, again.run_id, again.metrics) == (first.version, first.run_id, first.metrics)

    more = train(uri, tiled_table((256, 512, 768)))
    newer_code = train(uri, tiled_table((256, 512, 768)), code_version="1.1")
    assert [more.version, newer_code.version] == ["2", "3"]
    assert train(uri).version == "1"


def test_predictions_name_their_configuration_and_are_consistent(model: object) -> None:
    predictions = registry.predict(model, CONFIGURATIONS)
    assert [p.configuration for p in predictions] == [c.canonical for c in CONFIGURATIONS]
    assert predictions[1].runtime_ms < predictions[0].runtime_ms
    for p in predictions:
        assert p.power_w is not None
        assert p.energy_mj == pytest.approx(p.power_w * p.runtime_ms)
        assert p.tflops == pytest.approx(2 * 512**3 / p.runtime_ms / 1e9)
    assert registry.predict(model, []) == []


def test_a_table_is_predicted_with_parameters_as_columns_or_as_in_exported_results(model: object) -> None:
    raw = {"m": [256, 512], "n": 512, "k": 512, "ab": "f32", "family": "tiled", "cd": None, "note": "kept out"}
    columns = registry.predict_table(model, pd.DataFrame({**raw, "tile": [8, 32]}))
    exported = registry.predict_table(model, pd.DataFrame({**raw, "parameters": ['{"tile": 8}', '{"tile": 32}']}))
    assert list(columns) == ["m", "n", "k", "ab", "family", "tile", *registry.ANSWERS]
    pd.testing.assert_frame_equal(columns, exported)


def test_a_table_without_a_needed_column_is_refused_by_name(model: object) -> None:
    with pytest.raises(MissingColumns, match=r"asked.csv lacks the columns ab, family. It has: m, n, k"):
        registry.predict_table(model, pd.DataFrame({"m": [1], "n": [1], "k": [1]}), path="asked.csv")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"tile": 0}, "tiled does not accept tile=0: tile goes from 1 to 32 (asked.csv, row 1)."),
        ({"tile": 8.5}, "tiled does not accept tile=8.5: tile is a whole number (asked.csv, row 1)."),
        ({"tile": [8]}, "asked.csv, row 1: tile is [8]; it must be a number or a text."),
        (
            {"parameters": '{"tile": -8}'},
            "tiled does not accept tile=-8: tile goes from 1 to 32 (asked.csv, row 1).",
        ),
        ({"parameters": "8"}, """asked.csv, row 1: parameters is 8; write an object, as in {"tile": 16}."""),
    ],
)
def test_a_table_with_a_kernel_that_cannot_exist_is_refused_by_row_column_and_value(
    model: object, cells: dict[str, object], message: str
) -> None:
    first = {"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled"}
    fine: dict[str, object] = {"parameters": '{"tile": 8}'} if "parameters" in cells else {"tile": 8}
    with pytest.raises(BadInput) as refusal:
        registry.predict_table(model, pd.DataFrame.from_records([first | fine, first | cells]), path="asked.csv")
    assert str(refusal.value) == message


def test_what_the_model_has_not_learned_is_refused_with_what_it_knows(model: object) -> None:
    with pytest.raises(NotPredictable, match="family is 'blas', which the model has not seen; it knows tiled"):
        registry.predict(model, [Configuration.parse("blas(threads=1) 64x64x64 f32")])


def test_a_refusal_is_mlflows_error_and_a_value_error(trained: SimpleNamespace, tmp_path: Path) -> None:
    """Through MLflow, with the code that is stored with the model."""
    model = registry.load_pyfunc().load_model(str(registry.download(trained.uri, DEVICE_TYPE, to=tmp_path / "model")))
    with pytest.raises(ValueError, match="family is 'blas'") as error:
        model.predict(pd.DataFrame([{"m": 1, "n": 1, "k": 1, "ab": "f32", "family": "blas"}]))
    assert error.value.error_code == "INVALID_PARAMETER_VALUE"  # type: ignore[attr-defined]


def test_gaps_become_none_in_records() -> None:
    assert registry.records(pd.DataFrame({"power_w": [np.nan, 1.5]})) == [{"power_w": None}, {"power_w": 1.5}]


@pytest.mark.parametrize(("name", "content"), [("asked.txt", "m"), ("absent.csv", None), ("bad.parquet", "m,n")])
def test_a_file_that_is_no_table_is_bad_input(tmp_path: Path, name: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=name):
        registry.read_configurations(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("nowhere", "champion", "no model gemm-forest-nowhere. Known: .*gemm-forest-test-device"),
        (
            DEVICE_TYPE,
            "challenger",
            "has no version or alias challenger. It has: version 1 = champion. Without a version",
        ),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_those_that_are(
    trained: SimpleNamespace, name: str, version: str, message: str
) -> None:
    with pytest.raises(NoSuchModel, match=message):
        registry.pull(trained.uri, name, version)


def test_a_registry_that_nobody_wrote_to_has_no_models_and_is_not_created_by_asking(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert registry.list_models(uri) == []
    with pytest.raises(NoSuchModel, match="Known: none"):
        registry.pull(uri, DEVICE_TYPE)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_said_to_be_unreachable_without_its_password() -> None:
    with pytest.raises(RegistryUnreachable, match=r"http://\*\*\*@127.0.0.1:9 does not answer") as found:
        registry.list_models("http://ann:secret@127.0.0.1:9")
    assert "secret" not in str(found.value)


def test_a_file_that_is_no_database_is_said_to_be_unreachable(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("this is not a database, however long it is " * 40)
    with pytest.raises(RegistryUnreachable, match="file is not a database"):
        registry.list_models(f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_a_downloaded_model_is_a_folder_that_is_not_overwritten(trained: SimpleNamespace, tmp_path: Path) -> None:
    folder = registry.download(trained.uri, DEVICE_TYPE, to=tmp_path / "here" / "model")
    assert (folder / "MLmodel").is_file()
    with pytest.raises(BadInput, match="not an empty folder"):
        registry.download(trained.uri, DEVICE_TYPE, to=folder)


_ELSEWHERE = """
    import sys

    class NotInstalled:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("farm", "trainer", "workers", "skops"):
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, NotInstalled())
    import mlflow, pandas as pd

    rows = pd.DataFrame([{"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": tile} for tile in (8, 32)])
    for where in sys.argv[1:]:
        model = mlflow.pyfunc.load_model(where)
        print(model.predict(rows).to_json(orient="records", double_precision=15))
"""


def test_a_model_loads_from_the_registry_and_from_a_folder_where_nothing_of_the_farm_is_installed(
    trained: SimpleNamespace, model: object, tmp_path: Path
) -> None:
    in_registry = f"models:/{trained.outcome.model_name}@champion"
    in_folder = str(registry.download(trained.uri, DEVICE_TYPE, to=tmp_path / "model"))
    found = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(_ELSEWHERE), in_registry, in_folder],
        cwd=tmp_path,
        env={"MLFLOW_TRACKING_URI": trained.uri, "MLFLOW_DISABLE_TELEMETRY": "true", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    from_registry, from_folder = map(json.loads, found.stdout.splitlines())
    assert from_folder == from_registry
    here = [p.to_json() for p in registry.predict(model, CONFIGURATIONS)]
    for elsewhere, same in zip(from_registry, here, strict=True):
        assert elsewhere.pop(OUTSIDE) == same[OUTSIDE]
        assert elsewhere.keys() <= same.keys()
        known, expected = ({name: x for name, x in of.items() if x is not None} for of in (elsewhere, same))
        assert known == pytest.approx({name: expected[name] for name in known}, rel=1e-12)
        assert expected.keys() - known.keys() <= {"configuration", OUTSIDE}


@pytest.mark.long
def test_a_model_answers_through_mlflows_own_server_as_the_documentation_starts_it(
    trained: SimpleNamespace, model: object, tmp_path: Path
) -> None:
    port = free_port()
    (block,) = re.findall(r"```sh\n(export MLFLOW_TRACKING_URI=.*?)```", MODELS.read_text(encoding="utf-8"), re.DOTALL)
    script = block.replace("nvidia-h200", DEVICE_TYPE).replace("5001", str(port))
    export, serve, curl = script.strip().splitlines()
    (tmp_path / ".farm").symlink_to(trained.home)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    programs = Path(sys.executable).parent  # mlflow looks for uvicorn on the path
    served = subprocess.Popen(
        ["bash", "-c", f"{export}\nexec {serve.removesuffix('&')}"],
        cwd=tmp_path,
        env={**environment, "PATH": f"{programs}:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    documented = json.loads(shlex.split(curl)[-1])
    rows = [{"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": tile} for tile in (8, 32)]
    url = f"http://127.0.0.1:{port}/invocations"
    try:
        assert _asked(url, documented, served)["predictions"][0]["runtime_ms"] > 0
        answer = _asked(url, {"dataframe_records": rows}, served)
        refused = _asked(url, {"dataframe_records": [{**rows[0], "family": "blas"}]}, served)
        impossible = _asked(url, {"dataframe_records": [rows[0], {**rows[1], "tile": 0}]}, served)
        without = [{name: value for name, value in row.items() if name != "k"} for row in rows]
        incomplete = _asked(url, {"dataframe_records": without}, served)
    finally:
        os.killpg(served.pid, signal.SIGTERM)
        served.wait(120)
    here = [p.to_json() for p in registry.predict(model, CONFIGURATIONS)]
    for elsewhere, same in zip(answer["predictions"], here, strict=True):
        assert elsewhere.pop(OUTSIDE) == same[OUTSIDE]
        unknown = [name for name in elsewhere if same[name] is None]
        assert all(math.isnan(elsewhere.pop(name)) for name in unknown)
        assert elsewhere == pytest.approx({name: same[name] for name in elsewhere}, rel=1e-12)
    assert refused["status"] == 400
    assert refused["error_code"] == "INVALID_PARAMETER_VALUE"
    assert refused["message"].startswith("row 0: family is 'blas'")
    assert "Traceback" not in json.dumps(refused)
    assert (impossible["status"], impossible["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert impossible["message"].startswith("row 1: tile is 0; it must be a whole number from 1")
    assert (incomplete["status"], incomplete["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert incomplete["message"] == "the column k is missing; the model needs m, n, k, ab, family"
    # No store of MLflow's own beside it.
    assert [path.name for path in tmp_path.iterdir()] == [".farm"]


def _asked(url: str, question: object, server: subprocess.Popen[bytes]) -> Any:
    """What a server that is just starting answers."""
    request = Request(url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    until = time.monotonic() + 120
    while True:
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            return {**json.load(error), "status": error.code}
        except URLError:
            assert server.poll() is None
            assert time.monotonic() < until, "the server did not answer"
            time.sleep(0.2)


def test_models_made_by_different_code_live_in_one_process(trained: SimpleNamespace, tmp_path: Path) -> None:
    folders = [registry.download(trained.uri, DEVICE_TYPE, to=tmp_path / name) for name in ("now", "later")]
    code = folders[1] / "artifacts" / "code" / "predictor.py"
    changed = code.read_text().replace("np.exp(logs[RUNTIME])", "2 * np.exp(logs[RUNTIME])")
    assert changed != code.read_text()
    code.write_text(changed)
    now, later = (registry.load_pyfunc().load_model(str(folder)) for folder in folders)
    asked = pd.DataFrame([{"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": 8}])
    for model, factor in ((later, 2), (now, 1)):
        (reference,) = registry.pull(trained.uri, DEVICE_TYPE).predict(asked)["runtime_ms"]
        assert model.predict(asked)["runtime_ms"][0] == pytest.approx(factor * reference)


# --- the training table in Postgres ----------------------------------------------------------------


def test_the_training_table_holds_measured_rows_only_unless_asked(measured_and_imported: Engine) -> None:
    fresh = read_training_table(measured_and_imported, "cpu-test")
    everything = read_training_table(measured_and_imported, "cpu-test", any_source=True)
    nothing = read_training_table(measured_and_imported, "another")
    assert list(fresh["runtime_ms"]) == [float(n) for n in range(1, 13)]
    assert fresh["power_w"].isna().all()
    assert set(fresh["source"]) == {"measured"}
    assert list(everything["source"]) == ["measured"] * 12 + ["imported"]
    assert list(everything["energy_mj"].dropna()) == [4200.0]
    assert fresh["parameters"][0].keys() == {"threads"}
    assert (fresh["campaign"] == "small").all()
    assert nothing.empty


def test_rows_from_postgres_train_a_model(
    measured_and_imported: Engine, tmp_path: Path, cheap: None, new_registry: Callable[[Path], str]
) -> None:
    table = read_training_table(measured_and_imported, "cpu-test")
    nothing = read_training_table(measured_and_imported, "another")
    uri = new_registry(tmp_path)
    outcome = train_and_register(table, "cpu-test", tracking_uri=uri, code_version="1.0", settings=SMALL)
    assert (outcome.rows, outcome.shapes, outcome.power_configurations) == (12, 6, 0)
    # Twelve times that have nothing to do with their configurations: nobody should pull that by default.
    assert (outcome.alias, registry.model_info(uri, "cpu-test", "challenger").sound) == ("challenger", False)
    (prediction,) = registry.predict(
        registry.pull(uri, "cpu-test", "challenger"), [Configuration.parse("blas(threads=1) 64x64x64 f32")]
    )
    assert prediction.power_w is None
    with pytest.raises(TooFewMeasurements, match="another has 0 measured configurations"):
        train_and_register(nothing, "another", tracking_uri=uri, code_version="1.0")
