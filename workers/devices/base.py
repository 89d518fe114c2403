"""What every device can do: be opened in one process, measure configurations there, and be closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from workers.measure.explain import Explanation

if TYPE_CHECKING:  # it imports NumPy, which a program that waits for work does not need
    from workers.measure.soak import Soak


class Device(Protocol):
    """One device, used by one process and one thread."""

    identity: DeviceIdentity

    def open(self) -> None:
        """Takes the device for this process: creates its context, reads what needs one.

        A CUDA device imports CuPy here and not before.
        """

    def prepare(self, configuration: Configuration) -> None:
        """Does what of measuring this configuration needs no device, such as compiling. Raises nothing of the farm's.

        Called from another thread, while the device may be measuring.
        """

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        """Verifies, times and, where the rules ask for it, measures the power of one configuration.

        An explanation is filled with what was seen on the way.

        Raises `InvalidOnDevice` where it can never run here, `WrongResult` where it computes something else,
        `MeasurementFailed` where it may work another time, and `DevicePoisoned` where this process must end.
        """

    def soak(self, configuration: Configuration, rules: MeasuringRules, seconds: float) -> Iterator[Soak]:
        """Keeps the device under load for that long, and compares digests of results. Yields now and then what was seen.

        Raises as `measure` does.
        """

    def canary(self) -> Configuration:
        """A small configuration that this device, once open, must be able to measure."""

    def sentinel(self) -> Configuration | None:
        """The configuration that this device measures now and then to notice drift; None where that makes no sense."""

    def close(self) -> None:
        """Gives back what `open` took."""
