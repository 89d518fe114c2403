"""What every test on a card needs. Without CuPy and a card they are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import FarmError
from workers.devices import cards, open_device
from workers.devices.cuda import CudaDevice


def _why_not() -> str | None:
    """Why there is no card to test on. Neither imports CuPy nor creates a context."""
    try:
        return None if cards.find_cards() else "the driver shows no card"
    except FarmError as error:
        return str(error)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    why_not = _why_not() if here else None
    for item in here:
        # CuPy warns of parts of CUDA that it looks for at import; they are not what is tested.
        item.add_marker(pytest.mark.filterwarnings("default"))
        if why_not is not None:
            item.add_marker(pytest.mark.skip(reason=why_not))


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    opened = open_device(cards.find_cards()[0])
    assert isinstance(opened, CudaDevice)
    opened.open()
    yield opened
    opened.close()
