"""Triton kernels on a card: every type, layout, batch, scale and fusion, whole and ragged tiles, and what a row says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from farm.campaign import load
from farm.errors import ElementNotWritten, WrongResult
from farm.fusion import Fusion
from farm.gemm import ElementTypes
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.operands import OperandRules
from farm.scale import SCALES_OF_BOTH, Scale
from support import quick
from support.quick import QUICK, launched_again
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import poison
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound

FILE = Path(__file__).with_name("triton.yaml")
TYPES = [
    "f16", "f16:f16:f16", "f16:f32:f32", "bf16", "tf32", "f32", "i8", "f8e4m3", "f8e5m2", "f8e4m3e5m2", "f8e5m2e4m3:f16:f32",
]  # fmt: skip


@cache
def all_configurations() -> tuple[Configuration, ...]:
    return tuple(load(FILE, limit=10**5).expand())


@pytest.fixture(scope="module")
def built(device: CudaDevice) -> Mapping[Binary, str | None]:
    """Of the file."""
    return quick.built(device, all_configurations())


def runnable(
    device: CudaDevice, built: Mapping[Binary, str | None], wanted: Callable[[Configuration], bool]
) -> list[Configuration]:
    traits, found = device.identity.traits, list[Configuration]()
    for configuration in all_configurations():
        if wanted(configuration) and configuration.why_invalid(traits) is None:
            binary = configuration.binary(traits)
            assert binary is not None
            assert built[binary] is None, configuration
            found.append(configuration)
    if not found:
        pytest.skip("no such kernel exists on this card")
    return found


def is_plain(configuration: Configuration) -> bool:
    return configuration.problem.scale is Scale.NONE and configuration.problem.fused is Fusion.NONE


def measured(device: CudaDevice, configurations: list[Configuration]) -> None:
    wrong = []
    for configuration in configurations:
        try:
            row = device.measure(configuration, QUICK)
        except (WrongResult, ElementNotWritten) as error:
            wrong.append(f"{configuration}: {error}")
            continue
        assert row.verify_error is not None
        if row.verify_error > error_bound(configuration.problem) / 1.5:
            wrong.append(f"{configuration}: its error {row.verify_error} is close to the bound")
        assert row.details["timed_by"] == "graph"
        assert row.details["blocks_per_multiprocessor"] >= 1
        assert row.details["waves"] > 0
    assert wrong == []


@pytest.mark.parametrize("types", TYPES)
def test_every_type_layout_batch_and_tile_is_right(
    device: CudaDevice, built: Mapping[Binary, str | None], types: str
) -> None:
    known = ElementTypes.parse(types)
    measured(device, runnable(device, built, lambda c: c.problem.types == known and is_plain(c)))


@pytest.mark.parametrize("scale", [scale for scale in SCALES_OF_BOTH if scale is not Scale.NONE])
def test_scale_factors_are_right(device: CudaDevice, built: Mapping[Binary, str | None], scale: Scale) -> None:
    measured(device, runnable(device, built, lambda c: c.problem.scale is scale))


@pytest.mark.parametrize("fused", [fused for fused in Fusion if fused is not Fusion.NONE and not fused.gated])
def test_fused_operations_are_right(device: CudaDevice, built: Mapping[Binary, str | None], fused: Fusion) -> None:
    measured(device, runnable(device, built, lambda c: c.problem.fused is fused))


def test_wrong_and_missing_elements_are_found(device: CudaDevice, built: Mapping[Binary, str | None]) -> None:
    rules = OperandRules(seed=3)
    configuration = runnable(device, built, lambda c: c.problem.batch == 3 and is_plain(c))[0]
    problem = configuration.problem
    with device.replaying(configuration, rules):
        operands = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 1, rules).views(0)
        right = operands.d.copy()
        device._verifier.begin(problem, operands, rules)()
        operands.d[1, 17, 130] += 100
        with pytest.raises(WrongResult):
            device._verifier.begin(problem, operands, rules)()
        operands.d[:] = right
        operands.d[2, 527, 399] = poison(problem.types.cd)
        with pytest.raises(ElementNotWritten):
            device._verifier.begin(problem, operands, rules)()


def test_a_kernel_that_is_launched_again_computes_the_same(
    device: CudaDevice, built: Mapping[Binary, str | None]
) -> None:
    for configuration in runnable(device, built, lambda c: c.problem.types.ab == "bf16" and is_plain(c))[:4]:
        launched_again(device, configuration)


def test_the_same_kernel_twice_is_loaded_once(device: CudaDevice, built: Mapping[Binary, str | None]) -> None:
    one = runnable(device, built, is_plain)[0]
    first, second = device.measure(one, QUICK), device.measure(one, QUICK)
    assert first.kernel_hash == second.kernel_hash
    assert first.details["triton"]
