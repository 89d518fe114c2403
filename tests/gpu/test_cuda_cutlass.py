"""CUTLASS kernels on a card: every type, layout, access width and slices of k, and what a row says of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from farm.campaign import load
from farm.errors import MeasurementFailed
from farm.gemm import Layout
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from support.quick import QUICK, launched_again
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

FILE = Path(__file__).with_name("cutlass.yaml")
TYPES = ["f32", "tf32", "f64", "f16", "f16:f16:f16", "f16:f32:f32", "bf16", "i8"]


@cache
def all_configurations() -> tuple[Configuration, ...]:
    return tuple(load(FILE, limit=10**5).expand())


def runnable(device: CudaDevice, *, types: str, layout: str) -> list[Configuration]:
    """The configurations of the file that this card can run. Skips where their kernels are not built here."""
    found = [
        c
        for c in all_configurations()
        if str(c.problem.types) == str(Configuration.parse(f"tiled() 8 {types}").problem.types)
        and c.problem.layout == layout
        and c.why_invalid(device.identity.traits) is None
    ]
    if not found:
        pytest.skip(f"no kernel for {types} {layout} exists on this card")
    for binary in {c.binary(device.identity.traits) for c in found}:
        assert binary is not None
        try:
            device._kernels.get(binary)
        except MeasurementFailed as error:
            pytest.skip(f"{error} conftest.py says how to build them.")
    return found


@pytest.fixture
def one(device: CudaDevice) -> Configuration:
    return runnable(device, types="f16", layout="nn")[0]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("layout", Layout)
def test_every_type_layout_and_slicing_is_right(device: CudaDevice, layout: str, types: str) -> None:
    for configuration in runnable(device, types=types, layout=layout):
        device.prepare(configuration)
        row = device.measure(configuration, QUICK)
        slices = dict(configuration.kernel.parameters)["split_k"]
        assert row.verify_error is not None
        assert row.verify_error <= error_bound(configuration.problem, roundings=slices) / 1.5, configuration
        assert row.details["timed_by"] == "graph"
        assert row.details["blocks_per_multiprocessor"] >= 1
        assert 0 < row.details["occupancy"] <= 1
        assert row.details["waves"] > 0
        assert row.details["registers"] > 0


@pytest.mark.parametrize("types", ["f32", "f16", "f64", "i8"])
def test_slices_of_k_leave_their_semaphores_as_they_were(device: CudaDevice, types: str) -> None:
    for configuration in runnable(device, types=types, layout="nt"):
        if dict(configuration.kernel.parameters)["split_k"] > 1:
            launched_again(device, configuration)


def test_power_is_measured(device: CudaDevice, one: Configuration) -> None:
    rules = MeasuringRules.model_validate({"power": "all"})
    row = device.measure(one, rules)
    assert row.power_w is None or row.power_w > 0


def test_the_same_kernel_twice_is_loaded_once(device: CudaDevice, one: Configuration) -> None:
    first, second = device.measure(one, QUICK), device.measure(one, QUICK)
    assert first.kernel_hash == second.kernel_hash
