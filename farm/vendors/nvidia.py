"""NVIDIA's cards and MIG slices."""

from __future__ import annotations

from enum import IntFlag

from farm.devices import Backend, DeviceKind
from farm.vendors.vendor import DeviceVendor


class ClockEvent(IntFlag):
    """Why a card's clocks are not higher: bits of nvmlClocksEventReasons in nvml.h, without idle (0x1)."""

    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCK = 0x100


FAULTS = ClockEvent.HW_SLOWDOWN | ClockEvent.SW_THERMAL | ClockEvent.HW_THERMAL | ClockEvent.HW_POWER_BRAKE
"""What no GEMM on a healthy card causes: heat, and what the board or the power supply asks for."""


def event_names(bits: int) -> str:
    """The names of the events in a mask, with commas. `none` if there are none.

    >>> event_names(0x44)
    'sw_power_cap,hw_thermal'
    """
    return ",".join(str(event.name).lower() for event in ClockEvent if bits & event) or "none"


def events_named(names: str) -> int:
    """The mask that `event_names` made the names of. Other words have no bit."""
    given = names.upper().split(",")
    return sum(event for event in ClockEvent if event.name in given)


class Nvidia(DeviceVendor):
    """Types have no prefix of their own: most names begin with `NVIDIA`, some, such as `Tesla T4`, do not."""

    backend = Backend.CUDA
    kind = DeviceKind.CUDA
    worker = "workers.devices.cuda:CudaDevice"
    loads_kernels = True
    power_source = "workers.measure.power.nvml_power:NvmlPower"
    finder = "workers.devices.cards:find"
    word = "cuda"
    type_prefix = "nvidia-"
    uuid_prefixes = ("GPU-", "MIG-")

    def extra_for(self, driver: str) -> str:
        """The extra of this project whose CuPy runs on a driver. CUDA 13 needs 580 or later (CUDA Toolkit release notes)."""
        major = driver.partition(".")[0]
        return "cuda13" if not major.isdecimal() or int(major) >= 580 else "cuda12"

    def environment(self, uuid: str) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def advice_if_gone(self, host: str) -> str:
        return f"nvidia-smi on {host}: a card that fell off the bus takes a reset or a restart."

    def advice_on_power_limit(self, uuid: str, host: str, usual_w: float) -> str:
        return f"nvidia-smi -i {uuid} -pl {usual_w:.0f} on {host} sets it back, if the change was not intended."

    def advice_on_clocks(self, uuid: str, host: str) -> str:
        return f"nvidia-smi -i {uuid} -rgc and -rac on {host} set them back, if the change was not intended."
