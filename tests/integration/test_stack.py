"""The programs of a machine: started together, watched, stopped in order, with nothing left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.errors import EmbeddedServiceFailed
from farm.services import Program, ServiceUrls, Stack
from farm.services.processes import is_alive
from farm.services.stack import KNOWN
from farm.settings import Settings
from support.homes import eventually, processes_under

URLS = ServiceUrls(database_url="postgresql+psycopg://d", broker_url="redis://b", tracking_uri="sqlite:///t")

Make = Callable[..., Program]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / ".farm"
    yield made
    assert processes_under(tmp_path) == []


@pytest.fixture
def program(tmp_path: Path) -> Make:
    """Makes a small program. It notes its process in `<name>.pid`, and its name in `ended` when it gets SIGTERM."""

    def made(name: str, *, before: str = "", on_sigterm: str = "sys.exit(0)") -> Program:
        script = tmp_path / f"{name}.py"
        script.write_text(
            textwrap.dedent(
                """
                import json, os, pathlib, signal, subprocess, sys, time
                folder, name = pathlib.Path(__file__).parent, {name!r}
                def end(*_):
                    with (folder / "ended").open("a") as file:
                        file.write(name + "\\n")
                    {on_sigterm}
                signal.signal(signal.SIGTERM, end)
                {before}
                (folder / f"{{name}}.new").write_text(str(os.getpid()))
                (folder / f"{{name}}.new").rename(folder / f"{{name}}.pid")
                while True:
                    time.sleep(60)
                """
            ).format(name=name, before=before, on_sigterm=on_sigterm)
        )
        return Program(name, (sys.executable, str(script)))

    return made


def pid_of(folder: Path, name: str) -> int:
    """The process of a program, once it has said that it runs."""
    file = folder / f"{name}.pid"
    eventually(file.exists)
    return int(file.read_text())


def test_programs_get_the_services_through_their_environment_and_log_to_the_home(
    home: Path, tmp_path: Path, program: Make
) -> None:
    tell = "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('FARM_', 'MLFLOW_'))}), flush=True)"
    with Stack(URLS, home, programs=[program("teller", before=tell)]):
        pid_of(tmp_path, "teller")
    said = json.loads((home / "logs" / "teller.log").read_text())
    assert said["FARM_DATABASE_URL"] == "postgresql+psycopg://d"
    assert said["FARM_BROKER_URL"] == "redis://b"
    assert said["MLFLOW_TRACKING_URI"] == "sqlite:///t"
    assert said["FARM_HOME"] == str(home)


def test_they_stop_in_the_reverse_order_each_after_the_one_before(home: Path, tmp_path: Path, program: Make) -> None:
    slow = program("workers", on_sigterm="time.sleep(0.3); sys.exit(0)")
    with Stack(URLS, home, programs=[program("coordinator"), program("trainer"), slow]) as stack:
        for name in ("coordinator", "trainer", "workers"):
            pid_of(tmp_path, name)
        stack.check()
    assert (tmp_path / "ended").read_text().split() == ["workers", "trainer", "coordinator"]


def test_ctrl_c_does_not_reach_them(home: Path, tmp_path: Path, program: Make) -> None:
    with Stack(URLS, home, programs=[program("worker")]) as stack:
        pid = pid_of(tmp_path, "worker")
        assert os.getpgrp() not in {os.getpgid(pid), os.getpgid(stack.pids()["worker"])}
        assert os.getsid(pid) != os.getsid(0)


@pytest.mark.long
def test_what_does_not_end_in_its_grace_time_is_killed_with_all_it_started(
    home: Path, tmp_path: Path, program: Make
) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child, detached = program("child", before=ignore), program("detached", before=ignore)
    start_both = (
        f"subprocess.Popen({child.command!r}); subprocess.Popen({detached.command!r}, start_new_session=True); {ignore}"
    )
    with Stack(URLS, home, programs=[program("deaf", before=start_both)], grace_s=0.3) as stack:
        pids = [pid_of(tmp_path, name) for name in ("deaf", "child", "detached")]
        began = time.monotonic()
        stack.stop()
        assert [is_alive(pid) for pid in pids] == [False, False, False]
        assert time.monotonic() - began > 0.3


def test_what_a_program_that_died_left_behind_is_ended(home: Path, tmp_path: Path, program: Make) -> None:
    orphan = program("orphan")
    parent = f"subprocess.Popen({list(orphan.command)!r}, start_new_session=True)"
    with Stack(URLS, home, programs=[program("parent", before=parent)]) as stack:
        pids = [pid_of(tmp_path, "parent"), pid_of(tmp_path, "orphan")]
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: stack.ended() == ["parent"])
        assert not is_alive(pids[1])
        with pytest.raises(EmbeddedServiceFailed, match="signal 9"):
            stack.check()


def test_a_program_that_ends_is_reported_with_its_last_words(home: Path, program: Make) -> None:
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "trainer.log").write_text("words of an earlier run\n")
    failing = program("trainer", before="print('reading', flush=True); sys.exit('the table is empty')")
    with Stack(URLS, home, programs=[failing]) as stack:
        eventually(stack.ended)
        with pytest.raises(EmbeddedServiceFailed) as failed:
            stack.check()
    assert "trainer of this farm ended (exit code 1)" in str(failed.value)
    assert "reading\nthe table is empty" in str(failed.value)
    assert "earlier" not in str(failed.value)
    assert failed.value.exit_code == 3


def test_a_program_that_cannot_be_executed_is_reported(home: Path) -> None:
    with Stack(URLS, home, programs=[Program("workers", ("/no/such/program",))]) as stack:
        eventually(stack.ended)
        with pytest.raises(EmbeddedServiceFailed, match=r"exit code 127.*\n?.*/no/such/program: No such file"):
            stack.check()


def test_an_ended_program_can_be_started_again(home: Path, tmp_path: Path, program: Make) -> None:
    with Stack(URLS, home, programs=[program("worker")]) as stack:
        first = pid_of(tmp_path, "worker")
        os.kill(first, signal.SIGKILL)
        eventually(stack.ended)
        (tmp_path / "worker.pid").unlink()
        stack.restart("worker")
        assert pid_of(tmp_path, "worker") != first
        stack.check()


OWNER = """
import sys, time
from pathlib import Path
from farm.services import Program, ServiceUrls, Stack
with Stack(ServiceUrls("d", "b", "t"), Path(sys.argv[1]), programs=[Program("worker", tuple(sys.argv[2:]))]):
    print("up", flush=True)
    sys.stdin.readline()
