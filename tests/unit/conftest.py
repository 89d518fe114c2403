"""Devices that are open during a test, and a driver and a CuPy for tests of what runs on a card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import open_card
from workers.devices import cpu, host

pynvml, cupy, virtual_time, device = open_card.pynvml, open_card.cupy, open_card.virtual_time, open_card.device


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[cpu.CpuDevice]:
    """This processor with a small cache, so that few operand sets cover it."""
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 2**20)
    opened = cpu.CpuDevice(cpu.identify())
    opened.open()
    yield opened
    opened.close()
