"""Logs of a home are bounded, and no line of a program is lost: whatever its processes print at once, and on a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farm.services import guardian, log_rotation
from farm.services.guardian import LOG_FILES
from farm.services.processes import start_guarded
from support.homes import eventually

LIMIT = 20_000


def run(log: Path, script: str, *, limit: int = LIMIT) -> int:
    """Runs a shell script under a guardian that writes its output to a log. Returns the exit code."""
    process = start_guarded(
        ["/bin/sh", "-c", script], environment=dict(os.environ), grace_s=60.0, log=log, max_log_bytes=limit
    )
    assert process.stdin is not None
    code = process.wait(120)
    process.stdin.close()
    return code


def parts(log: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    return [path for n in range(9, 0, -1) if (path := log_rotation.rotated(log, n)).exists()] + [log]


def test_no_line_is_lost_of_several_processes_that_print_at_once(tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    one = 'i=0; while [ $i -lt 500 ]; do echo "$name line $i"; i=$((i+1)); done'
    late = "trap 'echo late 1>&2; printf \"no end of line\"; exit' TERM; touch ready; while :; do sleep 0.05; done"
    script = f"""
    cd {tmp_path}; ({late}) & while [ ! -e ready ]; do sleep 0.05; done
    pids=; for name in a b c; do ({one}) & pids="$pids $!"; done; wait $pids; exit 3
    """
    assert run(log, script, limit=8_000) == 3
    lines = [line for path in parts(log) for line in path.read_text().splitlines()]
    expected = {f"{name} line {i}" for name in "abc" for i in range(500)}
    assert expected <= set(lines)
    assert sorted(set(lines) - expected) == ["late", "no end of line"]
    assert len(lines) == len(expected) + 2
    for name in "abc":
        assert [line for line in lines if line.startswith(f"{name} ")] == [f"{name} line {i}" for i in range(500)]
    assert len(parts(log)) > 1


def test_a_log_takes_a_bounded_place(tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    assert (
        run(
            log,
            "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789 $i; i=$((i+1)); done",
            limit=5_000,
        )
        == 0
    )
    assert len(parts(log)) == LOG_FILES + 1
    assert all(path.stat().st_size <= 5_000 for path in parts(log))
    assert log.read_text().endswith(" 2999\n")


def test_a_program_that_prints_without_a_pause_ends_when_it_is_told_to(tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    process = start_guarded(
        ["/usr/bin/yes", "x" * 1000], environment=dict(os.environ), grace_s=60.0, log=log, max_log_bytes=LIMIT
    )
    assert process.stdin is not None
    eventually(lambda: len(parts(log)) > 1)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    process.stdin.close()


def test_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    assert run(log, r"printf 'a\377b\n'") == 0
    assert log.read_bytes() == b"a\xffb\n"


def test_a_program_goes_on_where_the_disk_is_full(tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    log.symlink_to("/dev/full")
    done = tmp_path / "done"
    assert (
        run(
            log,
            f"i=0; while [ $i -lt 5000 ]; do echo line $i of many that no disk takes; i=$((i+1)); done; touch {done}; exit 7",
        )
        == 7
    )
    assert done.exists()


def test_a_line_without_an_end_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "MAX_LINE_BYTES", 1000)
    output = guardian.Output(str(tmp_path / "a.log"), 0)
    os.write(output.writer, b"x" * 5000)
    assert output.read()
    assert len(output._line) <= 1000
    os.close(output.writer)
    output.end()
    assert (tmp_path / "a.log").read_text().replace("\n", "") == "x" * 5000


def test_a_large_log_is_set_aside_and_the_oldest_part_goes(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log_rotation.set_aside(log, 10)
    for n in range(LOG_FILES + 2):
        log.write_text(f"{n}" * 10)
        log_rotation.set_aside(log, 10)
        assert log.exists()
        log.write_text(f"{n}" * 11)
        log_rotation.set_aside(log, 10)
        assert not log.exists()
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [f"a.log.{n}" for n in range(1, LOG_FILES + 1)]
    assert (tmp_path / "a.log.1").read_text() == f"{LOG_FILES + 1}" * 11


def test_a_log_that_others_append_to_is_copied_and_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "postgres.log"
    with log.open("a") as server:
        server.write("before\n" * 10)
        server.flush()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(log_rotation.shutil, "copy2", full)
            log_rotation.copy_and_empty(log, 10)
        assert log.read_text() == "before\n" * 10
        log_rotation.copy_and_empty(log, 10)
        server.write("after\n")
    assert log.read_text() == "after\n"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path != log] == [
        ("postgres.log.1", "before\n" * 10)
    ]


OWN = """
import sys
from pathlib import Path
from farm.services.log_rotation import rotate_own_output
log = Path(sys.argv[1])
for n in range(3):
    print("line", n, "x" * 50, file=sys.stderr, flush=True)
    rotate_own_output(log, 40)
print("last", file=sys.stderr)
rotate_own_output(Path("/dev/null"), 0)
"""


def test_the_supervisor_rotates_its_own_output(tmp_path: Path) -> None:
    log = tmp_path / "supervisor.log"
    with log.open("ab") as output:
        subprocess.run([sys.executable, "-c", OWN, str(log)], stdout=output, stderr=output, check=True, timeout=120)
    assert [path.read_text().split(" x")[0].strip() for path in parts(log)] == ["line 0", "line 1", "line 2", "last"]
