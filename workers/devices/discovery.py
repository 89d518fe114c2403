"""Which devices does a worker serve? Reads the setting FARM_DEVICES, and makes the device of an identity."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import parse_qs

from farm.devices import Backend, DeviceIdentity
from farm.errors import CudaUnavailable, NoSuchDevice, UnknownDeviceSelection
from farm.settings import settings
from workers.devices import cards
from workers.devices.base import Device
from workers.kernels.sources import Kernels, own_kernels

log = logging.getLogger(__name__)

_UUIDS = ("GPU-", "MIG-", "CPU-")


def discover(selection: str) -> list[DeviceIdentity]:
    """The devices that a selection names, each once, in its order. No context is created and CuPy is not imported.

    `auto`: every CUDA device, or where none can be used the CPU. `cpu`. `cuda`: every CUDA device. `recorded:FILE` and
    `recorded:FILE?scale=0.1`: a recording, answering after that share of the recorded time; `recorded:FILE?device=UUID`:
    those of its rows that were measured on that device. A UUID. Several with commas.

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
    if word == "cpu":
        return [_cpu()]
    if word == "cuda":
        return _cards()
    if word.startswith("recorded:"):
        return [_recording(word.removeprefix("recorded:"), selection)]
    if word.upper().startswith(_UUIDS):
        return [_named(word)]
    raise UnknownDeviceSelection(value=selection, why=f"{word!r} is none of the known words")


def _cpu() -> DeviceIdentity:
    from workers.devices import cpu  # imports NumPy

    return cpu.identify()


def _automatic() -> list[DeviceIdentity]:
    try:
        found = cards.find_cards()
    except CudaUnavailable as error:
        warn_of_unused_cards(error)
        found = []
    return found or [_cpu()]


def warn_of_unused_cards(error: CudaUnavailable) -> None:
    """Says why the CPU stands in for the cards of a host that has a driver for them."""
    if Path("/proc/driver/nvidia/version").exists():
        log.warning("this host has an NVIDIA driver, but the CPU is measured. %s", error)


def _cards() -> list[DeviceIdentity]:
    found = cards.find_cards()
    if not found:
        raise CudaUnavailable(
            why="the driver shows no card to this process. Look at nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    return found


def _named(uuid: str) -> DeviceIdentity:
    known = [_cpu()] if uuid.upper().startswith("CPU-") else cards.find_cards()
    for identity in known:
        if identity.uuid.lower() == uuid.lower():
            return identity
    raise NoSuchDevice(uuid=uuid, known=", ".join(identity.uuid for identity in known) or "no such devices")


def _recording(text: str, selection: str) -> DeviceIdentity:
    file, mark, query = text.partition("?")
    options = parse_qs(query, keep_blank_values=True, strict_parsing=False)
    unknown = sorted(set(options) - {"scale", "device"})
    if not file or unknown or (mark and not options):
        why = f"a recording has no option {', '.join(unknown)}" if unknown else "a recording is written recorded:FILE"
        raise UnknownDeviceSelection(value=selection, why=why)
    given = options.get("scale", ["0"])[-1]
    try:
        scale = float(given)
    except ValueError:
        scale = -1.0
    if not 0 <= scale <= 1000:
        raise UnknownDeviceSelection(value=selection, why=f"scale is {given!r}, and must be a number from 0 to 1000")
    from workers.devices import recorded  # imports Arrow

    return recorded.identify(Path(file), scale, options.get("device", [None])[-1])


def open_device(identity: DeviceIdentity, kernels: Kernels | None = None) -> Device:
    """The device of an identity, not opened yet. All it needs is in the identity, which may come from the database.

    Kernels that are built ahead of time come from `kernels`; without, from this host alone.
    """
    if identity.backend is Backend.CPU:
        from workers.devices.cpu import CpuDevice

        return CpuDevice(identity)
    if identity.backend is Backend.RECORDED:
        from workers.devices.recorded import RecordedDevice

        return RecordedDevice(identity)
    from workers.devices.cuda import CudaDevice  # imports CuPy when it is opened

    return CudaDevice(identity, kernels or own_kernels(settings()))
