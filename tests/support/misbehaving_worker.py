"""`farm-worker` on whose card a problem makes a kernel write to no address, one never ends, one needs more memory than
there is, and one is computed wrongly.

As a program it is `farm-worker`; what it starts for a device is this module again, in place of `workers.process`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.services.process_groups import ProcessGroup
from support.delegating import Delegating
from workers.devices import Device, open_device
from workers.devices.cuda_errors import cuda_errors
from workers.kernels.base import Placement
from workers.kernels.sources import Kernels
from workers.kernels.tiled import TILED_ENTRY, TiledFamily, TiledKernel
from workers.measure.explain import Explanation

ILLEGAL_M, ENDLESS_M, LARGE_M, WRONG_M = 111, 222, 333, 444
"""The problems with these m misbehave."""

KERNELS = r"""
extern "C" __global__ void illegal(float* p) { p[threadIdx.x] = 1.0f; }
extern "C" __global__ void endless(volatile int* go_on) { while (*go_on) {} }
"""
AS_A_DEVICE = "--as-a-device"


class MisbehavingCard(Delegating):
    """A real card, on which the CUDA of some problems is at fault."""

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        import cupy

        m = configuration.problem.shape.m
        with cuda_errors():
            if m == ILLEGAL_M:
                cupy.RawModule(code=KERNELS).get_function("illegal")((1,), (32,), (cupy.uint64(16),))
            elif m == ENDLESS_M:
                go_on = cupy.ones(1, dtype=cupy.int32)
                cupy.RawModule(code=KERNELS).get_function("endless")((1,), (1,), (go_on,))
            elif m == LARGE_M:
                cupy.empty(2**50, dtype=cupy.uint8)
            cupy.cuda.Device().synchronize()
        return super().measure(configuration, rules, explanation)


bind = TiledFamily.bind


def _bind(family: TiledFamily, configuration: Configuration, placement: Placement) -> Any:
    """A kernel that leaves out a product of one element, where it is asked for."""
    bound: Any = bind(family, configuration, placement)
    if configuration.problem.shape.m == WRONG_M:
        import cupy

        kernel = TiledKernel.of(configuration)
        right, wrong = "for (int i = 0; i < TILE; ++i)", "for (int i = (row == 5 && column == 9); i < TILE; ++i)"
        assert kernel.code.count(right) == 1
        module = cupy.RawModule(code=kernel.code.replace(right, wrong), options=kernel.options)
        bound._function = module.get_function(TILED_ENTRY)
    return bound


def _open(identity: DeviceIdentity, kernels: Kernels) -> Device:
    return MisbehavingCard(open_device(identity, kernels))


def _start(command: Sequence[str], **options: Any) -> Any:
    return ProcessGroup([sys.executable, "-m", "support.misbehaving_worker", AS_A_DEVICE], **options)


if AS_A_DEVICE in sys.argv or __name__ != "__main__":  # Celery's child imports this module under another name
    patch("workers.tasks.open_device", _open).start()
    patch.object(TiledFamily, "bind", _bind).start()

if __name__ == "__main__":
    if AS_A_DEVICE in sys.argv:
        from workers import process

        process.main()
    else:
        from workers import main

        with patch("workers.hosting.ProcessGroup", _start):
            main.main()
