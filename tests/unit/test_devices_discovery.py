"""The setting FARM_DEVICES: which words it knows, and what it says of those it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import BadInput, BadRecording, NoSuchDevice, UnknownDeviceSelection
from farm.kernels import Configuration
from farm.provenance import Provenance
from workers.devices import discover, open_device
from workers.devices.cpu import CpuDevice
from workers.devices.recorded import RecordedDevice
from workers.devices.recording import write_recording


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**30, threads=2)
    row = {"configuration": Configuration.parse("blas(threads=1) 8x8x8 f32"), "runtime_ms": 1.0}
    write_recording(path, [row], Provenance(device_type="cpu-x", device_name="X", traits=traits, provenance="a test"))
    return path


def test_without_a_card_auto_is_the_cpu() -> None:
    assert discover("auto") == discover("cpu")
    assert discover("cpu")[0].backend is Backend.CPU


def test_a_list_names_each_device_once_and_in_order(file: Path) -> None:
    found = discover(f"recorded:{file}, cpu,auto")
    assert [identity.backend for identity in found] == [Backend.RECORDED, Backend.CPU]


def test_a_device_is_found_by_its_uuid() -> None:
    (cpu,) = discover("cpu")
    assert discover(cpu.uuid) == [cpu]
    with pytest.raises(NoSuchDevice, match=cpu.uuid):
        discover("CPU-0000")


def test_a_recording_may_have_a_scale(file: Path) -> None:
    assert discover(f"recorded:{file}")[0].facts["scale"] == 0
    assert discover(f"recorded:{file}?scale=0.25")[0].facts["scale"] == 0.25


@pytest.mark.parametrize(
    ("selection", "why"),
    [
        ("", "empty"),
        (" , ", "empty"),
        ("gpu", "'gpu' is none of the known words"),
        ("cpu,tpu", "'tpu'"),
        ("recorded:", "recorded:FILE"),
        ("recorded:x.parquet?speed=2", "no option speed"),
        ("recorded:x.parquet?", "recorded:FILE"),
        ("recorded:x.parquet?scale=fast", "'fast'"),
        ("recorded:x.parquet?scale=-1", "'-1'"),
        ("recorded:x.parquet?scale=nan", "'nan'"),
    ],
)
def test_an_unknown_selection_says_what_would_be_right(selection: str, why: str) -> None:
    with pytest.raises(UnknownDeviceSelection, match=why) as caught:
        discover(selection)
    assert isinstance(caught.value, BadInput)
    assert "auto, cpu, cuda" in str(caught.value)


def test_a_recording_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match=r"nowhere\.parquet"):
        discover(f"recorded:{tmp_path}/nowhere.parquet")


def test_a_device_is_made_from_its_identity_alone(file: Path) -> None:
    assert isinstance(open_device(discover("cpu")[0]), CpuDevice)
    assert isinstance(open_device(discover(f"recorded:{file}")[0]), RecordedDevice)
