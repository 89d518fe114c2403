"""The devices that measure: `cuda`, `cpu` and `recorded`, behind one interface.

Each is imported when it is opened or looked for: the parent of a device's worker holds no array library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from workers.devices.base import Device
    from workers.devices.discovery import discover, open_device

__getattr__ = names_of(__name__)
