"""`farm measure` by hand: what it measures, what it refuses, and that nothing a configuration does outlives it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import psutil
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import farm
from farm.cli import measure, measuring_options
from farm.cli.measuring_options import rules_of
from farm.devices import Backend, DeviceIdentity
from farm.errors import (
    BadInput,
    CudaUnavailable,
    DeviceLocked,
    DevicePoisoned,
    InvalidOnDevice,
    MeasurementFailed,
    ResultCorrupted,
)
from farm.kernels import Configuration
from farm.kernels.definition import known
from farm.measurement import Measurement, MeasuringRules, PowerWish, TimingRules
from farm.operands import DISTRIBUTIONS, OperandRules, operand_rules
from farm.protocols import ProtocolName
from farm.repro import repro_command
from farm.services import processes
from support.command_tree import top_level
from support.commands import called
from support.homes import environment, eventually, processes_under
from support.otlp_collector import collecting
from support.own_kernels import block_of, defined
from workers import devices, single
from workers.device_lock import DeviceLock, lock_folder
from workers.devices import cpu
from workers.measure.explain import Explanation

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
RECORDED = "tiled(tile=28) 2048x2048x512 f32"  # any but its first row, which a recorded device answers at once
SMALL = "blas(threads=1) 16x16x16 f32"
QUICK = '{"timing":{"max_seconds":0.01,"warmup_seconds":0,"max_samples":20}}'
HANGING = (RECORDED, "--device", f"recorded:{RECORDING}?scale=1000,cpu")

LOCKS = ".farm-locks"
"""The folder of device locks, beside the home (`homes.environment`)."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "farm", "measure", *arguments]


