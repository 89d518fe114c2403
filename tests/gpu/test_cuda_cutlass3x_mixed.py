"""CUTLASS 3.x kernels on a Hopper card: weights of fewer bits than the activations, with and without factors."""

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

CONFIGURATIONS = list(load(Path(__file__).with_name("cutlass3x_mixed.yaml"), limit=10_000).expand())


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


@pytest.mark.parametrize("m", [1, 16, 4096])
def test_layers_of_a_model_are_measured_and_verified(
    device: CudaDevice, built: Mapping[Binary, str | None], m: int
) -> None:
    configuration = supported(device, f"cutlass3x(swap=1) {m}x4096x4096 bf16i4 nt scale=none:1x128")
    row = device.measure(configuration, QUICK)
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)
