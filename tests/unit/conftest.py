"""A driver and a CuPy for tests of what runs on a card."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from support.fake_cuda import FakeCupy, FakePynvml


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