def nowhere(folder: Path, **more: str) -> dict[str, str]:
    """An environment whose services do not answer."""
    urls = {"FARM_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "FARM_BROKER_URL": "redis://127.0.0.1:1/0"}
    return environment(folder / ".farm", **urls, **more)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """`farm measure` in a folder of its own, in which it leaves no process, and no file but those of device locks."""
    yield lambda *arguments, **more: called(("measure", *arguments), tmp_path, nowhere(tmp_path, **more))
    assert processes_under(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} <= {LOCKS}


@pytest.fixture
def inside(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same, but what its measuring process does is done in this process, for what does not depend on a process."""

    def answer_of(program: Sequence[str], *, opened: Callable[[measure.Answer], None], **_: Any) -> measure.Answer:
        *first, last = json.loads(json.dumps(list(single.measure(json.loads(program[-1])))))
        for message in first:
            opened(message)
        return last  # type: ignore[no-any-return]

    monkeypatch.setattr(measure, "answer_of", answer_of)
    return command


@pytest.fixture
def program(tmp_path: Path) -> Command:
    """The same as a process of its own, for what belongs to one."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words(*arguments),
            cwd=tmp_path,
            env=nowhere(tmp_path, **more),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


# --- what is traced ----------------------------------------------------------------------------------


def test_a_measurement_is_traced_where_a_collector_is_set(inside: Command) -> None:
    arguments = (RECORDED, "--device", f"recorded:{RECORDING}", "--json")
    with collecting() as collector:
        done = inside(*arguments, FARM_OTEL_ENDPOINT=collector.url)
        failed = inside("tiled(tile=28) 1x1x1 f32", *arguments[1:], FARM_OTEL_ENDPOINT=collector.url)
    assert (done.returncode, failed.returncode != 0) == (0, True)
    first, second = collector.named("farm measure")
    assert (first.program, first.parent, first.failed, second.failed) == ("gemm-farm-cli", "", False, True)
    own = {name.removeprefix("gemm_farm."): value for name, value in first.attributes.items()}
    assert own["device.uuid"] == json.loads(done.stdout)["device"]["uuid"]
    assert (own["kernel.family"], own["gemm.m"], own["gemm.n"], own["gemm.k"]) == ("tiled", 2048, 2048, 512)
    for measured in (first, second):
        opened, last = (one for one in collector.spans if one.parent == measured.span)
        assert [(one.name, one.trace, one.failed) for one in (opened, last)] == [
            ("open device", measured.trace, False),
            ("measure configuration", measured.trace, measured.failed),
        ]
        assert measured.began_ns <= opened.began_ns <= opened.ended_ns == last.began_ns <= measured.ended_ns


def test_a_collector_that_is_away_costs_no_measurement(inside: Command) -> None:
    arguments = (RECORDED, "--device", f"recorded:{RECORDING}", "--json")
    done = inside(*arguments, FARM_OTEL_ENDPOINT="http://127.0.0.1:1")
    assert (done.returncode, "measurement" in json.loads(done.stdout)) == (0, True)


# --- what is measured --------------------------------------------------------------------------------


def test_a_configuration_is_measured_on_the_cpu_without_any_service(program: Command) -> None:
    done = program(SMALL, "--device", "cpu", "--rules", QUICK, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    here = cpu.identify()
    assert document["device"] == {"uuid": here.uuid, "type": here.type, "name": here.name}
    row = document["measurement"]
    derived = {"tflops", "intensity", "energy_mj", "gflops_per_w"}
    assert set(row) == {field.name for field in dataclasses.fields(Measurement)} | derived
    assert (row["source"], row["energy_mj"]) == ("measured", None)
    assert row["samples"] <= 20
    assert row["tflops"] == pytest.approx(2 * 16**3 / row["runtime_ms"] / 1e9)
    assert row["details"]["threads"] == 1
    assert "numpy" in row["environment"]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The row of `RECORDED` in the recording."""
    wanted = {"m": 2048, "n": 2048, "k": 512, "parameters": '{"tile": 28}'}
    rows = pq.read_table(RECORDING).to_pylist()
    (row,) = (row for row in rows if {name: row[name] for name in wanted} == wanted)
    return row  # type: ignore[no-any-return]


def test_a_recording_answers_with_its_row(command: Command, recorded: dict[str, Any]) -> None:
    row = json.loads(command(RECORDED, "--device", f"recorded:{RECORDING}", "--json").stdout)["measurement"]
    assert row["source"] == "recorded"
    for name in ("runtime_ms", "runtime_settled_ms", "power_w", "power_rse", "energy_mj", "tflops"):
        assert row[name] == pytest.approx(recorded[name], rel=1e-12), name


def test_people_read_a_table_of_what_is_known(inside: Command, recorded: dict[str, Any]) -> None:
    done = inside(RECORDED, "--device", f"recorded:{RECORDING}")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["configuration", Configuration.parse(RECORDED).canonical] in [[*map(str.strip, line)] for line in lines]
    said = {" ".join(line.split()) for line in done.stdout.splitlines()}
    assert said >= {
        "source recorded",
        f"median ms {recorded['runtime_ms']:.4g}",
        f"first quartile ms {recorded['runtime_q1_ms']:.4g}",
        f"fastest ms {recorded['runtime_min_ms']:.4g}",
        f"standard error % {100 * recorded['runtime_rse']:.4g}",
        "samples 10",
        "stopped because recorded",
        f"TFLOP/s {recorded['tflops']:.4g}",
        f"power W {recorded['power_w']:.4g}",
        f"energy mJ per GEMM {recorded['energy_mj']:.4g}",
        f"GFLOP/s/W {recorded['gflops_per_w']:.4g}",
        f"largest error, relative {recorded['verify_error']:.4g}",
        "SM clock MHz 1,980",
        f"temperature after °C {recorded['temperature_c']}",
        "throttled by none",
        "cache cold",
        "recording nvidia-h200-paper-tiled.parquet",
    }
    assert any(line.startswith("device recording of NVIDIA H200 (recorded-nvidia-h200), REC-") for line in said)


def test_what_could_not_be_measured_has_no_line(inside: Command) -> None:
    said = inside(SMALL, "--device", "cpu", "--rules", QUICK).stdout
    assert "median ms" in said
    assert "temperature" not in said
    assert "–" not in said


def test_a_row_says_what_it_was_asked_for(inside: Command) -> None:
    options = ("--warm-l2", "--distribution", "sparse", "--seed", "3")
    row = json.loads(inside(SMALL, "--device", "cpu", "--rules", QUICK, *options, "--json").stdout)["measurement"]
    assert (row["distribution"], row["seed"]) == ("sparse", 3)
    assert row["runtime_warm_ms"] > 0


def test_a_measurement_on_the_cpu_explains_itself(inside: Command) -> None:
    chosen = '{"power":"fraction","power_fraction":1,' + QUICK[1:]
    done = inside(SMALL, "--device", "cpu", "--rules", chosen, "--explain", "--json")
    document = json.loads(done.stdout)
    row, explanation = document["measurement"], document["explanation"]
    assert set(explanation) == {*Explanation().to_json(), "power_dropped_s"}
    samples = explanation["samples_ms"]
    assert (len(samples), min(samples)) == (row["samples"], row["runtime_min_ms"])
    assert statistics.median(samples) == pytest.approx(row["runtime_ms"])
    first, *notes = explanation["notes"]
    assert first == "power: wanted, as this one is among the 100% of all configurations that the rules choose"
    assert [note.split(":")[0] for note in notes] == ["warm-up", "timing stopped"]


def test_people_read_the_explanation_below_the_table(inside: Command) -> None:
    done = inside(SMALL, "--device", "cpu", "--rules", QUICK, "--explain")
    assert (done.returncode, done.stderr) == (0, "")
    table, _, explained = done.stdout.partition("what was decided\n")
    assert "median ms" in table
    assert "  timing stopped: " in explained
    assert re.search(r"^samples: \d+, ms of one GEMM\n  min ", explained, flags=re.MULTILINE)
    assert "█" in explained


def test_a_terminal_without_unicode_gets_ascii(program: Command) -> None:
    arguments = (SMALL, "--device", "cpu", "--rules", QUICK, "--explain")
    done = program(*arguments, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "#" in done.stdout
    done = program(RECORDED, "--device", f"recorded:{RECORDING}", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "temperature after C" in done.stdout


def test_a_recording_explains_nothing(inside: Command) -> None:
    done = inside(RECORDED, "--device", f"recorded:{RECORDING}", "--explain")
    assert "There is no explanation" in done.stderr
    assert "what was decided" not in done.stdout


def test_the_device_is_the_one_of_the_settings_where_none_is_named(inside: Command) -> None:
    done = inside(RECORDED, "--json", FARM_DEVICES=f"recorded:{RECORDING}")
    assert json.loads(done.stdout)["device"]["type"] == "recorded-nvidia-h200"
    assert done.stderr == ""


def test_of_several_devices_the_first_is_used_and_named(inside: Command) -> None:
    done = inside(RECORDED, "--device", f"recorded:{RECORDING},cpu", "--json")
    here = json.loads(done.stdout)["device"]
    assert here["type"] == "recorded-nvidia-h200"
    assert f"names 2 devices; the first is used: {here['name']}, {here['uuid']}" in done.stderr


# --- what is refused ---------------------------------------------------------------------------------


def refused(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for text in says:
        assert text in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("blas 16", "--device", "cpu"), 2, ("'blas 16' is not a configuration",)),
        (("blas(threads=0) 16 f32", "--device", "cpu"), 2, ("threads=0", "1 to 4096")),
        ((SMALL, "--device", "gpu"), 2, ("'gpu'", "none of the known words", "cuda")),
        ((SMALL, "--device", ""), 2, ("it is empty",)),
        ((SMALL, "--device", "recorded:none.parquet"), 2, ("none.parquet", "there is no such file")),
        ((SMALL, "--device", "CPU-00000000"), 4, ("no device 'CPU-00000000'", cpu.identify().uuid)),
        ((SMALL, "--rules", "{"), 2, ("--rules '{' is not JSON",)),
        ((SMALL, "--power", "some"), 2, ("some",)),
        ((SMALL, "--job-seconds", "0"), 2, ("job_seconds", "greater than 0")),
        ((SMALL, "--seed", "-1"), 2, ("operands.seed", "greater than or equal to 0, not -1")),
        ((SMALL, "--distribution", "odd"), 2, ("odd", "uniform")),
    ],
)
def test_bad_input_is_one_clear_message(
    inside: Command, arguments: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    refused(inside(*arguments, "--json"), code, *says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is not JSON"),
        ("[1]", "'[1]' is not a JSON object"),
        ('{"timming":{}}', "timming: there is no such rule; did you mean timing?"),
        ('{"timing":{"target":0.1}}', "timing.target: there is no such rule; did you mean target_rse?"),
        ('{"timing":null}', "timing: an empty value is not a JSON object of target_rse"),
        ('{"timing":3}', "timing: 3 is not a JSON object of target_rse, min_samples"),
        ('{"timing":{"target_rse":5}}', "timing.target_rse: input should be less than 1, not 5"),
        ('{"power":"some"}', "power: input should be 'none', 'fraction' or 'all', not 'some'"),
        ('{"job_seconds":NaN}', "job_seconds: input should be less than or equal to 3600, not nan"),
        ('{"timing":{"min_samples":50,"max_samples":20}}', "min_samples is 50 and max_samples 20"),
    ],
)
def test_what_is_wrong_with_rules_is_said(text: str, says: str) -> None:
    with pytest.raises(BadInput) as found:
        rules_of(text)
    assert says in str(found.value)


def test_every_mistake_in_rules_is_said_at_once() -> None:
    with pytest.raises(BadInput) as found:
        rules_of('{"timing":{"target_rse":5},"powr":1}', job_seconds=-1.0)
    assert len(str(found.value).splitlines()) == 3


def test_options_go_before_rules() -> None:
    text = '{"power":"none","job_seconds":5,"max_attempts":1}'
    assert rules_of('{"protocol":"server"}', protocol=ProtocolName.DO_BENCH).protocol == "do-bench"
    found = rules_of(text, power="all", job_seconds=7.5)
    assert found == MeasuringRules(power="all", job_seconds=7.5, max_attempts=1)
    assert rules_of(text) == MeasuringRules(power="none", job_seconds=5, max_attempts=1)
    assert rules_of("{}") == MeasuringRules()


def test_options_change_only_their_own_part_of_a_section() -> None:
    text = '{"timing":{"target_rse":0.1,"warm_l2":true},"operands":{"seed":7}}'
    found = rules_of(text, warm_l2=False, distribution="ones")
    assert found == MeasuringRules(
        timing=TimingRules(target_rse=0.1, warm_l2=False), operands=OperandRules(distribution="ones", seed=7)
    )
    assert rules_of("{}", warm_l2=True, seed=3) == MeasuringRules(
        timing=TimingRules(warm_l2=True), operands=OperandRules(seed=3)
    )


@pytest.mark.parametrize(
    "text", [*DISTRIBUTIONS, "normal*0.02", "a=normal*0.02 b=zeros", "a=ones*0.5 b=sparse c=integers"]
)
def test_every_distribution_can_be_asked_for(text: str) -> None:
    found = rules_of('{"operands":{"seed":7}}', distribution=text).operands
    assert found == operand_rules(text, seed=7)
    assert rules_of("{}", distribution=found.text, seed=7).operands == found


# --- what cannot be measured -------------------------------------------------------------------------


def test_a_device_that_a_program_of_this_host_uses_is_refused_with_its_holder_and_what_to_do(
    inside: Command, tmp_path: Path
) -> None:
    uuid = cpu.identify().uuid
    lock = DeviceLock.take(uuid, tmp_path / LOCKS)
    done = inside(SMALL, "--device", "cpu", "--rules", QUICK)
    refused(done, 3, uuid, f"process {os.getpid()} of this host", "Stop that one (a farm-worker", "Draining")
    lock.release()
    assert inside(SMALL, "--device", "cpu", "--rules", QUICK).returncode == 0


def test_a_recording_is_read_beside_a_worker_that_serves_it(inside: Command, tmp_path: Path) -> None:
    (identity,) = devices.discover(f"recorded:{RECORDING}")
    lock = DeviceLock.take(identity.uuid, tmp_path / LOCKS)
    assert inside(RECORDED, "--device", f"recorded:{RECORDING}").returncode == 0
    lock.release()


def test_an_invalid_configuration_says_why_and_exits_6(inside: Command) -> None:
    done = inside(RECORDED, "--device", "cpu")
    refused(done, 6, "could not be measured (invalid): tiled runs on cuda devices, this is a cpu device")


def test_a_failure_is_a_document_too(command: Command) -> None:
    done = command(RECORDED, "--device", "cpu", "--json")
    why = "tiled runs on cuda devices, this is a cpu device"
    assert (done.returncode, json.loads(done.stdout)) == (6, {"failure": {"kind": "invalid", "message": why}})
    assert why in done.stderr


def test_a_hang_is_ended_at_its_deadline(command: Command) -> None:
    done = command(*HANGING, "--job-seconds", "0.2", "--json")
    assert done.returncode == 6
    assert json.loads(done.stdout) == {"failure": {"kind": "killed", "message": "it took longer than 0.2 s"}}
    assert "could not be measured (killed): it took longer than 0.2 s" in done.stderr


@contextmanager
def measuring(folder: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A command in the middle of a measurement that takes long, and the process that measures."""
    with subprocess.Popen(
        words(*HANGING, "--job-seconds", "600", "--json"),
        cwd=folder,
        env=nowhere(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert "the first is used" in process.stderr.readline()  # said when the device is open
            family = psutil.Process(process.pid).children(recursive=True)
            (child,) = [member for member in family if member.cmdline()[1:4] == ["-P", "-m", "workers.single"]]
            yield process, child
        finally:
            process.kill()


def test_a_killed_process_is_told_by_its_signal(tmp_path: Path) -> None:
    with measuring(tmp_path) as (process, child):
        child.kill()
        stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 6
    assert json.loads(stdout) == {"failure": {"kind": "killed", "message": "its process was killed by SIGKILL"}}
    assert "could not be measured (killed): its process was killed by SIGKILL" in stderr
    assert processes_under(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with measuring(tmp_path) as (process, _):
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=240)
        assert (process.returncode, stdout) == (130, "")
        assert "Traceback" not in stderr
        assert processes_under(tmp_path) == []


def test_a_killed_command_leaves_nothing_behind(tmp_path: Path) -> None:
    with measuring(tmp_path) as (process, child):
        process.kill()
        process.wait()
        eventually(lambda: processes_under(tmp_path) == [])
        assert not child.is_running()


# --- processes that misbehave ------------------------------------------------------------------------

OPENED = """print('{"opened": {}, "of": 1}', flush=True)"""
ANSWER = """print('{"measurement": 1}', flush=True)"""
SLEEP = "import time; time.sleep(600)"


def answered(*lines: str, job_seconds: float = 60.0, start_seconds: float = 60.0) -> measure.Answer:
    return measure.answer_of(
        [sys.executable, "-c", "\n".join(lines)],
        job_seconds=job_seconds,
        start_seconds=start_seconds,
        opened=lambda _: None,
    )


def killed(message: str) -> measure.Answer:
    return {"failure": {"kind": "killed", "message": message}}


SILENT = "and did not say what it measured"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["import os; os.kill(os.getpid(), 11)"], "its process was killed by SIGSEGV"),
        ([OPENED, "import os; os.abort()"], "its process was killed by SIGABRT"),
        ([OPENED, "raise SystemExit(3)"], f"its process ended with status 3, {SILENT}"),
        ([OPENED, "raise SystemExit(250)"], f"its process ended with status 250, {SILENT}"),
        ([], f"its process ended with status 0, {SILENT}"),
        ([OPENED, ANSWER.replace("flush=True", "end=''")], f"its process ended with status 0, {SILENT}"),
    ],
)
def test_how_a_process_died_is_said(lines: list[str], message: str) -> None:
    assert answered(*lines) == killed(message)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every process of the test works in, so that those left behind are found."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_process_that_does_not_open_its_device_is_ended(here: Path) -> None:
    assert answered(SLEEP, start_seconds=0.2) == killed("its device was not open after 0.2 s")
    assert processes_under(here) == []


@pytest.mark.long
def test_a_process_that_ignores_signals_is_ended_with_all_that_it_started(here: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    another = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    assert answered(deaf, another, OPENED, SLEEP, job_seconds=0.2) == killed("it took longer than 0.2 s")
    assert processes_under(here) == []


def test_a_process_that_has_answered_may_hang_on_its_way_out(here: Path) -> None:
    assert answered(OPENED, ANSWER, SLEEP) == {"measurement": 1}
    assert processes_under(here) == []


def test_an_answer_may_be_long() -> None:
    assert answered(OPENED, """print('{"measurement": "' + 'x' * 1_000_000 + '"}')""") == {
        "measurement": "x" * 1_000_000
    }


def test_a_process_that_nothing_ends_is_not_waited_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "GRACE_SECONDS", 30.0)  # so it is not killed within the time for ending it
    monkeypatch.setattr(processes, "ENDING_SECONDS", 0.1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert answered(deaf, OPENED, SLEEP, job_seconds=0.2) == killed("it took longer than 0.2 s")
    (left,) = processes_under(here)
    os.kill(int(left.split()[0]), signal.SIGKILL)


def test_what_libraries_print_does_not_reach_the_answers(capfd: pytest.CaptureFixture[str]) -> None:
    noisy = """
import os, sys, workers.devices
from workers import single
real = workers.devices.open_device
def open_device(identity):
    os.write(1, b"from below\\n")
    print("from Python", flush=True)
    os.system("echo from a program")
    return real(identity)
workers.devices.open_device = open_device
single.main()
"""
    request = {"configuration": SMALL, "device": "cpu", "rules": json.loads(QUICK), "explain": False}
    answer = measure.answer_of(
        [sys.executable, "-c", noisy, json.dumps(request)], job_seconds=60, opened=lambda _: None
    )
    assert answer["measurement"]["runtime_ms"] > 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert {"from below", "from Python", "from a program"} <= set(captured.err.splitlines())


# --- what the measuring process answers --------------------------------------------------------------


class Device:
    """A CPU whose opening or measuring raises."""

    def __init__(self, *, opening: Exception | None = None, measuring: Exception | None = None) -> None:
        self.identity = cpu.identify()
        self._opening, self._measuring = opening, measuring

    def open(self) -> None:
        if self._opening is not None:
            raise self._opening

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        assert (configuration, rules, explanation) == (Configuration.parse(SMALL), rules_of(QUICK), None)
        assert self._measuring is not None
        raise self._measuring


@pytest.fixture
def answers_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], list[dict[str, Any]]]:
    def run(device: Device) -> list[dict[str, Any]]:
        monkeypatch.setattr(devices, "open_device", lambda identity: device)
        rules = rules_of(QUICK).model_dump(mode="json")
        return list(single.measure({"configuration": SMALL, "device": "cpu", "rules": rules, "explain": False}))

    return run


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (InvalidOnDevice(why="too large"), "invalid", "too large"),
        (MeasurementFailed(why="no memory"), "failed", "The measurement failed: no memory"),
        (DevicePoisoned(why="illegal address"), "killed", str(DevicePoisoned(why="illegal address"))),
        (
            ResultCorrupted(launch="the last launch", difference="one bit"),
            "corrupted",
            str(ResultCorrupted(launch="the last launch", difference="one bit")),
        ),
        (ZeroDivisionError("of a device"), "failed", "ZeroDivisionError: of a device"),
    ],
)
def test_errors_are_classed_as_those_of_jobs(answers_of: Any, error: Exception, kind: str, message: str) -> None:
    opened, last = answers_of(Device(measuring=error))
    assert (opened["opened"]["uuid"], opened["of"]) == (cpu.identify().uuid, 1)
    assert last == {"failure": {"kind": kind, "message": message}}


