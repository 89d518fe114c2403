"""`farm up`, `farm down` and `farm doctor`: the farm in the background, and what is said of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from farm.broker.celery_app import make_app
from farm.broker.queues import BUILD, BUILD_QUEUE, TRAIN, TRAIN_QUEUE
from farm.cli.app import app
from farm.db import migrate
from farm.db.engine import make_engine
from farm.errors import EmbeddedServiceFailed, WrongRevision
from farm.services import ServiceUrls, doctor, prepare_database, services
from farm.services.background import RunningStack, running_stack, start_in_background, stop_in_background
from farm.services.cluster import remove_cluster
from farm.services.consumers import is_consumed
from farm.services.doctor import Check, CheckState, machine
from farm.services.home import Home
from farm.services.processes import is_alive
from farm.settings import Settings, settings
from support.folders import open_folder
from support.homes import (
    ask,
    embedded_settings,
    environment,
    eventually,
    holder,
    let_go,
    need_embedded_services,
    processes_under,
)

SUPERVISOR = """
import signal, sys
from farm.services.stack import Program
from farm.services.supervisor import Supervisor
from farm.settings import settings
sleeper = lambda name: Program(name, (sys.executable, "-c", "import time; time.sleep(600)", {home!r}, name))
supervisor = Supervisor(settings(), [sleeper("coordinator"), sleeper("workers")])
signal.signal(signal.SIGTERM, supervisor.stop)
supervisor.run()
"""
"""The supervisor with programs that only sleep."""

ON_DEMAND = """
import signal
from farm.services import supervisor
from farm.services.stack import BUILDER, TRAINER, Program
from farm.settings import settings
supervisor.IDLE_EXIT_S = 1.0
made = supervisor.Supervisor(settings(), [TRAINER, Program(BUILDER.name, ("false",), queue=BUILDER.queue)])
signal.signal(signal.SIGTERM, made.stop)
made.run()
"""
"""The supervisor with the trainer and a builder."""

Up = Callable[[], tuple[RunningStack, bool]]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    need_embedded_services()
    for name in [name for name in os.environ if name.startswith("FARM_") or name == "MLFLOW_TRACKING_URI"]:
        monkeypatch.delenv(name)
    with open_folder() as folder:
        made = folder / ".farm"
        monkeypatch.setenv("FARM_HOME", str(made))
        settings.cache_clear()
        try:
            yield made
            assert processes_under(folder) == []
        finally:
            stop_in_background(embedded_settings(made))
            remove_cluster(Home(made))
            settings.cache_clear()


@pytest.fixture
def farm_settings(home: Path) -> Settings:
    return embedded_settings(home)


@pytest.fixture
def up(home: Path, farm_settings: Settings) -> Up:
    script = home.parent / "supervisor.py"
    script.write_text(SUPERVISOR.format(home=str(home)))
    return lambda: start_in_background(farm_settings, supervisor=(sys.executable, str(script)))


def states(farm_settings: Settings) -> dict[str, tuple[str, int]]:
    stack = running_stack(farm_settings)
    assert stack is not None
    return {name: (program["state"], program["restarts"]) for name, program in stack.programs.items()}


def test_up_once_up_twice_and_down(home: Path, farm_settings: Settings, up: Up) -> None:
    stack, started = up()
    assert started
    assert stack.state == "ready"
    assert {name: p["state"] for name, p in stack.programs.items()} == {"coordinator": "running", "workers": "running"}
    assert os.getsid(stack.pid) != os.getsid(0)
    assert not any(password in json.dumps(stack.urls) for password in Home(home).passwords().values())
    with services(farm_settings) as urls:
        assert ask(urls.database_url, "SELECT version_num FROM alembic_version") == (migrate.head(),)

    assert up() == (running_stack(farm_settings), False)

    done = stop_in_background(farm_settings)
    assert done.stopped == ["workers", "coordinator", "supervisor", "Postgres", "Redis"]
    assert (done.still_used, running_stack(farm_settings)) == ([], None)
    assert processes_under(home) == []
    assert stop_in_background(farm_settings).stopped == []


def test_down_leaves_what_another_command_uses(home: Path, farm_settings: Settings, up: Up) -> None:
    up()
    with services(farm_settings) as urls:
        done = stop_in_background(farm_settings)
        assert (done.still_used, "Redis" in done.stopped) == (["Postgres"], True)
        assert ask(urls.database_url, "SELECT 1") == (1,)


@pytest.mark.long
def test_what_dies_is_replaced(home: Path, farm_settings: Settings, up: Up) -> None:
    stack, _ = up()
    for child in psutil.Process(stack.programs["workers"]["pid"]).children():
        child.kill()
    redis_pid = int((home / "redis" / "redis.pid").read_text())
    os.kill(redis_pid, signal.SIGKILL)
    eventually(lambda: states(farm_settings)["workers"] == ("running", 1))
    eventually(lambda: (home / "redis" / "redis.pid").read_text() not in ("", f"{redis_pid}\n"))
    assert states(farm_settings)["coordinator"] == ("running", 0)
    stop_in_background(farm_settings)


@pytest.mark.long
def test_a_trainer_runs_only_while_it_has_work(home: Path, farm_settings: Settings) -> None:
    script = home.parent / "supervisor.py"
    script.write_text(ON_DEMAND)
    stack, _ = start_in_background(farm_settings, supervisor=(sys.executable, str(script)))
    assert {name: (p["state"], p["pid"]) for name, p in stack.programs.items()} == {
        "trainer": ("waiting", None),
        "builder": ("waiting", None),
    }
    with services(farm_settings, broker=True) as urls:
        assert urls.broker_url is not None
        sender = make_app(urls.broker_url)

        def builders() -> int:
            return int(ask(urls.database_url, "SELECT count(*) FROM builders")[0])

        eventually(lambda: builders() == 1)  # one that waits builds as soon as it must
        eventually(lambda: is_consumed(farm_settings, TRAIN_QUEUE) is True)
        for _ in range(2):
            sender.send_task(TRAIN, args=[12345], queue=TRAIN_QUEUE)
            eventually(lambda: states(farm_settings)["trainer"] == ("running", 0))
            eventually(lambda: states(farm_settings)["trainer"] == ("waiting", 0))
        with sender.connection_for_read() as connection:
            assert connection.default_channel.client.llen(TRAIN_QUEUE) == 0

        sender.send_task(BUILD, args=[12345], queue=BUILD_QUEUE)
        eventually(lambda: states(farm_settings)["builder"][0] == "ended")  # it cannot start here
        eventually(lambda: builders() == 0)
        sender.close()
        assert stop_in_background(farm_settings).stopped[:2] == ["builder", "trainer"]
        assert is_consumed(farm_settings, TRAIN_QUEUE) is False
    assert is_consumed(farm_settings, TRAIN_QUEUE) is False  # nor where the broker does not run


@pytest.mark.long
def test_after_a_killed_supervisor_the_next_up_starts_anew(home: Path, farm_settings: Settings, up: Up) -> None:
    first, _ = up()
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(first.pid))
    assert running_stack(farm_settings) is None
    second, started = up()
    assert (started, second.pid != first.pid) == (True, True)
    eventually(lambda: all(state == "running" for state, _ in states(farm_settings).values()))
    assert not any(is_alive(program["pid"]) for program in first.programs.values())
    stop_in_background(farm_settings)


def test_down_sweeps_up_after_a_killed_supervisor(home: Path, farm_settings: Settings, up: Up) -> None:
    stack, _ = up()
    os.kill(stack.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(stack.pid))
    assert stop_in_background(farm_settings).stopped == ["Postgres", "Redis"]
    eventually(lambda: processes_under(home) == [])


def test_a_supervisor_that_ends_at_once_is_reported_with_its_last_words(home: Path, farm_settings: Settings) -> None:
    broken = (sys.executable, "-c", "raise SystemExit('no room left')")
    with pytest.raises(EmbeddedServiceFailed, match="no room left"):
        start_in_background(farm_settings, supervisor=broken)
    assert processes_under(home) == []


def test_a_database_that_is_not_ours_is_checked_and_not_changed(home: Path, database_url: str) -> None:
    from pydantic import SecretStr

    named = embedded_settings(home).model_copy(update={"database_url": SecretStr(database_url)})
    with pytest.raises(WrongRevision, match="farm db upgrade"):
        prepare_database(named, ServiceUrls(database_url, None, "sqlite://"))
    assert ask(database_url, "SELECT to_regclass('alembic_version')") == (None,)


# --- the commands ----------------------------------------------------------------------------------


def farm(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_down_with_nothing_running_says_so_and_makes_no_home(home: Path) -> None:
    assert farm("down") == (0, "Nothing was running.\n")
    assert farm("down", "--json") == (0, '{\n  "stopped": [],\n  "still_used": []\n}\n')
    assert not home.exists()


@pytest.mark.long
def test_up_without_workers_and_trainer_runs_a_coordinator(home: Path) -> None:
    command = [sys.executable, "-c", "from farm.cli import main; main()"]

    def run(*words: str) -> Any:
        done = subprocess.run(
            [*command, *words, "--json"],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = run("up", "--no-workers", "--no-trainer", "--no-builder")
    assert (first["started"], list(first["programs"])) == (True, ["coordinator"])
    again = run("up")
    assert (again["started"], again["pid"]) == (False, first["pid"])
    assert run("down")["stopped"] == ["coordinator", "supervisor", "Postgres", "Redis"]


@pytest.fixture
def libraries_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the one check that takes seconds, for tests of the others."""
    checks = [check for check in doctor.CHECKS if check is not machine.check_libraries]
    monkeypatch.setattr(doctor, "CHECKS", [*checks, lambda _: Check("models", CheckState.OK, "known")])


