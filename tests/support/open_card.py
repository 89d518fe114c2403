"""Fixtures of a card without a GPU: a driver library and a CuPy, a clock that kernels move, and the device, which is open."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from support import fake_cuda
from support.fake_cuda import FakeCupy, FakePynvml
from support.virtual_time import VirtualTime
from workers.devices import cuda, cuda_tiers, discover, open_device
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
