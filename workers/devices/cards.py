"""Which CUDA devices this host has, and what can be known of them without creating a context on any."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from farm.devices import Backend, DeviceIdentity, traits_of_capability
from farm.errors import CudaUnavailable, DevicePoisoned
from farm.installing import INSTALL
from farm.vendors import NVIDIA, device_type_of
from workers.measure.nvml import Card, Nvml

log = logging.getLogger(__name__)


def identity_of(card: Card, driver: str) -> DeviceIdentity:
    """A card or MIG slice as a device."""
    traits = replace(
        traits_of_capability(card.compute_capability),
        memory_bytes=card.memory_bytes,
        multiprocessors=card.multiprocessors,
    )
    return DeviceIdentity(
        uuid=card.uuid,
        type=device_type_of(card.name, Backend.CUDA),
        name=card.name,
        backend=Backend.CUDA,
        traits=traits,
        facts={
            "driver": driver,
            "pci_bus_id": card.pci_bus_id,
            "power_limit_w": card.power_limit_w,
            "default_power_limit_w": card.default_power_limit_w,
            "slowdown_c": card.slowdown_c,
            "mig_slice": card.is_slice,
        },
    )


def require_cupy(driver: str) -> None:
    """Raises `CudaUnavailable` where CuPy is not installed. Does not import it."""
    if importlib.util.find_spec("cupy") is None:
        raise CudaUnavailable(why=f"CuPy is not installed. For driver {driver}: {INSTALL[NVIDIA.extra_for(driver)]}")


def find_cards(environment: Mapping[str, str] | None = None) -> list[DeviceIdentity]:
    """Every CUDA device that CUDA_VISIBLE_DEVICES leaves to this process. Raises `CudaUnavailable`."""
    environment = os.environ if environment is None else environment
    with Nvml() as nvml:
        driver = nvml.driver
        cards = _visible(nvml.cards(), environment)
        found = []
        for card in cards:
            try:
                found.append(identity_of(card, driver))
            except DevicePoisoned as error:
                log.warning("the card %s is lost: %s", card.uuid, error)
    if found:
        require_cupy(driver)
    return found


def find(word: str, _selection: str) -> list[DeviceIdentity]:
    """The cards among which a word of FARM_DEVICES names some. Raises `CudaUnavailable`."""
    found = find_cards()
    if word == NVIDIA.word and not found:
        raise CudaUnavailable(
            why="the driver shows no card to this process. Look at nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    return found


def _visible(cards: list[Card], environment: Mapping[str, str]) -> list[Card]:
    """As CUDA reads CUDA_VISIBLE_DEVICES: UUIDs or their beginnings, or numbers; the first unknown entry ends the list.

    NVML counts by PCI bus, CUDA by speed unless CUDA_DEVICE_ORDER says otherwise, so numbers mean the same card to both
    only where all cards are of one kind or the order is set.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return cards
    chosen: list[Card] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdecimal():
            if len({card.name for card in cards}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                raise CudaUnavailable(
                    why=f"CUDA_VISIBLE_DEVICES={text} names cards by number, and this host has cards of several kinds. "
                    "Name them by UUID (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID."
                )
            matching = cards[int(entry) : int(entry) + 1]
        else:
            matching = [card for card in cards if entry and card.uuid.lower().startswith(entry.lower())]
        if len(matching) != 1:
            break
        if matching[0] not in chosen:
            chosen.append(matching[0])
    return chosen