def test_the_device_is_locked_while_it_is_open_and_free_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, looks = cpu.identify().uuid, list[str]()

    def opened(identity: DeviceIdentity) -> Device:
        with pytest.raises(DeviceLocked):
            DeviceLock.take(identity.uuid, lock_folder())
        looks.append(identity.uuid)
        return Device(measuring=MeasurementFailed(why="no memory"))

    monkeypatch.setattr(devices, "open_device", opened)
    rules = rules_of(QUICK).model_dump(mode="json")
    list(single.measure({"configuration": SMALL, "device": "cpu", "rules": rules, "explain": False}))
    assert looks == [uuid]
    DeviceLock.take(uuid, lock_folder()).release()


def test_a_defect_of_a_device_shows_where_it_is(answers_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    answers_of(Device(measuring=ZeroDivisionError("of a device")))
    assert "raise self._measuring" in caplog.text
    caplog.clear()
    answers_of(Device(measuring=MeasurementFailed(why="no memory")))
    assert caplog.text == ""


def test_a_device_that_cannot_be_used_is_not_the_configurations_failure(answers_of: Any) -> None:
    error = CudaUnavailable(why="no driver")
    assert answers_of(Device(opening=error)) == [{"refused": {"exit_code": 3, "message": str(error)}}]
    poisoned = DevicePoisoned(why="it is lost")
    assert answers_of(Device(opening=poisoned)) == [{"failure": {"kind": "killed", "message": str(poisoned)}}]


# --- the line that does it again ---------------------------------------------------------------------


@st.composite
def rules(draw: st.DrawFn) -> MeasuringRules:
    least = draw(st.integers(2, 1000))
    timing = TimingRules(
        target_rse=draw(st.floats(1e-9, 0.999)),
        min_samples=least,
        max_samples=draw(st.integers(least, 1_000_000)),
        warm_l2=draw(st.booleans()),
    )
    filled = st.builds(
        lambda distribution, scale: {"distribution": distribution, "scale": scale},
        st.sampled_from(DISTRIBUTIONS),
        st.sampled_from([1.0, 0.02]),
    )
    of_file = {"file": "/weights/w.safetensors", "tensor": "down 'proj'", "sha256": "4f2a91c0" * 8}
    matrix = st.one_of(st.none(), filled, st.just(of_file))
    operands = OperandRules.model_validate(
        {**draw(filled), "seed": draw(st.integers(0, 2**32 - 1)), **{name: draw(matrix) for name in "abc"}}
    )
    return MeasuringRules(
        timing=draw(st.sampled_from([TimingRules(), timing])),
        operands=operands,
        power=draw(st.sampled_from(get_args(PowerWish))),
        power_fraction=draw(st.floats(1e-9, 1)),
        power_rse=draw(st.floats(1e-9, 0.999)),
        power_seconds=draw(st.floats(0.3, 60)),
        job_seconds=draw(st.floats(1e-3, 3600)),
        max_attempts=draw(st.integers(1, 20)),
    )


configurations = st.builds(
    lambda tile, extent, alpha, beta: Configuration.parse(
        f"tiled(tile={tile}) {extent}x7x{extent} f64 tn alpha={alpha!r} beta={beta!r}"
    ),
    st.integers(1, 32),
    st.integers(1, 2**31 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
)


def read_back(line: str) -> dict[str, Any]:
    """What the command line makes of a line that was typed into a shell."""
    program, name, *rest = shlex.split(line)
    assert (program, name) == ("farm", "measure")
    found: dict[str, Any] = top_level().commands[name].make_context(name, rest).params
    return found


@given(configurations, st.sampled_from([None, "GPU-4e7a5dfa", "CPU-1"]), rules())
def test_the_line_reads_back_as_the_same_measurement(
    configuration: Configuration, uuid: str | None, asked: MeasuringRules
) -> None:
    found = read_back(repro_command(configuration, uuid, asked))
    assert Configuration.parse(found["configuration"]) == configuration
    assert found["device"] == uuid
    options = ("power", "job_seconds", "warm_l2", "distribution", "seed")
    assert rules_of(found["rules"], **{name: found[name] for name in options}) == asked


def test_the_line_has_only_what_is_not_the_default() -> None:
    configuration, canonical = Configuration.parse(SMALL), Configuration.parse(SMALL).canonical
    assert repro_command(configuration, None, MeasuringRules()) == f"farm measure '{canonical}'"
    changed = MeasuringRules(timing=TimingRules(target_rse=0.01), power="all")
    assert repro_command(configuration, "CPU-1", changed) == (
        f"""farm measure '{canonical}' --device CPU-1 --rules '{{"timing":{{"target_rse":0.01}},"power":"all"}}'"""
    )


def test_the_line_of_an_own_kernel_names_a_campaign_file() -> None:
    configuration = Configuration.parse("source(BM=64,definition=7) 64x64x64 f32")
    line = repro_command(configuration, "GPU-1", MeasuringRules())
    assert line == f"farm measure '{configuration.canonical}' --source CAMPAIGN.yaml --device GPU-1"
    assert read_back(line)["source"] == Path("CAMPAIGN.yaml")


def test_a_recorded_device_is_left_to_the_settings() -> None:
    (identity,) = devices.discover(f"recorded:{RECORDING}")
    assert identity.backend is Backend.RECORDED
    assert "--device" not in repro_command(Configuration.parse(SMALL), identity.uuid, MeasuringRules())


def test_the_line_runs_in_a_shell(inside: Command) -> None:
    line = repro_command(Configuration.parse(SMALL), cpu.identify().uuid, rules_of(QUICK))
    done = inside(*shlex.split(line)[2:], "--json")
    assert json.loads(done.stdout)["device"]["uuid"] == cpu.identify().uuid


# --- own kernels ---------------------------------------------------------------------------------------


@pytest.fixture
def own_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign file with an own kernel."""
    folder = tmp_path_factory.mktemp("own")
    block = block_of(defined(), BM=32, BN=16)
    path = folder / "own.yaml"
    document = {"name": "own", "problems": {"shapes": "64x64x64", "types": "f32"}, "kernels": [block]}
    path.write_text(yaml.safe_dump(document))
    return path


def test_an_own_kernel_is_sent_with_its_definition(own_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested, definitions = measuring_options.defined(
        Configuration.parse("source(BM=32,BN=16) 64x64x64 f32"), own_kernels
    )
    (definition,) = definitions
    assert dict(requested.kernel.parameters) == {"BM": 32, "BN": 16, "definition": definition.id}
    found = list[Any]()

    def measured(request: dict[str, Any], _held: object) -> Iterator[dict[str, Any]]:
        found.append(known(requested.kernel.parameters[-1][1]))
        yield {}

    written = [one.to_json() for one in definitions]
    number = definition.id
    del definition, definitions
    monkeypatch.setattr(single, "_measure", measured)
    assert list(single.measure({"definitions": written})) == [{}]
    assert found[0].id == number


def test_an_own_kernel_is_invalid_on_a_processor(inside: Command, own_kernels: Path) -> None:
    done = inside("source(BM=32,BN=16) 64x64x64 f32", "--source", str(own_kernels), "--device", "cpu")
    refused(done, 6, "source runs on cuda devices, this is a cpu device")


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        (SMALL, "--source is for the family source, and the configuration is of blas"),
        ("source(definition=7) 64x64x64 f32", "does not have that own kernel. It has: definition="),
    ],
)
def test_a_source_that_does_not_fit_is_bad_input(
    command: Command, own_kernels: Path, configuration: str, says: str
) -> None:
    refused(command(configuration, "--source", str(own_kernels)), 2, says)


def test_a_source_that_is_not_there_is_bad_input(command: Command) -> None:
    refused(command("source() 64x64x64 f32", "--source", "none.yaml"), 2, "none.yaml: there is no such file")
