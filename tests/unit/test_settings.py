"""Settings: one clear message for every wrong variable, a warning for those that are none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm import settings as module
from farm.errors import BadSettings
from farm.services.doctor import CheckState
from farm.services.doctor.machine import check_settings
from farm.settings import Settings, settings, unknown_variables
from support.commands import NOWHERE, farm_here

REPOSITORY = Path(__file__).parents[2]

WRONG = {
    "FARM_LEASE_SECONDS": ("abc", "'abc'. It must be a number above 0 and at most 31,536,000."),
    "FARM_BATCH_SECONDS": ("-1", "'-1'. It must be a number above 0"),
    "FARM_HEARTBEAT_SECONDS": ("nan", "'nan'. It must be a number above 0"),
    "FARM_RESEND_AFTER_SECONDS": ("inf", "'inf'. It must be a number above 0"),
    "FARM_LOG_JSON": ("maybe", "'maybe'. It must be true or false."),
    "FARM_LOG_LEVEL": ("loud", "'loud'. It must be DEBUG or INFO or WARNING or ERROR."),
    "FARM_BATCH_MAX_JOBS": ("1.5", "'1.5'. It must be a whole number of at least 1 and at most 1,000,000."),
    "FARM_SENTINEL_JOBS": ("9" * 300, "9…'. It must be a whole number of at least 0"),
    "FARM_HOME": (__file__, "it is there already and is not a folder. It must be the path of a folder."),
}


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARM_DEVICE_LOCKS", raising=False)
    monkeypatch.delenv("FARM_MODEL_SIGNING_KEY")
    monkeypatch.delenv("FARM_SILENT_AFTER_SECONDS")


@pytest.fixture
def reread(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    settings.cache_clear()
    yield monkeypatch
    settings.cache_clear()


def test_all_wrong_variables_are_named_at_once_with_their_values_and_what_is_allowed(
    reread: pytest.MonkeyPatch,
) -> None:
    for name, (value, _) in WRONG.items():
        reread.setenv(name, value)
    with pytest.raises(BadSettings) as refused:
        settings()
    lines = str(refused.value).splitlines()
    assert len(lines) == len(WRONG)
    for name, (_, said) in WRONG.items():
        (line,) = [line for line in lines if line.startswith(f"{name} is ")]
        assert said in line
    assert refused.value.exit_code == 2
    assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"FARM_HEARTBEAT_SECONDS": "15"}, ["FARM_LEASE_SECONDS=30 (the default)", "above 30"]),
        ({"FARM_LEASE_SECONDS": "8"}, ["FARM_LEASE_SECONDS=8 with FARM_HEARTBEAT_SECONDS=4 (the default)", "below 4."]),
        ({"FARM_SILENT_AFTER_SECONDS": "4"}, ["FARM_SILENT_AFTER_SECONDS=4 with", "above 4, or"]),
        (
            {"FARM_HEARTBEAT_SECONDS": "20"},
            ["FARM_LEASE_SECONDS=30 (the default)", "FARM_SILENT_AFTER_SECONDS=20 (the"],
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    reread: pytest.MonkeyPatch, given: dict[str, str], says: list[str]
) -> None:
    for name, value in given.items():
        reread.setenv(name, value)
    with pytest.raises(BadSettings) as refused:
        settings()
    for words in says:
        assert words in str(refused.value)


def test_settings_that_agree_are_taken(reread: pytest.MonkeyPatch) -> None:
    given = {"FARM_HEARTBEAT_SECONDS": "20", "FARM_LEASE_SECONDS": "100", "FARM_SILENT_AFTER_SECONDS": "100"}
    for name, value in {**given, "FARM_LOG_LEVEL": "debug", "FARM_LOG_JSON": "on"}.items():
        reread.setenv(name, value)
    assert (settings().heartbeat_seconds, settings().log_level, settings().log_json) == (20.0, "DEBUG", True)


def test_weights_of_owners_are_names_and_numbers(reread: pytest.MonkeyPatch) -> None:
    assert settings().weights_of_owners == {}
    reread.setenv("FARM_OWNER_WEIGHTS", "ann=2, team=x=0.5,")
    settings.cache_clear()
    assert settings().weights_of_owners == {"ann": 2.0, "team=x": 0.5}


@pytest.mark.parametrize("given", ["ann", "=2", "ann=", "ann=0", "ann=-1", "ann=nan", "ann=inf", "bob=1,ann=2000"])
def test_weights_that_are_none_are_refused(reread: pytest.MonkeyPatch, given: str) -> None:
    reread.setenv("FARM_OWNER_WEIGHTS", given)
    with pytest.raises(BadSettings, match=r"FARM_OWNER_WEIGHTS is .* is not an owner and a number from 0.001 to 1,000"):
        settings()


def test_a_home_need_not_be_utf_8(reread: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    reread.setenv("FARM_HOME", name)
    assert settings().home == Path(name)


def test_a_current_folder_that_was_removed_needs_a_home(reread: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    reread.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadSettings, match="FARM_HOME is not set, and the current folder no longer exists"):
        settings()
    reread.setenv("FARM_HOME", str(tmp_path))
    assert settings().home == tmp_path


def test_values_are_shown_without_secrets() -> None:
    shown = Settings(
        database_url="postgresql://farm:secret@host/farm", api_url="http://me:secret@host", batch_seconds=5
    ).in_force
    assert shown == {"FARM_DATABASE_URL": "***", "FARM_API_URL": "http://***@host", "FARM_BATCH_SECONDS": "5.0"}


def test_variables_that_are_no_settings_are_named_with_what_they_resemble(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FARM_HEARTBEAT_SECOND", "FARM_COLOUR", "FARM_HOME", "FARM_WORKER_DEVICE_ID", "FARM_TEST_EXAMPLES"):
        monkeypatch.setenv(name, "3")
    colour, heartbeat = unknown_variables()
    assert heartbeat == (
        "FARM_HEARTBEAT_SECOND is not a setting of the farm and has no effect. Did you mean FARM_HEARTBEAT_SECONDS?"
    )
    assert colour.startswith("FARM_COLOUR is not a setting of the farm and has no effect. docs/operating.md")


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["best", "anything"], ["measure", "x", "--device", "cpu"]])
def test_every_command_refuses_wrong_settings_in_one_message(tmp_path: Path, command: list[str]) -> None:
    if command[0] == "measure":
        command[1] = "tiled(tile=8) 8x8x8 f32:f32:f32 nn alpha=1 beta=0"
    done = farm_here(tmp_path, NOWHERE)(*command, FARM_LEASE_SECONDS="abc", FARM_BATCH_SECONDS="-1")
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert said.count("It must be") == 2
    assert "FARM_LEASE_SECONDS is 'abc'" in said
    assert "FARM_BATCH_SECONDS is '-1'" in said


@pytest.mark.parametrize(
    "module_name", ["workers.main", "trainer.main", "farm.coordinator", "farm.services.supervisor"]
)
def test_every_program_refuses_wrong_settings_in_one_message(tmp_path: Path, module_name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module_name],
        env={**os.environ, "FARM_HOME": str(tmp_path), "FARM_LEASE_SECONDS": "abc"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "FARM_LEASE_SECONDS is 'abc'. It must be a number above 0 and at most 31,536,000.\n"


def test_a_command_warns_of_an_unknown_variable_beside_its_output(tmp_path: Path) -> None:
    done = farm_here(tmp_path, NOWHERE)("kernels", "prune", "--keep", "5", "--json", FARM_HEARTBEAT_SECOND="3")
    assert json.loads(done.stdout)["removed"] == 0
    assert " ".join(done.stderr.split()).count("warning: FARM_HEARTBEAT_SECOND is not a setting of the farm") == 1


def test_doctor_shows_what_is_set(reread: pytest.MonkeyPatch) -> None:
    found = check_settings(Settings(api_token="secret", lease_seconds=40))
    assert (found.state, found.what) == (CheckState.OK, "FARM_API_TOKEN=***, FARM_LEASE_SECONDS=40.0")
    reread.setenv("FARM_HEARTBEAT_SECOND", "3")
    found = check_settings(Settings())
    assert (found.state, found.what) == (CheckState.WARNING, "all at their defaults")
    assert "FARM_HEARTBEAT_SECOND is not a setting" in found.fix


def test_each_setting_is_in_the_documentation_and_no_other() -> None:
    text = (REPOSITORY / "docs" / "operating.md").read_text()
    table = text[text.index("\n## Settings\n") :]
    named = set(re.findall(r"`((?:FARM|MLFLOW|OTEL)_\w+)`", table))
    assert named == {module._variable(name) for name in Settings.model_fields}
    files = [*REPOSITORY.glob("docs/*.md"), *(REPOSITORY / name for name in ("README.md", "docker-compose.yml"))]
    for file in files:
        assert set(re.findall(r"\bFARM_[A-Z_]*[A-Z]\b", file.read_text())) <= named, file
