"""`farm measure --soak`: what it shows and returns, of a device that is right and of one that corrupts results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import farm
from farm import python_program
from farm.cli import measure
from support.commands import called
from support.homes import environment

SMALL = "blas(threads=1) 16x16x16 f32"
QUICK = '{"timing":{"max_seconds":0.01,"warmup_seconds":0,"max_samples":20}}'
LONG_ENOUGH = "1.5s"
"""Every second launch is corrupted, and about one in a hundred is looked at: so many that one of those is among them."""

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"

CORRUPTING = """
import sys
from workers import single
from workers.devices import cpu
from workers.kernels import blas

right, state, soak = blas.np.matmul, {"under load": False, "calls": 0}, cpu.soak

class NumPy:
    def __getattr__(self, name):
        return multiply if name == "matmul" else getattr(cpu.np, name)

def multiply(a, b, d):
    right(a, b, d)
    state["calls"] += 1
    if state["under load"] and state["calls"] % 2:
        d.view("u4")[5, 7] ^= 1

def under_load(load, seconds):
    for seen in soak(load, seconds):
        state["under load"] = True
        yield seen
        FAIL

blas.np, cpu.soak = NumPy(), under_load
single.main()
"""

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def soak(*arguments: str, configuration: str = SMALL, device: str = "cpu") -> CompletedProcess[str]:
        words = ("measure", configuration, "--device", device, "--rules", QUICK, *arguments)
        return called(words, tmp_path, environment(tmp_path / ".farm"))

    return soak


@pytest.fixture
def corrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def replace(fail: str = "pass") -> None:
        script = CORRUPTING.replace("FAIL", fail)
        monkeypatch.setattr(python_program, "program", lambda _, request: [sys.executable, "-c", script, request])

    return replace


def facts(text: str) -> dict[str, str]:
    pairs = (line.strip().rsplit("  ", 1) for line in text.splitlines() if "  " in line.strip())
    return {name.strip(): value.strip() for name, value in pairs}


def test_a_device_that_is_right_is_soaked(run: Run) -> None:
    done = run("--soak", "0.5s")
    assert (done.returncode, done.stderr) == (0, "")
    found = facts(done.stdout)
    assert float(found["soak s"]) >= 0.5
    assert int(found["digests"]) >= 1
    assert found["digests that differ"] == "0"
    assert len(found["digest of D"]) == 16


def test_json_has_what_a_soak_has_seen(run: Run) -> None:
    document = json.loads(run("--soak", "0.3s", "--json").stdout)
    assert set(document) == {"device", "measurement", "soak"}
    assert document["soak"]["differences"] == 0
    assert document["soak"]["wanted_s"] == 0.3
    assert document["soak"]["sm_clock_mhz"] is None


def test_without_a_soak_there_is_none(run: Run) -> None:
    assert "soak" not in json.loads(run("--json").stdout)


def test_a_device_that_corrupts_results_is_a_failure_that_names_the_elements(run: Run, corrupting: Any) -> None:
    corrupting()
    done = run("--soak", LONG_ENOUGH)
    assert done.returncode == 6
    assert "Traceback" not in done.stderr
    assert "failed under load (corrupted)" in done.stderr
    said = " ".join(done.stderr.split())
    assert "differ from the first" in said
    assert "1 of 256 elements differ, the first at (5, 7)" in said
    found = facts(done.stdout)
    assert 0 < int(found["digests that differ"]) <= int(found["digests"])
    document = json.loads(run("--soak", LONG_ENOUGH, "--json").stdout)
    assert document["failure"]["kind"] == "corrupted"
    assert document["soak"]["differences"] > 0
    assert document["measurement"]["runtime_ms"] > 0


def test_a_process_that_dies_under_load_is_a_failure(run: Run, corrupting: Any) -> None:
    corrupting("import os; os.abort()")
    done = run("--soak", "1s")
    assert done.returncode == 6
    assert "killed by SIGABRT" in done.stderr


def test_what_a_device_raises_under_load_is_its_failure(run: Run, corrupting: Any) -> None:
    corrupting("from farm.errors import DevicePoisoned; raise DevicePoisoned(why='it is lost')")
    done = run("--soak", "1s")
    assert done.returncode == 6
    assert "failed under load (killed)" in done.stderr
    assert "digest of D" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--soak", "5min"), ("longer than the time limit of the job, which is 120 s", "Nothing was measured")),
        (("--soak", "20s", "--job-seconds", "10"), ("which is 10 s", "at most 3600")),
        (("--soak", "soon"), ("'soon' is not a length of time", "60s")),
        (("--soak", "0s"), ("no time at all",)),
    ],
)
def test_a_soak_that_cannot_be_is_refused_before_anything_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    monkeypatch.setattr(measure, "answer_of", None)
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert all(text in said for text in says), said


def test_a_recording_cannot_be_soaked(run: Run) -> None:
    configuration = "tiled(tile=28) 2048x2048x512 f32"
    done = run("--soak", "1s", configuration=configuration, device=f"recorded:{RECORDING}")
    assert done.returncode == 6
    assert "a recording runs no kernel" in " ".join(done.stderr.split())


def test_the_progress_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 'print(\'{"opened": {}, "of": 1}\', flush=True)'
    seen = [{"seconds": second, "digests": 10 * second, "differences": 0} for second in range(3)]
    lines = [opened, *(f"print('{json.dumps({'soaking': one})}', flush=True)" for one in seen)]
    last = "print('{\"measurement\": 1}', flush=True)"
    shown: list[Any] = []
    answer = measure.answer_of(
        [sys.executable, "-c", "\n".join([*lines, last])], job_seconds=60, opened=lambda _: None, soaking=shown.append
    )
    assert answer == {"measurement": 1}
    assert shown == seen
