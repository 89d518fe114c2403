"""A real card proves itself, and one that computes something else does not. Skipped without CuPy and a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farm.errors import CanaryFailed, DevicePoisoned, WrongResult
from workers.canary import prove
from workers.devices import cards, open_device
from workers.devices.cuda import CudaDevice
from workers.kernels import tiled


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    opened = open_device(cards.find_cards()[0])
    assert isinstance(opened, CudaDevice)
    opened.open()
    yield opened
    opened.close()


def test_a_card_proves_itself_again_and_again(device: CudaDevice) -> None:
    for _ in range(3):
        prove(device)


def test_a_card_that_computes_a_wrong_result_fails(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiled.source("tiled.cu")
    right, wrong = "for (int i = 0; i < TILE; ++i)", "for (int i = (row == 5 && column == 9); i < TILE; ++i)"
    assert source.count(right) == 1
    monkeypatch.setattr(tiled, "source", lambda _: source.replace(right, wrong))
    with pytest.raises(CanaryFailed, match=r"\(5, 9\)") as caught:
        prove(device)
    assert isinstance(caught.value.__cause__, WrongResult)


def test_a_poisoned_context_is_the_cause(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    poison = DevicePoisoned(why="an illegal address")

    def poisoned(*_: object) -> None:
        raise poison

    monkeypatch.setattr(device, "_verify", poisoned)
    with pytest.raises(CanaryFailed) as caught:
        prove(device)
    assert caught.value.__cause__ is poison
    monkeypatch.undo()
    prove(device)
