"""A process is recognised by more than its number, since numbers are used again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.services import processes


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        yield process
        process.kill()


def test_a_process_works_in_a_folder_if_both_its_folder_and_its_name_are_right(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert processes.works_in(sleeper.pid, tmp_path, "postgres", "sleep")
    assert not processes.works_in(sleeper.pid, tmp_path, "postgres")
    assert not processes.works_in(sleeper.pid, tmp_path / "data", "sleep")
    assert processes.all_working_in(tmp_path, "sleep") == [sleeper.pid]


def test_a_zombie_has_ended(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    stamp = processes.start_stamp(sleeper.pid)
    assert processes.is_alive(sleeper.pid, stamp)
    sleeper.kill()
    # Nobody has collected it yet, so the number is still taken.
    assert processes.wait_gone([sleeper.pid], 10.0)
    assert Path(f"/proc/{sleeper.pid}").exists()
    assert not processes.works_in(sleeper.pid, tmp_path, "sleep")


def test_another_process_of_the_same_number_is_not_the_one_that_was_noted(sleeper: subprocess.Popen[bytes]) -> None:
    stamp = processes.start_stamp(sleeper.pid)
    assert stamp is not None
    boot, _, ticks = stamp.partition(":")
    assert not processes.is_alive(sleeper.pid, f"{boot}:{int(ticks) + 1}")
    assert not processes.is_alive(sleeper.pid, f"another-boot:{ticks}")


def test_signals_follow_one_another_until_the_process_ends(tmp_path: Path) -> None:
    deaf = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]
    with subprocess.Popen(deaf, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert not processes.end_with([process.pid], [(signal.SIGTERM, 0.1)])
        assert processes.end_with([process.pid], [(signal.SIGTERM, 0.1), (signal.SIGKILL, 10.0)])


def test_the_last_lines_of_a_log_are_those_of_this_run(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert processes.last_lines(log) == "no output"
    log.write_text("before\n")
    since = log.stat().st_size
    assert processes.last_lines(log, since=since) == "no output"
    with log.open("a") as file:
        file.write("one\n\ntwo\nthree\n\n")
    assert processes.last_lines(log, since=since, lines=2) == "two\nthree"
    assert processes.last_lines(log, since=since, lines=9) == "one\ntwo\nthree"
