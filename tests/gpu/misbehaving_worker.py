"""`farm-worker` on whose card one problem makes a kernel write to no address, and another one never ends.

As a program it is `farm-worker`; what it starts for a device is this module again, in place of `workers.process`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from delegating import Delegating

from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.services.processes import start_guarded
from workers.devices import Device, open_device
from workers.devices.cuda_errors import cuda_errors
from workers.measure.explain import Explanation

ILLEGAL_M, ENDLESS_M = 111, 222
"""The problems with these m misbehave."""

KERNELS = r"""
extern "C" __global__ void illegal(float* p) { p[threadIdx.x] = 1.0f; }
extern "C" __global__ void endless(volatile int* go_on) { while (*go_on) {} }
"""
AS_A_DEVICE = "--as-a-device"


class MisbehavingCard(Delegating):
    """A real card; two problems run real kernels that no card survives."""

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        if configuration.problem.shape.m in (ILLEGAL_M, ENDLESS_M):
            import cupy

            module = cupy.RawModule(code=KERNELS)
            with cuda_errors():
                if configuration.problem.shape.m == ILLEGAL_M:
                    module.get_function("illegal")((1,), (32,), (cupy.uint64(16),))
                else:
                    module.get_function("endless")((1,), (1,), (cupy.ones(1, dtype=cupy.int32),))
                cupy.cuda.Device().synchronize()
        return super().measure(configuration, rules, explanation)


def _open(identity: DeviceIdentity) -> Device:
    return MisbehavingCard(open_device(identity))


def _start(command: Sequence[str], **options: Any) -> Any:
    return start_guarded([sys.executable, __file__, AS_A_DEVICE], **options)


if AS_A_DEVICE in sys.argv or __name__ != "__main__":  # Celery's child imports this module under another name
    patch("workers.tasks.open_device", _open).start()

if __name__ == "__main__":
    if AS_A_DEVICE in sys.argv:
        from workers import process

        process.main()
    else:
        from workers import main

        with patch("workers.hosting.start_guarded", _start):
            main.main()
