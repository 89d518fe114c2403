"""CUTLASS 3.x kernels on a Hopper card. One takes a minute to compile: conftest.py says how to build them before."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.campaign import load
from farm.errors import KernelMissing, MeasurementFailed
from farm.kernels import Configuration
from support.quick import QUICK, launched_again
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

FEW = Path(__file__).parents[2] / "examples" / "campaigns" / "hopper-few.yaml"


@pytest.mark.parametrize("configuration", list(load(FEW, limit=1000).expand()), ids=str)
def test_every_type_layout_and_schedule_is_right(device: CudaDevice, configuration: Configuration) -> None:
    why = configuration.why_invalid(device.identity.traits)
    if why is not None:
        pytest.skip(why)
    try:
        row = device.measure(configuration, QUICK)
    except (KernelMissing, MeasurementFailed) as error:
        if "not built" not in str(error):
            raise
        pytest.skip(str(error))
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)
    assert row.details["blocks_per_multiprocessor"] >= 1
    assert row.details["waves"] > 0
    launched_again(device, configuration)
