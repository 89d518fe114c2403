"""The protocol of device vendors: facts about their devices that need no device (pure)."""

from __future__ import annotations

import re
from typing import ClassVar

from farm.devices import Backend, DeviceKind


class DeviceVendor:
    """Names, kernels and advice of one vendor's devices. Workers import what `worker`, `finder` and `power_source` name, as `module:name`."""

    backend: ClassVar[Backend]

    kind: ClassVar[DeviceKind | None]
    """What executes kernels. None if that differs between devices."""

    worker: ClassVar[str]
    """The class of `workers.devices.base.Device` that is made with an identity."""

    loads_kernels: ClassVar[bool] = False
    """Whether `worker` also takes the kernels that are built ahead of time."""

    finder: ClassVar[str]
    """The function that finds the devices of a word of FARM_DEVICES; it also takes the whole selection."""

    power_source: ClassVar[str | None] = None
    """The class of `workers.measure.power.source.PowerSource`; None if its devices measure no power."""

    word: ClassVar[str]
    """What selects all its devices in FARM_DEVICES."""

    type_prefix: ClassVar[str]
    """The prefix of normalised types that certainly belong to the vendor."""

    uuid_prefixes: ClassVar[tuple[str, ...]]

    queue_prefix: ClassVar[str] = "gpu."
    """The queue that all devices of a type serve is this prefix and the type."""

    locks_clocks: ClassVar[bool] = True
    """Whether a user can lock clocks, so that devices of one type should have one clock policy."""

    def type_of(self, product_name: str) -> str:
        """The normalised type of a product name."""
        name = re.sub(r"\((?:R|TM|C)\)|®|™", " ", product_name, flags=re.IGNORECASE)
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"

    def has_type(self, device_type: str) -> bool:
        """Whether a type certainly belongs to the vendor."""
        return device_type.startswith(self.type_prefix)

    def has_uuid(self, uuid: str) -> bool:
        """Whether a UUID, in upper or lower case, belongs to the vendor."""
        return uuid.upper().startswith(self.uuid_prefixes)

    def is_named_by(self, word: str) -> bool:
        """Whether a word of FARM_DEVICES names its devices."""
        return word == self.word or self.has_uuid(word)

    def environment(self, uuid: str) -> dict[str, str]:
        """Environment variables of a process that opens that device alone."""
        return {}

    # --- advice ----------------------------------------------------------------------------------------

    def advice_if_gone(self, host: str) -> str:
        return f"farm doctor on {host}."

    def advice_on_power_limit(self, uuid: str, host: str, usual_w: float) -> str:
        return f"Set its power limit back on {host}, if the change was not intended."

    def advice_on_clocks(self, uuid: str, host: str) -> str:
        return f"Set its clocks back on {host}, if the change was not intended."
