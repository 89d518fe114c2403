"""The card that a benchmark runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workers.devices import open_device
from workers.devices.cards import find_cards


@contextmanager
def first_card() -> Iterator[Any]:
    """The first card of this host, open inside the block."""
    device = open_device(find_cards()[0])
    device.open()
    try:
        yield device
    finally:
        device.close()
