"""What commands and programs import: it decides how fast they start and how much memory a farm holds."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import farm
from farm.broker.celery_app import make_app
from farm.broker.refusals import Refusals
from farm.completion_names import recall
from farm.db.campaigns import Stored
from support.commands import farm_here
from support.imports import farm_alone
from workers import tasks

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
LEARNING = {"mlflow", "pandas", "sklearn", "scipy", "numpy", "matplotlib"}
WEB_STACK = {"fastapi", "starlette", "uvicorn", "httpx"}
ONLY_TO_SUBMIT = {
    "farm.campaign.campaign",
    "farm.campaign.planning",
    "farm.db.staging",
    "farm.db.imports",
    "farm.kernels.families",
}
UNUSED_ANYWHERE = {"sqlalchemy.orm", "alembic", "farm.db.tables"}


@pytest.mark.parametrize("arguments", [(), ("small",)], ids=["all", "one"])
def test_farm_status_imports_no_learning_and_no_web_stack(
    small: Stored, database_url: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    environment = {"FARM_DATABASE_URL": database_url, "FARM_HOME": str(tmp_path / "home")}
    ran = farm_alone("status", *arguments, environment=environment)
    assert ran.code == 0, ran.stderr
    assert "small" in ran.stdout
    assert ran.packages & {*LEARNING, *WEB_STACK, "celery", "kombu", "yaml"} == set()
    assert ran.modules & {*UNUSED_ANYWHERE, *ONLY_TO_SUBMIT} == set()


@pytest.mark.parametrize(
    ("program", "never"),
    [
        ("workers.process", {*LEARNING, *WEB_STACK, "cupy", "pyarrow"}),
        ("workers.hosting", {*LEARNING, *WEB_STACK, "celery", "kombu"}),
        ("workers.builder", {*LEARNING, *WEB_STACK, "cupy", "pyarrow"}),
        ("trainer.main", {*LEARNING, *WEB_STACK, "pyarrow"}),
        ("farm.coordinator.__main__", {*LEARNING, *WEB_STACK, "cupy", "pyarrow"}),
        ("farm.services.supervisor", {*LEARNING, *WEB_STACK, "celery", "kombu"}),
    ],
)
def test_a_program_imports_nothing_that_it_does_not_need_to_wait_for_work(program: str, never: set[str]) -> None:
    code = f"import json, sys, {program}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    modules = set(json.loads(done.stdout))
    assert {name.partition(".")[0] for name in modules} & never == set()
    assert modules & UNUSED_ANYWHERE == set()


def test_a_child_imports_what_measuring_needs_with_its_first_batch() -> None:
    """The parent passes it the Celery application."""
    code = (
        "import json, pickle, sys, workers.process, workers.child; pickle.loads(bytes.fromhex(sys.argv[1])); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    app = make_app("redis://127.0.0.1:1", include=("workers.child",))
    app.conf.broker_transport_options = {"refusals": Refusals(tasks.count_refused)}
    command = [sys.executable, "-c", code, pickle.dumps(app).hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    packages = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert packages & {*LEARNING, "sqlalchemy", "psycopg", "pydantic", "redis"} == set()


def test_a_host_finds_devices_without_the_libraries_that_identify_them() -> None:
    code = (
        "import json, sys; from workers.device_watcher import DeviceWatcher; look = DeviceWatcher(sys.argv[1]).first(); "
        "print(json.dumps([len(look.found), sorted(sys.modules)]))"
    )
    selection = f"cpu,recorded:{RECORDING}"
    command = [sys.executable, "-c", code, selection]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found, modules = json.loads(done.stdout)
    assert found == 2
    assert {name.partition(".")[0] for name in modules} & {"numpy", "pyarrow", "celery"} == set()


def test_a_recorded_device_answers_without_pandas() -> None:
    """Pyarrow imports it to convert arrays and scalars, for half a second of each child."""
    code = (
        "import json, sys; from pathlib import Path; from farm.measurement import MeasuringRules; "
        "from workers.devices.recorded import RecordedDevice, identify; "
        "device = RecordedDevice(identify(Path(sys.argv[1]), 0.0)); device.open(); "
        "device.measure(device.canary(), MeasuringRules()); print(json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(RECORDING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert {name.partition(".")[0] for name in json.loads(done.stdout)} & {"pandas", "mlflow"} == set()


def test_a_command_that_opened_the_database_leaves_the_names_for_completion(
    small: Stored, database_url: str, tmp_path: Path
) -> None:
    home = tmp_path / ".farm"
    home.mkdir()
    assert farm_here(tmp_path, database_url)("status").returncode == 0
    names = recall(home, database_url)
    assert (names["campaigns"], names["types"]) == (["small"], ["cpu-test"])
    assert (home / "names.json").is_file()