"""


def start_owner(home: Path, worker: Program) -> subprocess.Popen[bytes]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(home), *worker.command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    return owner


def test_programs_end_with_an_owner_that_is_killed(home: Path, tmp_path: Path, program: Make) -> None:
    with start_owner(home, program("worker")) as owner:
        pid = pid_of(tmp_path, "worker")
        owner.kill()
        eventually(lambda: not is_alive(pid))
    assert (tmp_path / "ended").read_text() == "worker\n"
    eventually(lambda: not processes_under(home))


def test_a_program_ends_with_a_guardian_that_is_killed(home: Path, tmp_path: Path, program: Make) -> None:
    with Stack(URLS, home, programs=[program("worker")]) as stack:
        pid = pid_of(tmp_path, "worker")
        os.kill(stack.pids()["worker"], signal.SIGKILL)
        eventually(lambda: not is_alive(pid))
        assert stack.ended() == ["worker"]


def test_a_program_runs_once_in_a_home_and_is_taken_over_from_one_that_is_killed(
    home: Path, tmp_path: Path, program: Make
) -> None:
    worker = program("worker", on_sigterm="time.sleep(0.5); sys.exit(0)")
    with start_owner(home, worker) as owner:
        first = pid_of(tmp_path, "worker")
        with Stack(URLS, home, programs=[worker]) as second:
            second.check()
            assert (second.elsewhere(), second.pids()) == (["worker"], {})
            (tmp_path / "worker.pid").unlink()
            owner.kill()
            owner.wait()
            # It still ends its work: two workers on one device would disturb each other's measurements.
            second.check()
            assert is_alive(first)
            assert second.elsewhere() == ["worker"]
            eventually(lambda: second.check() or not second.elsewhere())
            assert not is_alive(first)
            assert pid_of(tmp_path, "worker") != first


def test_attach_or_start_knows_the_programs_of_a_machine_by_name(home: Path) -> None:
    stack = Stack.attach_or_start(Settings(home=home), URLS, programs=("trainer", "coordinator"))
    assert stack.elsewhere() == ["coordinator", "trainer"]
    known = Stack.attach_or_start(Settings(home=home), URLS, KNOWN)
    assert known.elsewhere() == ["coordinator", "trainer", "builder", "workers"]
