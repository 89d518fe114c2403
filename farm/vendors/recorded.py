"""Recordings, which return the rows of the device that was recorded."""

from __future__ import annotations

from farm.devices import Backend
from farm.vendors.vendor import DeviceVendor


class Recorded(DeviceVendor):
    """A file of measurements is one device, of the kind of the device that was recorded."""

    backend = Backend.RECORDED
    kind = None
    worker = "workers.devices.recorded:RecordedDevice"
    finder = "workers.devices.recorded:find"
    word = "recorded:"
    type_prefix = "recorded-"
    uuid_prefixes = ("REC-",)

    def type_of(self, product_name: str) -> str:
        slug = super().type_of(product_name)
        return slug if self.has_type(slug) else self.type_prefix + slug

    def recorded_type(self, device_type: str) -> str:
        """The type of the device that was recorded. Other types are returned unchanged."""
        return device_type.removeprefix(self.type_prefix)

    def is_named_by(self, word: str) -> bool:
        """A recording is named by its file."""
        return word.startswith(self.word)
