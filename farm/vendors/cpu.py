"""Processors of hosts."""

from __future__ import annotations

import re

from farm.devices import Backend, DeviceKind
from farm.vendors.vendor import DeviceVendor


class Cpu(DeviceVendor):
    """A host is one device, with all its processors."""

    backend = Backend.CPU
    kind = DeviceKind.CPU
    worker = "workers.devices.cpu:CpuDevice"
    power_source = "workers.measure.power.rapl_power:RaplPower"
    finder = "workers.devices.cpu:find"
    word = "cpu"
    type_prefix = "cpu-"
    uuid_prefixes = ("CPU-",)
    locks_clocks = False  # the clock policy of a CPU names a governor

    def type_of(self, product_name: str) -> str:
        """Without its frequency and number of cores, which hosts write in different ways."""
        name = re.sub(r"@.*$|\b\d+-Core\b|\b(?:CPU|Processor)\b", " ", product_name, flags=re.IGNORECASE)
        slug = super().type_of(name)
        return slug if self.has_type(slug) else self.type_prefix + slug
