"""The referee of users' kernels, on the card without a GPU: known cheats are refused, and honest kernels are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from farm.errors import InvalidOnDevice, KernelRefused
from farm.gpus import find_gpu
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from farm.measurement import Measurement
from farm.operands import OperandRules, operand_rules
from farm.protocols import ProtocolName
from support.fake_cuda import FakeCupy
from support.own_kernels import (
    CHEATS,
    ENTRY,
    HONEST,
    Call,
    OwnKernel,
    defined,
    plain,
    writes_another_d,
    writes_before_d,
    writes_behind_d,
    zeroes_its_inputs,
)
from support.quick import QUICK
from support.virtual_time import VirtualTime
from workers.devices import cuda_referee
from workers.devices.cuda import CudaDevice

PROBLEM = "64x64x64 f32 nn alpha=1.5 beta=0.5"


@pytest.fixture
def definition() -> Definition:
    """Known as long as the test runs."""
    return defined()


@pytest.fixture
def measured(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime, definition: Definition
) -> Callable[..., Measurement]:
    """Measures a kernel of a user."""

    def measure(run: Callable[[Call], None], problem: str = PROBLEM, rules: Any = QUICK) -> Measurement:
        cupy.own[ENTRY] = OwnKernel(run, virtual_time)
        configuration = Configuration.parse(f"source(definition={definition.id},BM=32,BN=16) {problem}")
        return device.measure(configuration, rules)

    return measure


@pytest.mark.parametrize("kernel", HONEST)
@pytest.mark.parametrize("problem", [PROBLEM, "48x32x80 f32 nn", "32x32x32 f32 nn alpha=1 beta=1 batch=3"])
def test_honest_kernels_are_measured(
    measured: Callable[..., Measurement], kernel: Callable[[Call], None], problem: str
) -> None:
    row = measured(kernel, problem)
    assert row.details["referee_ms"] == pytest.approx(row.runtime_ms, rel=0.02)
    assert (row.details["referee_samples"], row.result_digest) == (9, None)


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_are_refused(measured: Callable[..., Measurement], cheat: Callable[[Call], None]) -> None:
    with pytest.raises(KernelRefused) as refused:
        measured(cheat)
    assert re.fullmatch(CHEATS[cheat], refused.value.fields["check"]), str(refused.value)


def test_a_throughput_above_the_peak_of_the_card_is_refused(
    measured: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = find_gpu("nvidia-h200")
    assert card is not None
    slow = card.model_copy(update={"tflops": {"f32": 2 * 64**3 / 1e9 / 1.2}})  # the kernel takes 1 ms
    monkeypatch.setattr(cuda_referee, "find_gpu", lambda _: slow)
    with pytest.raises(KernelRefused, match=r"\(peak\): it reaches 0 TFLOP/s, and the card's peak for f32 is"):
        measured(plain)


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        (writes_before_d, "before the first D"),
        (writes_behind_d, "4,099 elements from the start of D of set 0"),
        (writes_another_d, "0 elements from the start of D of set"),
    ],
)
def test_a_refusal_names_where_a_kernel_writes(
    measured: Callable[..., Measurement], kernel: Callable[[Call], None], where: str
) -> None:
    with pytest.raises(KernelRefused, match=f"it writes outside of D: .*{where}"):
        measured(kernel)


def test_walks_are_queued_while_the_card_is_held(measured: Callable[..., Measurement], cupy: FakeCupy) -> None:
    measured(plain)
    assert cupy.held_ms == [cuda_referee.HOLD_MS] * 2 * cuda_referee.SAMPLES


def test_operands_of_each_measurement_are_others(measured: Callable[..., Measurement]) -> None:
    assert measured(plain).seed != measured(plain).seed


def test_a_cheat_harms_no_kernel_of_the_farm(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime, measured: Callable[..., Measurement]
) -> None:
    def gemm(a: Any, b: Any) -> Any:
        virtual_time.sleep(1e-3)
        return a @ b

    cupy.gemm = gemm
    before = device.measure(Configuration.parse("tiled(tile=16) 64x64x64 f32"), QUICK)
    for cheat in (zeroes_its_inputs, writes_another_d):
        with pytest.raises(KernelRefused):
            measured(cheat, "64x64x64 f32")
    after = device.measure(Configuration.parse("tiled(tile=16) 64x64x64 f32"), QUICK)
    assert (after.result_digest, after.verify_error) == (before.result_digest, before.verify_error)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"operands": OperandRules(distribution="ones")}, "and A is filled with ones"),
        ({"operands": operand_rules("b=zeros")}, "and B is filled with zeros"),
        ({"protocol": ProtocolName.DO_BENCH}, "under the protocol farm, not do-bench"),
    ],
)
def test_rules_that_let_kernels_guess_are_refused(
    measured: Callable[..., Measurement], rules: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidOnDevice, match=f"own kernels are measured .*{why}"):
        measured(plain, rules=QUICK.model_copy(update=rules))
