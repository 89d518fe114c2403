"""NVML, which only this module calls: the cards of a host, and their telemetry.

Cards are found by UUID, because CUDA and NVML number them differently. Values that a card does not support are None, and are
read only once. `pynvml` is imported when a session opens.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from farm.errors import CudaUnavailable, DevicePoisoned, FarmError, MeasurementFailed
from farm.installing import INSTALL

log = logging.getLogger(__name__)

SETTINGS_SECONDS = 1.0
"""A card's settings, which its administrator may change, are read this often at most."""


class Meaning(Enum):
    """What a return code of NVML means for the farm."""

    SILENT = "this card, driver or slice does not support it"
    NO_MORE = "not found"
    GONE = "the card is lost or must be reset: this process must end"
    NO_DRIVER = "the driver is not there, or another one than this library's"
    FAILED = "this call failed, another may work"


_CODES: Mapping[int, tuple[str, Meaning]] = {
    1: ("uninitialized", Meaning.NO_DRIVER),
    2: ("invalid argument", Meaning.SILENT),  # of a MIG slice: what only whole cards have
    3: ("not supported", Meaning.SILENT),
    4: ("no permission", Meaning.SILENT),
    6: ("not found", Meaning.NO_MORE),
    7: ("insufficient size", Meaning.FAILED),
    8: ("insufficient external power", Meaning.GONE),
    9: ("driver not loaded", Meaning.NO_DRIVER),
    10: ("timeout", Meaning.FAILED),
    11: ("interrupt request issue", Meaning.GONE),
    12: ("library not found", Meaning.NO_DRIVER),
    13: ("function not found", Meaning.SILENT),
    14: ("corrupted inforom", Meaning.FAILED),
    15: ("GPU is lost", Meaning.GONE),
    16: ("reset required", Meaning.GONE),
    17: ("blocked by the operating system", Meaning.FAILED),
    18: ("driver/library version mismatch", Meaning.NO_DRIVER),
    19: ("in use", Meaning.FAILED),
    20: ("insufficient memory", Meaning.FAILED),
    21: ("no data", Meaning.SILENT),
    22: ("vGPU ECC not supported", Meaning.SILENT),
    24: ("frequency not supported", Meaning.SILENT),
    25: ("argument version mismatch", Meaning.SILENT),
    26: ("deprecated", Meaning.SILENT),
    27: ("not ready", Meaning.FAILED),
    28: ("GPU not found", Meaning.GONE),
    29: ("invalid state", Meaning.FAILED),
}
"""The codes of nvmlReturn_t in nvml.h, and what they mean here. All others, 999 (unknown) among them, have failed."""


def meaning_of(code: int) -> Meaning:
    """What a code of nvmlReturn_t means."""
    return _CODES[code][1] if code in _CODES else Meaning.FAILED


