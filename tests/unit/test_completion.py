"""Shell completion: names come from where an earlier command left them, or from the API; nothing else ever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer import core

from farm.cli import completing, write_parameters
from farm.cli.commands import COMMANDS, Entry, loaded, walk
from farm.cli.commands import completed as completed_command
from farm.cli.parameters import FILE
from farm.completion_names import recall, remember
from support.imports import Ran, farm_alone

NAMES = {
    "campaigns": ["tile-sweep", "quickstart"],
    "devices": ["GPU-1", "GPU-2"],
    "types": ["nvidia-h200"],
    "models": ["gemm-forest-nvidia-h200"],
}
SLOW = {"celery", "mlflow", "numpy", "pandas", "psycopg", "pyarrow", "pydantic", "rich", "sqlalchemy", "yaml"}
DATABASE = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / ".farm"
    folder.mkdir()
    remember(folder, DATABASE, NAMES)
    return folder


def completed(home: Path, line: str, **more: str) -> Ran:
    """What bash is offered for the last word of that line."""
    variables = {"_FARM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    ran = farm_alone(environment={"FARM_HOME": str(home), "FARM_DATABASE_URL": DATABASE, **variables, **more})
    assert (ran.code, ran.stderr) == (0, "")
    return ran


def test_commands_are_completed_without_importing_any(home: Path) -> None:
    ran = completed(home, "farm st")
    assert ran.stdout.split() == ["status"]
    assert not ran.packages & SLOW


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("farm watch t", ["tile-sweep"]),
        ("farm models show ", ["gemm-forest-nvidia-h200"]),
        ("farm jobs --state dea", ["dead"]),
        ("farm results --lim", ["--limit"]),
        ("farm results --type nvidia-h200 --family cutl", ["cutlass", "cutlass3x"]),
        ("farm delete campaign q", ["quickstart"]),
        ("farm kernels l", ["list"]),
        ("farm replay nvidia-h200-paper-t", ["nvidia-h200-paper-tiled"]),
    ],
)
def test_names_and_options_are_completed_without_importing_the_command(
    home: Path, line: str, offered: list[str]
) -> None:
    ran = completed(home, line)
    assert ran.stdout.split() == offered
    assert not ran.packages & SLOW
    assert not ran.modules & {f"farm.cli.{entry.target.partition(':')[0]}" for entry in COMMANDS}


def test_the_file_of_parameters_is_of_the_commands_as_they_are() -> None:
    current = FILE.read_text(encoding="utf-8") == write_parameters.text()
    assert current, "a command's parameters changed: python -m farm.cli.write_parameters"


PARSED = ("name", "opts", "secondary_opts", "is_flag", "multiple", "nargs", "hidden", "help")


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_a_command_is_completed_from_the_file_as_from_its_module(entry: Entry) -> None:
    known, real = (dict(walk(made(entry), (entry.name,))) for made in (completed_command, loaded))
    assert list(known) == list(real)
    for words, command in real.items():
        assert [type(p).__bases__[-1] is core.TyperOption for p in known[words].params] == [
            isinstance(p, core.TyperOption) for p in command.params
        ]
        for ours, its in zip(known[words].params, command.params, strict=True):
            assert [getattr(ours, key, None) for key in PARSED] == [getattr(its, key, None) for key in PARSED]
            if "shell_complete" in vars(its):
                assert "shell_complete" in vars(ours)
            else:
                offered = [[i.value for i in p.shell_complete(None, "")] for p in (ours, its)]
                assert offered[0] == offered[1]


def test_without_a_database_that_is_known_nothing_is_completed_and_nothing_started(home: Path) -> None:
    before = sorted(home.iterdir())
    assert completed(home, "farm watch ", FARM_DATABASE_URL="postgresql://other@127.0.0.1:1/none").stdout.strip() == ""
    assert sorted(home.iterdir()) == before


def test_a_completion_that_goes_wrong_is_silent(home: Path) -> None:
    assert completed(home, "farm watch ", COMP_CWORD="no number").stdout.strip() == ""


def test_an_api_that_is_not_there_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_API_URL", "http://127.0.0.1:1")
    assert completing.names_of("campaigns") == []


@pytest.mark.parametrize("text", ["", "[]", '{"database": 3}', "{", '{"campaigns": 3}'])
def test_a_file_that_does_not_hold_names_counts_as_absent(home: Path, text: str) -> None:
    (home / "names.json").write_text(text)
    assert recall(home, DATABASE) == {}


def test_names_of_another_database_are_not_offered(home: Path) -> None:
    assert recall(home, DATABASE) == NAMES
    assert recall(home, None) == {}


def test_names_are_not_remembered_where_there_is_no_home(tmp_path: Path) -> None:
    remember(tmp_path / "none", None, NAMES)
    assert list(tmp_path.iterdir()) == []


ANSWERS = {
    "/api/v1/campaigns?limit=500": [{"name": "of-the-server"}, {"name": "of-the-server"}],
    "/api/v1/devices/names": {"types": ["nvidia-l4"], "uuids": ["GPU-9"], "hosts": ["a"]},
    "/api/v1/models": [{"name": "gemm-forest-nvidia-l4"}],
}


class Api(BaseHTTPRequestHandler):
    hang = threading.Event()

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer secret":
            self.hang.wait(60)  # an answer that does not come
            return
        body = json.dumps(ANSWERS[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Api.hang.clear()
    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("FARM_API_URL", url)
    monkeypatch.setattr(completing, "SECONDS", 30.0)
    yield url
    Api.hang.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_api_is_asked_where_it_is_named(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_API_TOKEN", "secret")
    assert completing.names_of("campaigns") == ["of-the-server"]
    assert completing.names_of("types") == ["nvidia-l4"]
    assert completing.names_of("devices") == ["GPU-9"]
    assert completing.names_of("models") == ["gemm-forest-nvidia-l4"]


def test_an_api_that_does_not_answer_is_not_waited_for(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "SECONDS", 0.1)
    monkeypatch.setenv("FARM_API_TOKEN", "wrong")
    assert completing.names_of("campaigns") == []
    assert not Api.hang.is_set()


def test_every_parameter_of_those_names_is_completed() -> None:
    by_name = {entry.name: entry for entry in COMMANDS}
    for name, parameter in (
        ("status", "campaign"),
        ("predict", "device_type"),
        ("health", "device"),
        ("train", "device_types"),
    ):
        (found,) = [p for p in loaded(by_name[name]).params if p.name == parameter]
        assert "shell_complete" in vars(found)
