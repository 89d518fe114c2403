"""Batches of products on a card: cuBLASLt's strided batches are right, and what computes other matrices is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.gemm import Layout
from farm.kernels import Configuration
from farm.operands import OperandRules
from support.quick import QUICK, supported
from workers.devices import cuda_verify
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.digest import digest
from workers.measure.elements import poison
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound, verify

TYPES = ["f64", "f32", "tf32", "f16", "f16:f32:f32", "bf16", "i8", "f8e4m3", "f8e4m3e5m2"]
SIZES = {"every element": "64x48x32", "groups": "512x320x256"}
ASKED = QUICK.model_copy(update={"determinism": True})


def large_enough(shape: str, types: str) -> str:
    """cuBLASLt has batches of small matrices of i8 in layout nt only."""
    return "128x128x128" if (shape, types) == (SIZES["every element"], "i8") else shape


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
def test_batches_of_every_type_and_layout_are_right(
    device: CudaDevice, shape: str, batch: int, layout: str, types: str
) -> None:
    for scalars in ("", "alpha=2 beta=-1" if types == "i8" else "alpha=1.5 beta=0.5"):
        problem = f"{large_enough(shape, types)} {types} {layout} {scalars} batch={batch}"
        configuration = supported(device, f"cublaslt() {problem}")
        row = device.measure(configuration, QUICK)
        assert row.verify_error is not None
        assert row.verify_error <= error_bound(configuration.problem) / 1.5


@pytest.mark.parametrize("types", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("text", ["1x1x1 {} batch=1000", "3x5x7 {} tt batch=70000", "17x131x67 {} nt batch=33"])
def test_odd_and_many_matrices_are_right(device: CudaDevice, text: str, types: str) -> None:
    row = device.measure(supported(device, f"cublaslt() {text.format(types)}"), QUICK)
    assert row.verify_error is not None


def test_a_batch_that_it_does_not_support_is_invalid_and_harms_nothing(device: CudaDevice) -> None:
    with pytest.raises(InvalidOnDevice):
        device.measure(Configuration.parse("cublaslt() 257x131x67 i8 batch=3"), QUICK)
    assert device.measure(Configuration.parse("cublaslt() 64x64x64 f32 batch=3"), QUICK).runtime_ms > 0


@pytest.mark.parametrize("types", ["f32", "f16"])
def test_a_batch_has_a_digest(device: CudaDevice, types: str) -> None:
    configuration = supported(device, f"cublaslt() 96x80x64 {types} nt batch=7")
    row = device.measure(configuration, ASKED)
    assert (row.deterministic, row.result_digest is None, row.batch_invariant is None) == (True, False, False)
    with device.replaying(configuration, OperandRules()) as work:
        assert work.result.first == digest(work.operands.d.get())
        rows = work.operands.d[:, :3]
        assert work.result.digest_of_rows(3) == digest(rows.get())


def swapped(d: Any) -> None:
    d[[2, 3]] = d[[3, 2]]


def first_again(d: Any) -> None:
    d[1:] = d[:1]


def reversed_order(d: Any) -> None:
    d[:] = d[::-1].copy()


@pytest.mark.parametrize("types", ["f64", "f32", "f16", "i8"])
@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("room", [cuda_verify.MAX_WIDENED, 400_000, 0])
def test_wrong_and_missing_matrices_are_found(
    device: CudaDevice, shape: str, layout: str, types: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(cuda_verify, "MAX_WIDENED", room)
    rules = OperandRules(seed=3)
    size = large_enough(shape, types)
    configuration = supported(device, f"cublaslt() {size} {types} {layout} alpha=1 beta=1 batch=7")
    problem = configuration.problem
    with device.replaying(configuration, rules):  # which computes and verifies
        operands = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 1, rules).views(0)
        right = operands.d.copy()

        def checked() -> Any:
            return device._verifier.begin(problem, operands, rules)()

        closely = verify(problem, operands, rules, cupy)
        found = checked()
        assert (found.method, found.bound) == (closely.method, closely.bound)
        assert found.error <= found.bound
        wrong: list[Callable[[Any], None]] = [swapped, first_again, reversed_order]
        for change in wrong:
            change(operands.d)
            with pytest.raises(WrongResult, match="of matrix"):
                checked()
            operands.d[:] = right
        for matrix in range(problem.batch):
            operands.d[matrix] = poison(problem.types.cd)
            with pytest.raises(ElementNotWritten, match=rf"\(0, 0\) of matrix {matrix} unwritten"):
                checked()
            operands.d[:] = right
            row, column = problem.shape.m // 2, problem.shape.n // 3
            operands.d[matrix, row, column] = poison(problem.types.cd)
            with pytest.raises(ElementNotWritten, match=rf"\({row}, {column}\) of matrix {matrix} unwritten"):
                checked()
            operands.d[:] = right
        checked()
