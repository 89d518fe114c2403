"""A device that does what another one does, for tests to change a part of."""

from __future__ import annotations

from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from workers.devices import Device
from workers.measure.explain import Explanation


class Delegating:
    """All of `Device`, done by the device within."""

    def __init__(self, device: Device) -> None:
        self.identity = device.identity
        self._device = device

    def open(self) -> None:
        self._device.open()

    def close(self) -> None:
        self._device.close()

    def canary(self) -> Configuration:
        return self._device.canary()

    def sentinel(self) -> Configuration | None:
        return self._device.sentinel()

    def prepare(self, configuration: Configuration) -> None:
        self._device.prepare(configuration)

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        return self._device.measure(configuration, rules, explanation)
