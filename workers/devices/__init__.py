"""The devices that measure: `cuda`, `cpu` and `recorded`, behind one interface."""

from workers.devices.base import Device
from workers.devices.discovery import discover, open_device

__all__ = ["Device", "discover", "open_device"]
