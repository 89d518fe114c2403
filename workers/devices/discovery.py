"""Device discovery: reads the setting FARM_DEVICES, and makes the device of an identity."""

from __future__ import annotations

import logging
from pathlib import Path

from farm.devices import DeviceIdentity
from farm.errors import CudaUnavailable, NoSuchDevice, UnknownDeviceSelection
from farm.lazy import load
from farm.settings import settings
from farm.vendors import CPU, VENDORS
from workers.devices import cards
from workers.devices.base import Device
from workers.kernels.sources import Kernels, own_kernels

log = logging.getLogger(__name__)


def discover(selection: str) -> list[DeviceIdentity]:
    """The devices that a selection names, each once, in its order. No context is created and CuPy is not imported.

    `auto`: every CUDA device, or where none can be used the CPU. `cpu`. `cuda`: every CUDA device. `recorded:FILE` and
    `recorded:FILE?scale=0.1`: a recording, answering after that share of the recorded time; `recorded:FILE?device=UUID`:
    its rows that were measured on that device. A UUID. Several, separated by commas.

    Raises `UnknownDeviceSelection`, `NoSuchDevice`, `CudaUnavailable`, and for recordings `BadRecording` and
    `MissingColumns`.
    """
    words = [word.strip() for word in selection.split(",") if word.strip()]
    if not words:
        raise UnknownDeviceSelection(value=selection, why="it is empty")
    found: dict[str, DeviceIdentity] = {}
    for word in words:
        for identity in _discover_one(word, selection):
            found.setdefault(identity.uuid, identity)
    return list(found.values())


def _discover_one(word: str, selection: str) -> list[DeviceIdentity]:
    if word == "auto":
        return _automatic()
    vendor = next((vendor for vendor in VENDORS.values() if vendor.is_named_by(word)), None)
    if vendor is None:
        raise UnknownDeviceSelection(value=selection, why=f"{word!r} is none of the known words")
    known: list[DeviceIdentity] = load(vendor.finder)(word, selection)
    if not vendor.has_uuid(word):
        return known
    named = [identity for identity in known if identity.uuid.lower() == word.lower()]
    if not named:
        raise NoSuchDevice(uuid=word, known=", ".join(identity.uuid for identity in known) or "no such devices")
    return named[:1]


def _automatic() -> list[DeviceIdentity]:
    try:
        found = cards.find_cards()
    except CudaUnavailable as error:
        warn_of_unused_cards(error)
        found = []
    return found or _discover_one(CPU.word, CPU.word)


def warn_of_unused_cards(error: CudaUnavailable) -> None:
    """Logs why the CPU is measured on a host that has an NVIDIA driver."""
    if Path("/proc/driver/nvidia/version").exists():
        log.warning("this host has an NVIDIA driver, but the CPU is measured. %s", error)


def open_device(identity: DeviceIdentity, kernels: Kernels | None = None) -> Device:
    """The device of an identity, not opened yet. All it needs is in the identity, which may come from the database.

    Kernels that are built ahead of time come from `kernels`; without, from this host alone.
    """
    vendor = VENDORS[identity.backend]
    loaded = (kernels or own_kernels(settings()),) if vendor.loads_kernels else ()
    device: Device = load(vendor.worker)(identity, *loaded)
    return device
