"""Is this device fit to work? A fresh process proves it on one small configuration before it takes any job."""

from __future__ import annotations

import math

from farm.errors import CanaryFailed, FarmError
from farm.measurement import MeasuringRules, TimingRules
from workers.devices import Device

RULES = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.1, warmup_seconds=0.005))


def prove(device: Device) -> None:
    """Measures the canary of an open device, which verifies what it computes.

    Takes under half a second; on a card some seconds once for each host, where CuPy compiles kernels of its own.

    Raises `CanaryFailed` for every error, because no configuration asks less of a device, and for a runtime that
    cannot be. Its `__cause__` is the error of the device: after `DevicePoisoned` a fresh process may still do well.
    """
    canary = device.canary()
    try:
        row = device.measure(canary, RULES)
    except Exception as error:
        why = str(error) if isinstance(error, FarmError) else f"{type(error).__name__}: {error}"
        raise CanaryFailed(configuration=canary, why=why) from error
    for name in ("runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms"):
        value = getattr(row, name)
        if not (math.isfinite(value) and value > 0):
            raise CanaryFailed(configuration=canary, why=f"{name} is {value}")