def checks(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
    code, out = farm("doctor", "--json", *words)
    return code, {check["check"]: check for check in json.loads(out)}


def test_doctor_finds_a_new_machine_well_and_touches_nothing(home: Path) -> None:
    code, found = checks()
    assert (code, {name: c for name, c in found.items() if c["state"] == "missing"}) == (0, {})
    assert found["database"]["what"].startswith("embedded Postgres 16.")
    assert "data to be made" in found["database"]["what"]
    assert "scikit-learn" in found["models"]["what"]
    assert not home.exists()


@pytest.mark.usefixtures("libraries_known")
def test_doctor_looks_into_what_runs(home: Path, farm_settings: Settings) -> None:
    with services(farm_settings, broker=True) as urls:
        code, found = checks()
        assert (code, found["revision"]["fix"]) == (3, "run: farm db upgrade")
        prepare_database(farm_settings, urls)
        code, found = checks()
        assert (code, found["revision"]["what"]) == (0, migrate.head())
        assert "runs, data in" in found["database"]["what"]
        assert "0.0 s" in found["clock"]["what"]
        assert (found["coordinator"]["state"], found["coordinator"]["what"][:20]) == ("warning", "no coordinator leads")
    code, out = farm("doctor")
    assert code == 0
    assert "does not run now" in out


@pytest.mark.usefixtures("libraries_known")
def test_doctor_names_the_fix_of_what_is_broken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_DATABASE_URL", "postgresql://ann:hunter22@127.0.0.1:1/farm")
    monkeypatch.setenv("FARM_BROKER_URL", "redis://:hunter22@127.0.0.1:1/0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    settings.cache_clear()
    code, found = checks()
    assert code == 3
    assert {name for name, c in found.items() if c["state"] == "missing"} == {
        "database",
        "revision",
        "broker",
        "registry",
    }
    assert "FARM_DATABASE_URL" in found["database"]["fix"]
    assert "FARM_BROKER_URL" in found["broker"]["fix"]
    assert "hunter22" not in json.dumps(found)


@pytest.mark.usefixtures("libraries_known")
def test_doctor_looks_at_named_servers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(home) as server:
        assert server.stdout is not None
        database_url, broker_url = server.stdout.readline().split()
        monkeypatch.setenv("FARM_DATABASE_URL", database_url.replace("+psycopg", ""))
        monkeypatch.setenv("FARM_BROKER_URL", broker_url)
        settings.cache_clear()
        engine = make_engine(database_url, application="tests")
        migrate.upgrade(engine)
        engine.dispose()
        code, found = checks()
        assert (code, found["revision"]["state"]) == (0, "ok")
        assert found["database"]["what"].startswith("Postgres 16.")
        assert found["broker"]["what"].startswith("Redis ")
        let_go(server)
