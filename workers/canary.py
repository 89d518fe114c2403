"""The canary and the sentinel of a device.

A new process must measure one small configuration, the canary, before it takes a job. Between batches it measures a fixed
configuration, the sentinel. Its times show drift of the device, and differences between hosts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from farm.errors import CanaryFailed, DevicePoisoned, FarmError, InvalidOnDevice
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules, Source, TimingRules
from workers.devices import Device

log = logging.getLogger(__name__)

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


SENTINEL_RULES = MeasuringRules(
    timing=TimingRules(target_rse=0.003, min_samples=10, max_seconds=0.1, warmup_seconds=0.05), job_seconds=30.0
)
"""A tenth of a second of samples: of its mean, 0.3% is far below the drift that is looked for."""

SENTINEL_SECONDS = 30.0
"""Minimum time between two sentinels. They take under 1% of a device's time, also if jobs are short."""


class Sentinel:
    """The fixed GEMM that a device measures now and then, and when it is due.

    It is due at the first batch of each campaign that this process works for, and then after `every_jobs` jobs that were
    measured, but not sooner than `SENTINEL_SECONDS` after the last one. Never where `every_jobs` is 0, or where the device
    has no sentinel. `clock` gives seconds and never goes backwards.
    """

    def __init__(self, device: Device, *, every_jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._every_jobs = every_jobs
        self._clock = clock
        self._configuration = device.sentinel() if every_jobs else None
        self._campaigns = set[int]()
        self._jobs, self._last = 0, -math.inf
        self.in_hand = False

    def count(self, jobs: int) -> None:
        """So many jobs were measured."""
        self._jobs += jobs

    def is_due(self, campaign_id: int) -> bool:
        """Whether it is to be measured before the next job of that campaign."""
        if self._configuration is None:
            return False
        if campaign_id not in self._campaigns:
            return True
        return self._jobs >= self._every_jobs and self._clock() - self._last >= SENTINEL_SECONDS

    def measure(self, campaign_id: int) -> tuple[Configuration, Measurement] | None:
        """The configuration and its row. None where it failed, which is logged; what can never run is not tried again.

        Raises `DevicePoisoned`: then `in_hand` stays true.
        """
        assert self._configuration is not None, "ask is_due before"
        self._campaigns.add(campaign_id)
        self._jobs, self._last = 0, self._clock()
        self.in_hand = True
        try:
            row = self._device.measure(self._configuration, SENTINEL_RULES)
        except DevicePoisoned:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, FarmError) else f"{type(error).__name__}: {error}"
            log.warning("the sentinel failed: %s", why, extra={"campaign_id": campaign_id})
            if isinstance(error, InvalidOnDevice):
                self._configuration = None
            self.in_hand = False
            return None
        self.in_hand = False
        return self._configuration, replace(row, source=Source.SENTINEL)
