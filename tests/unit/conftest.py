"""Devices that are open during a test, and a driver and a CuPy for tests of what runs on a card."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from support import fake_cuda
from support.fake_cuda import FakeCupy, FakePynvml
from support.virtual_time import VirtualTime
from workers.devices import cpu, cuda, cuda_tiers, discover, host, open_device
from workers.devices.cuda import CudaDevice
from workers.measure import replay
from workers.measure.power import nvml_power


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> FakePynvml:
    fake = FakePynvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return fake


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: fake if name == "cupy" else find(name))
    # `open` sets it for the process; the patch takes it back afterwards.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11111111-aaaa")
    return fake


@pytest.fixture
def device(pynvml: FakePynvml, cupy: FakeCupy) -> Iterator[CudaDevice]:
    """A card that is open during the test."""
    (identity,) = discover("cuda")
    opened = open_device(identity)
    assert isinstance(opened, CudaDevice)
    opened.open()
    yield opened
    opened.close()
    assert pynvml.sessions == 0


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    clock = VirtualTime()
    for module in (cuda, cuda_tiers, replay, nvml_power, fake_cuda):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(cuda_tiers, "POLLING_SECONDS", 0.0)  # this card does nothing while its host sleeps
    return clock


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[cpu.CpuDevice]:
    """This processor with a small cache, so that few operand sets cover it."""
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 2**20)
    opened = cpu.CpuDevice(cpu.identify())
    opened.open()
    yield opened
    opened.close()
