"""`farm-worker` that serves this machine's CPU as several devices of one type. The first of them flips bits of some results.

As a program it is `farm-worker`; what it starts for a device is this module again, in place of `workers.process`.
FARM_TEST_FAULT says when bits flip: `first` flips one of the first launch of each measurement, `always` the same one of
every launch. Verification sees neither: the bit is the lowest of an element.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.services.process_groups import ProcessGroup
from workers.device_watcher import DeviceWatcher, Scan
from workers.devices import Device, open_device
from workers.kernels.base import CpuKernel
from workers.kernels.blas import BlasFamily
from workers.kernels.sources import Kernels

FAULT, DEVICES = "FARM_TEST_FAULT", "FARM_TEST_DEVICES"
FAULTY_K = 40
"""Problems with this k are computed wrongly: neither the canary nor the sentinel is one."""

AS_A_DEVICE = "--as-a-device"
_scan, _bind = DeviceWatcher.scan, BlasFamily.bind


def uuids(identity: DeviceIdentity, count: int) -> list[str]:
    """UUIDs of the devices that a machine's CPU is served as; the first one is faulty."""
    return [f"{identity.uuid}-{number}" for number in range(count)]


def _several(watcher: DeviceWatcher) -> Scan:
    scan = _scan(watcher)
    count = int(os.environ[DEVICES])
    return replace(scan, found=[replace(one, uuid=uuid) for one in scan.found for uuid in uuids(one, count)])


@contextmanager
def _faulty(family: BlasFamily, configuration: Configuration) -> Iterator[CpuKernel]:
    with _bind(family, configuration) as kernel:
        launches = iter(range(10**9))

        def multiply(a: Any, b: Any, out: Any) -> None:
            kernel.multiply(a, b, out)
            if os.environ[FAULT] == "always" or next(launches) == 0:
                out[1:2, 2:3].view(np.uint32)[...] ^= 1

        yield replace(kernel, multiply=multiply) if configuration.problem.shape.k == FAULTY_K else kernel


def _open(identity: DeviceIdentity, kernels: Kernels) -> Device:
    if identity.uuid.endswith("-0"):
        patch.object(BlasFamily, "bind", _faulty).start()
    return open_device(identity, kernels)


def _start(command: Sequence[str], **options: Any) -> Any:
    return ProcessGroup([sys.executable, "-m", "support.corrupting_worker", AS_A_DEVICE], **options)


if AS_A_DEVICE in sys.argv or __name__ != "__main__":  # Celery's child imports this module under another name
    patch("workers.tasks.open_device", _open).start()

if __name__ == "__main__":
    if AS_A_DEVICE in sys.argv:
        from workers import process

        process.main()
    else:
        from workers import main

        with patch("workers.hosting.ProcessGroup", _start), patch.object(DeviceWatcher, "scan", _several):
            main.main()