def as_farm_error(code: int, what: str) -> FarmError:
    """The farm's error for a code. `what` names the call and has NVML's message."""
    match meaning_of(code):
        case Meaning.GONE:
            return DevicePoisoned(why=what)
        case Meaning.NO_DRIVER:
            return CudaUnavailable(why=f"NVIDIA's driver does not answer: {what}. nvidia-smi should list the cards.")
        case _:
            return MeasurementFailed(why=what)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """One reading of a card. None: not supported."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    clock_events: int | None = None  # bits of `farm.vendors.nvidia.ClockEvent`


class Nvml:
    """A session with the driver. Raises `CudaUnavailable` where there is no driver or no `pynvml`."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise CudaUnavailable(
                why=f"nvidia-ml-py is not installed. {INSTALL['cuda13']}, or cuda12 for drivers before 580."
            ) from None
        self.library: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise CudaUnavailable(
                why=f"NVIDIA's driver does not answer: {error}. nvidia-smi on this host should list the cards."
            ) from None

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.library.nvmlShutdown()

    def ask(self, function: str, *arguments: Any, or_none: Container[Meaning] = (Meaning.SILENT,)) -> Any:
        """Calls an NVML function by name. None if it is not supported, or if the return code has one of those meanings.

        Raises `DevicePoisoned` for a card that is lost, `CudaUnavailable` if the driver is gone, and `MeasurementFailed`
        for any other error.
        """
        call = getattr(self.library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self.library.NVMLError as error:
            code = int(getattr(error, "value", -1))
            if meaning_of(code) in or_none:
                return None
            raise as_farm_error(code, f"{function}: {error}") from None

    @property
    def driver(self) -> str:
        """The version of the driver, as in 580.159.04."""
        return _text(self.ask("nvmlSystemGetDriverVersion"))

    def cards(self) -> list[Card]:
        """Every card in the driver's order, without those that are lost; one with MIG on as its slices."""
        found: list[Card] = []
        for index in range(int(self.ask("nvmlDeviceGetCount") or 0)):
            try:
                found += self._cards_at(index)
            except DevicePoisoned as error:
                log.warning("card %d of this host is lost: %s", index, error)
        return found

    def _cards_at(self, index: int) -> list[Card]:
        handle = self.ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:  # another user's card, in a container
            return []
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        if mode is not None and mode[0] == 1:
            return self._slices(handle)
        return [Card(self, handle, parent=None)]

    def _slices(self, parent: Any) -> list[Card]:
        found: list[Card] = []
        for index in range(int(self.ask("nvmlDeviceGetMaxMigDeviceCount", parent) or 0)):
            handle = self.ask(
                "nvmlDeviceGetMigDeviceHandleByIndex", parent, index, or_none=(Meaning.SILENT, Meaning.NO_MORE)
            )
            if handle is not None:  # numbers of slices have gaps
                found.append(Card(self, handle, parent=parent))
        return found

    def card(self, uuid: str) -> Card:
        """The card or slice of that UUID. Raises `CudaUnavailable`."""
        for card in self.cards():
            if card.uuid == uuid:
                return card
        raise CudaUnavailable(why=f"the driver does not know the card {uuid} any more.")


class Card:
    """A card or a MIG slice. Clocks, temperature and limits are those of the whole card."""

    def __init__(self, nvml: Nvml, handle: Any, parent: Any | None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._whole = handle if parent is None else parent
        self._silent: set[str] = set()
        self._application_clocks: tuple[int | None, int | None] = (None, None)
        self._application_clocks_s = -math.inf  # of `time.monotonic`: when they were read
        self.is_slice = parent is not None
        self.uuid = _text(nvml.ask("nvmlDeviceGetUUID", handle))
        self.name = _text(nvml.ask("nvmlDeviceGetName", handle))

    def _ask(self, function: str, *arguments: Any, whole: bool = True) -> Any:
        """As `Nvml.ask`, but a call that is not supported is not repeated, because some calls take milliseconds."""
        key = f"{function}{arguments}"
        if key in self._silent:
            return None
        value = self._nvml.ask(function, self._whole if whole else self._handle, *arguments)
        if value is None:
            self._silent.add(key)
        return value

    @property
    def memory_bytes(self) -> int:
        info = self._ask("nvmlDeviceGetMemoryInfo", whole=False)
        return 0 if info is None else int(info.total)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        found = self._ask("nvmlDeviceGetCudaComputeCapability")
        return None if found is None else (int(found[0]), int(found[1]))

    @property
    def multiprocessors(self) -> int | None:
        """Of a MIG slice. NVML does not have it for whole cards."""
        found = self._ask("nvmlDeviceGetAttributes", whole=False) if self.is_slice else None
        return None if found is None else int(found.multiprocessorCount)

    @property
    def pci_bus_id(self) -> str | None:
        """As in 0000:0b:00.0, the form CUDA uses, in lower case."""
        info = self._ask("nvmlDeviceGetPciInfo")
        return None if info is None else re.sub(r"^[0-9a-f]{4}(?=[0-9a-f]{4}:)", "", _text(info.busId).lower())

    @property
    def power_limit_w(self) -> float | None:
        found = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return None if found is None else found / 1e3

    @property
    def default_power_limit_w(self) -> float | None:
        """The default limit of the card, independent of the limit that is enforced."""
        found = self._ask("nvmlDeviceGetPowerManagementDefaultLimit")
        return None if found is None else found / 1e3

    @property
    def slowdown_c(self) -> float | None:
        """The temperature at which the driver begins to slow the card down."""
        kind = getattr(self._nvml.library, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", 1)
        found = self._ask("nvmlDeviceGetTemperatureThreshold", kind)
        return float(found) if found else None

    @property
    def resting_power_w(self) -> float | None:
        """The power of the idle card. None while any process computes on it, and if the card does not support it."""
        used = None if self.is_slice else self._ask("nvmlDeviceGetUtilizationRates")
        if used is None or used.gpu > 0:
            return None
        now = self.instant_power_w()
        if now is None:  # without that field this is not an average, or the card has been idle for long
            found = self._ask("nvmlDeviceGetPowerUsage")
            now = None if found is None else found / 1e3
        return now

    def total_energy_mj(self) -> int | None:
        """Millijoules since the driver was loaded, in steps of about 100 ms. None for a slice, because it counts the whole card."""
        found = None if self.is_slice else self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if found is None else int(found)

    def instant_power_w(self) -> float | None:
        """The present power, which the driver reads about every 100 ms. None for a slice."""
        field = getattr(self._nvml.library, "NVML_FI_DEV_POWER_INSTANT", None)
        if self.is_slice or field is None:
            return None
        found = self._ask("nvmlDeviceGetFieldValues", [field])
        if found is None or int(found[0].nvmlReturn) != 0:
            return None
        return float(found[0].value.uiVal) / 1e3

    def power_samples(self, since_us: int) -> list[tuple[int, float]]:
        """The driver's ring of power samples after a time: (microseconds of the wall clock, watts)."""
        if self.is_slice:
            return []
        kind = getattr(self._nvml.library, "NVML_TOTAL_POWER_SAMPLES", 0)
        # Without a sample since then NVML returns "not found". That must not prevent the next call, so `_ask` is not used.
        try:
            found = self._nvml.ask("nvmlDeviceGetSamples", self._handle, kind, since_us)
        except MeasurementFailed:
            return []
        return [] if found is None else [(int(s.timeStamp), s.sampleValue.uiVal / 1e3) for s in found[1]]

    def telemetry(self) -> Telemetry:
        library = self._nvml.library
        clocks = [
            self._ask("nvmlDeviceGetClockInfo", getattr(library, name, number))
            for name, number in (("NVML_CLOCK_SM", 1), ("NVML_CLOCK_MEM", 2))
        ]
        events = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if events is None:  # the name before driver 535
            events = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Telemetry(
            sm_clock_mhz=clocks[0],
            memory_clock_mhz=clocks[1],
            temperature_c=self._ask("nvmlDeviceGetTemperature", getattr(library, "NVML_TEMPERATURE_GPU", 0)),
            clock_events=events,
        )

    @property
    def application_clocks_mhz(self) -> tuple[int | None, int | None]:
        """The SM clock set for applications, and the one that is set by default; None where the card has none.

        Read at most every `SETTINGS_SECONDS`, since that takes two milliseconds.
        """
        if time.monotonic() - self._application_clocks_s > SETTINGS_SECONDS:
            clock = getattr(self._nvml.library, "NVML_CLOCK_SM", 1)
            self._application_clocks = (
                self._ask("nvmlDeviceGetApplicationsClock", clock),
                self._ask("nvmlDeviceGetDefaultApplicationsClock", clock),
            )
            self._application_clocks_s = time.monotonic()
        return self._application_clocks
