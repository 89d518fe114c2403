"""CUTLASS 3.x kernels on a Hopper card: batches, fused operations, scale factors, groups, and weights of few bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from farm.campaign import load
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from support import quick
from support.quick import QUICK, assert_wide_product, launched_again, supported
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

CONFIGURATIONS = [
    configuration
    for name in ("cutlass3x_kinds", "cutlass3x_mixed")
    for configuration in load(Path(__file__).with_name(f"{name}.yaml"), limit=10_000).expand()
]


@pytest.fixture(scope="module")
def built(device: CudaDevice) -> Mapping[Binary, str | None]:
    return quick.built(device, CONFIGURATIONS)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_results_are_those_of_a_wide_product(
    device: CudaDevice, built: Mapping[Binary, str | None], configuration: Configuration
) -> None:
    supported(device, str(configuration))
    binary = configuration.binary(device.identity.traits)
    assert binary is not None
    assert built[binary] is None
    assert_wide_product(device, configuration)
    launched_again(device, configuration)


@pytest.mark.parametrize(
    "text",
    [
        "cutlass3x() 528x400x272 f16 nt batch=3",
        "cutlass3x() 528x400x400 bf16 nt groups=0,64,0*2,136,4,0,324",
        "cutlass3x(tile_k=128) 528x400x1040 f8e4m3 nt scale=1x128:128x128",
        "cutlass3x(swap=1) 1x4096x4096 bf16i4 nt scale=none:1x128",
        "cutlass3x(swap=1) 16x4096x4096 bf16i4 nt scale=none:1x128",
        "cutlass3x(swap=1) 4096x4096x4096 bf16i4 nt scale=none:1x128",
    ],
)
def test_a_row_has_what_was_launched(device: CudaDevice, built: Mapping[Binary, str | None], text: str) -> None:
    configuration = supported(device, text)
    row = device.measure(configuration, QUICK)
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)
    assert row.details["blocks_per_multiprocessor"] >= 1
    assert row.details["waves"] > 0
    assert (row.details["workspace_bytes"] > 0) == (configuration.problem.groups is not None)
