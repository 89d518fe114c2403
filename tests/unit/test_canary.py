"""A device proves itself before it takes work: the real CPU and a real recording pass, whatever is wrong does not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm.devices import DeviceIdentity, DeviceKind, DeviceTraits
from farm.errors import CanaryFailed, DevicePoisoned, InvalidOnDevice, WrongResult
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.provenance import Provenance
from workers.canary import prove
from workers.devices import Device, cpu, host, recorded, recording

CONFIGURATION = Configuration.parse("blas(threads=1) 8x8x8 f32")


class Scripted:
    """A device that answers with what it is given: a row, or an error to raise."""

    identity: DeviceIdentity

    def __init__(self, answer: Measurement | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[Configuration, MeasuringRules]] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def canary(self) -> Configuration:
        return CONFIGURATION

    def measure(self, configuration: Configuration, rules: MeasuringRules) -> Measurement:
        self.asked.append((configuration, rules))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


GOOD = Measurement(
    **dict.fromkeys(("runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms"), 1.0),
    runtime_rse=0.01,
    samples=3,
    stop_reason="budget",
    l2="cold",
)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[cpu.CpuDevice]:
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 2**23)  # a server's takes seconds to go round
    opened = cpu.CpuDevice(cpu.identify())
    opened.open()
    yield opened
    opened.close()


def write(path: Path) -> Path:
    """A recording of three configurations, of which each took a minute."""
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**30, threads=2)
    rows = [
        {"configuration": Configuration.parse(f"blas(threads=1) {n}x8x8 f32"), "runtime_ms": 1.0, "cost_s": 60.0}
        for n in (7, 5, 6)
    ]
    origin = Provenance(device_type="cpu-x", device_name="X", traits=traits, provenance="a test")
    recording.write_recording(path, rows, origin)
    return path


def opened(path: Path, naps: list[float]) -> recorded.RecordedDevice:
    device = recorded.RecordedDevice(recorded.identify(path, scale=2.0), sleep=naps.append)
    device.open()
    return device


def failure(device: Device) -> CanaryFailed:
    with pytest.raises(CanaryFailed) as caught:
        prove(device)
    assert str(device.canary()) in str(caught.value)
    return caught.value


def test_this_machine_proves_itself(processor: cpu.CpuDevice) -> None:
    prove(processor)


def test_a_canary_is_verified_quick_and_draws_no_power() -> None:
    device = Scripted(GOOD)
    prove(device)
    ((asked, rules),) = device.asked
    assert asked == CONFIGURATION
    assert rules.power == "none"
    assert rules.timing.warmup_seconds + rules.timing.max_seconds < 0.5


def test_a_processor_that_computes_a_wrong_result_fails(
    processor: cpu.CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = np.matmul

    def wrong(a: Any, b: Any, d: Any) -> None:
        right(a, b, d)
        d[3, 5] += 0.5

    monkeypatch.setattr(cpu.np, "matmul", wrong)
    error = failure(processor)
    assert isinstance(error.__cause__, WrongResult)
    assert "(3, 5)" in str(error)


def test_a_processor_that_cannot_run_its_canary_is_not_fit(processor: cpu.CpuDevice) -> None:
    processor.identity = dataclasses.replace(
        processor.identity, traits=dataclasses.replace(processor.identity.traits, memory_bytes=1)
    )
    assert isinstance(failure(processor).__cause__, InvalidOnDevice)


def test_a_recording_proves_itself_by_its_first_row_at_once_whatever_its_scale(tmp_path: Path) -> None:
    naps: list[float] = []
    device = opened(write(tmp_path / "rows.parquet"), naps)
    assert device.canary() == Configuration.parse("blas(threads=1) 7x8x8 f32")
    prove(device)
    assert naps == []
    device.measure(Configuration.parse("blas(threads=1) 7x8x8 f32"), MeasuringRules())
    assert naps == [120.0]  # the same row as a job is replayed in its time


def test_a_recording_whose_first_row_cannot_be_found_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet")
    table = pq.read_table(path)
    ids = table[recording.ID_COLUMN].to_pylist()
    damaged = pa.array([bytes(16), *ids[1:]], pa.binary(16))
    index = table.column_names.index(recording.ID_COLUMN)
    pq.write_table(table.set_column(index, recording.ID_COLUMN, damaged), path)
    prove(opened(path, []))  # the ids are seen to be wrong, and made anew
    monkeypatch.setattr(recorded, "CHECKED_IDS", 1)
    monkeypatch.setattr(recorded, "_id", lambda *_: bytes(16))  # the check does not see it
    assert isinstance(failure(opened(path, [])).__cause__, InvalidOnDevice)


def test_an_error_of_any_kind_fails_and_is_the_cause() -> None:
    poison = DevicePoisoned(why="an illegal address")
    error = failure(Scripted(poison))
    assert error.__cause__ is poison
    assert "an illegal address" in str(error)
    defect = ZeroDivisionError("division by zero")
    error = failure(Scripted(defect))
    assert error.__cause__ is defect
    assert "ZeroDivisionError: division by zero" in str(error)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["runtime_ms", "runtime_min_ms"])
def test_a_runtime_that_cannot_be_fails(name: str, value: float) -> None:
    error = failure(Scripted(dataclasses.replace(GOOD, **{name: value})))
    assert f"{name} is {value}" in str(error)
    assert error.__cause__ is None
