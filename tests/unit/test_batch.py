"""Batches of products: what a problem with one is called, and who can compute it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadBatch
from farm.gemm import ElementTypes, Problem, Shape
from farm.kernels import FAMILIES, Configuration

BATCHED = "cublaslt(algorithm=0) 128x256x64 f16:f16:f32 nt alpha=1 beta=1 batch=8"
CARD = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**33, compute_capability=(9, 0))


def test_the_line_of_a_batch_reads_back_and_without_one_nothing_changed() -> None:
    one = Configuration.parse(BATCHED)
    assert (one.problem.batch, one.canonical) == (8, BATCHED)
    assert Configuration.from_columns(one.columns()) == one
    alone = Configuration.parse(BATCHED.removesuffix(" batch=8"))
    assert alone == Configuration.parse(BATCHED.replace("batch=8", "batch=1"))
    assert "batch" not in alone.canonical
    assert alone.id != one.id
    old = {name: value for name, value in alone.columns().items() if name != "batch"}
    assert Configuration.from_columns(old) == alone


def test_a_batch_multiplies_work_and_memory() -> None:
    alone = Problem(Shape(128, 256, 64), ElementTypes.parse("f16"), beta=1)
    many = Problem(Shape(128, 256, 64), ElementTypes.parse("f16"), beta=1, batch=8)
    assert many.flops == 8 * alone.flops == 8 * 2 * 128 * 256 * 64
    assert many.bytes == 8 * alone.bytes
    assert many.operand_bytes == 8 * alone.operand_bytes
    assert many.arithmetic_intensity == alone.arithmetic_intensity


@pytest.mark.parametrize("batch", [0, -1, 2**31, 1.5, True])
def test_a_batch_is_a_whole_number(batch: object) -> None:
    with pytest.raises(BadBatch, match="must be a whole number from 1 to 2147483647"):
        Problem(Shape(8, 8, 8), ElementTypes.parse("f32"), batch=batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", ["many", "1.5", "8x"])
def test_a_batch_that_is_no_number_is_named(written: str) -> None:
    with pytest.raises(BadBatch, match=f"batch is '{written}'; it must be a whole number from 1 to 2147483647"):
        Configuration.parse(f"blas() 8x8x8 f32 batch={written}")


def test_a_family_that_computes_one_product_refuses_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Configuration.parse("cublaslt() 64 f16 batch=4").why_invalid(CARD) is None
    monkeypatch.setitem(FAMILIES, "cublaslt", replace(FAMILIES["cublaslt"], batched=False))
    why = Configuration.parse("cublaslt() 64 f16 batch=4").why_invalid(CARD)
    assert why == "cublaslt computes one product at a time: batch must be 1, not 4"


def test_all_operands_of_a_batch_must_fit() -> None:
    assert Configuration.parse("cublaslt() 16384x16384x16384 f16").why_invalid(CARD) is None
    why = Configuration.parse("cublaslt() 16384x16384x16384 f16 batch=8").why_invalid(CARD)
    assert why is not None
    assert "its operands take 12,884,901,888 bytes" in why
