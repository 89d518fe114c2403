"""Vendors of devices: one vendor in one module, registered here (pure)."""

from __future__ import annotations

from farm.devices import Backend, DeviceKind
from farm.vendors.cpu import Cpu
from farm.vendors.nvidia import Nvidia
from farm.vendors.recorded import Recorded
from farm.vendors.vendor import DeviceVendor

NVIDIA, CPU, RECORDED = Nvidia(), Cpu(), Recorded()

VENDORS: dict[Backend, DeviceVendor] = {vendor.backend: vendor for vendor in (CPU, NVIDIA, RECORDED)}


def device_type_of(product_name: str, backend: Backend) -> str:
    """The normalised type of a product name.

    >>> device_type_of("NVIDIA GeForce RTX 4070", Backend.CUDA)
    'nvidia-geforce-rtx-4070'
    >>> device_type_of("NVIDIA H200 MIG 1g.18gb", Backend.CUDA)
    'nvidia-h200-mig-1g-18gb'
    >>> device_type_of("Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz", Backend.CPU)
    'cpu-intel-xeon-platinum-8488c'
    """
    return VENDORS[backend].type_of(product_name)


def vendor_of_type(device_type: str) -> DeviceVendor:
    """The vendor of a type. For a recording, the vendor of the recorded device. NVIDIA if the type names no vendor."""
    named = RECORDED.recorded_type(device_type)
    return next((vendor for vendor in VENDORS.values() if vendor.kind and vendor.has_type(named)), NVIDIA)


def vendor_of_kind(kind: DeviceKind) -> DeviceVendor:
    """The vendor of the devices that a kind of kernel runs on."""
    return next(vendor for vendor in VENDORS.values() if vendor.kind is kind)


def kind_named_by(name: str) -> DeviceKind | None:
    """The kind of device that a type (`cpu-amd-epyc`) or UUID (`GPU-…`) is certain to be, if any."""
    named = RECORDED.recorded_type(name)
    for vendor in VENDORS.values():
        if vendor.has_type(named) or name.startswith(vendor.uuid_prefixes):
            return vendor.kind
    return None
