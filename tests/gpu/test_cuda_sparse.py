"""A sparse B on a card: cuSPARSELt in every type, layout and batch, its algorithms, and what it refuses."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from farm.errors import InvalidOnDevice
from farm.fusion import Fusion
from farm.gemm import Layout
from farm.kernels import FAMILIES, Configuration
from farm.operands import OperandRules
from support.quick import QUICK, assert_wide_product, launched_again, supported
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import decode
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound

SPARSE = "sparsity=2:4"
FUSIONS = [fused for fused in FAMILIES["cusparselt"].fusions if fused is not Fusion.NONE]


@pytest.fixture(autouse=True)
def library(device: CudaDevice) -> None:
    """Skips where cuSPARSELt is not installed."""
    try:
        with device.replaying(supported(device, f"cusparselt() 64x64x64 f16 nt {SPARSE}"), OperandRules()):
            pass
    except InvalidOnDevice as error:
        pytest.skip(str(error))


def assert_right_or_invalid(device: CudaDevice, texts: list[str]) -> None:
    """All are right, or the test is skipped with the reasons of the library."""
    refused = []
    for text in texts:
        try:
            assert_wide_product(device, supported(device, text))
        except InvalidOnDevice as error:
            refused.append(str(error))
    if refused:
        pytest.skip(f"{len(refused)} of {len(texts)}: {refused}")


@pytest.mark.parametrize("types", ["bf16", "i8", "f8e4m3", "f64"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_two_of_each_four_are_kept_on_a_card_too(device: CudaDevice, layout: str, types: str) -> None:
    problem = Configuration.parse(f"cusparselt() 64x96x128 {types} {layout} batch=3 {SPARSE}").problem
    buffers = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 2, OperandRules())
    first, last = (decode(problem.types.ab, buffers.views(index).b.get()) for index in (0, 1))
    assert np.array_equal(first, last)
    counts = (first != 0).reshape(3, 32, 4, 96).sum(axis=2)
    assert counts.max() == 2
    assert counts.mean() > 1.9
    assert np.abs((first != 0).reshape(3, 32, 4, 96).mean(axis=(0, 1, 3)) - 0.5).max() < 0.05


@pytest.mark.parametrize("types", ["f16", "bf16"])
def test_16_bit_products_are_right_in_every_layout_and_batch(device: CudaDevice, types: str) -> None:
    for layout, batch, scalars in product(Layout, (1, 3), ("", "alpha=1.5 beta=0.5")):
        text = f"cusparselt() 136x144x272 {types} {layout} {scalars} batch={batch} {SPARSE}"
        assert_wide_product(device, supported(device, text))


@pytest.mark.parametrize("types", ["i8", "f8e4m3", "f8e4m3:f16:f32", "f8e4m3:f32:f32"])
def test_8_bit_products_are_right_or_invalid(device: CudaDevice, types: str) -> None:
    variants = product((1, 3), ("", "alpha=2 beta=3"))
    assert_right_or_invalid(
        device, [f"cusparselt() 144x160x288 {types} nt {scalars} batch={batch} {SPARSE}" for batch, scalars in variants]
    )


@pytest.mark.parametrize("types", ["f16", "bf16", "f8e4m3", "f8e4m3:f16:f32"])
@pytest.mark.parametrize("fused", FUSIONS)
def test_fused_operations_are_right_or_invalid(device: CudaDevice, fused: Fusion, types: str) -> None:
    variants = product((1, 3), ("", "alpha=1.5 beta=0.5"))
    assert_right_or_invalid(
        device,
        [
            f"cusparselt() 2064x1056x2080 {types} nt {scalars} batch={batch} fused={fused} {SPARSE}"
            for batch, scalars in variants
        ],
    )


@pytest.mark.parametrize(
    "text",
    ["8x4096x4096 bf16", "512x4096x1024 f16", "4096x4096x4096 bf16", "4096x4096x4096 f8e4m3", "2048x4096x4096 i8"],
)
def test_layers_are_measured_and_verified(device: CudaDevice, text: str) -> None:
    configuration = supported(device, f"cusparselt() {text} nt {SPARSE}")
    row = device.measure(configuration, QUICK)
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)
    assert row.details["compressed_bytes"] < configuration.problem.shape.n * configuration.problem.shape.k * 2


def test_every_algorithm_is_right_or_invalid(device: CudaDevice) -> None:
    text = "512x1024x1024 bf16 nt sparsity=2:4"
    first = device.measure(supported(device, f"cusparselt() {text}"), QUICK)
    hashes, refused = set(), []
    for number in range(1, min(first.details["config_max_id"], 64) + 1):
        try:
            row = device.measure(supported(device, f"cusparselt(algorithm={number}) {text}"), QUICK)
        except InvalidOnDevice as error:
            refused.append(str(error))
            continue
        assert row.details["config_id"] == number - 1
        hashes.add(row.kernel_hash)
    assert len(hashes) > 1, refused
    with pytest.raises(InvalidOnDevice, match="so none is number 255"):
        device.measure(supported(device, f"cusparselt(algorithm=255) {text}"), QUICK)


@pytest.mark.parametrize("parameters", ["segment_k=1", "split_k=2", "split_k=2,split_mode=1", "split_k=2,split_mode=2"])
def test_parts_of_k_are_right_or_invalid(device: CudaDevice, parameters: str) -> None:
    configuration = supported(device, f"cusparselt({parameters}) 128x256x8192 bf16 nt {SPARSE}")
    try:
        assert_wide_product(device, configuration)
    except InvalidOnDevice as error:
        pytest.skip(str(error))


def test_launches_do_not_add_up(device: CudaDevice) -> None:
    launched_again(device, supported(device, f"cusparselt() 512x512x512 f16 nt alpha=2 beta=1 {SPARSE}"))


def test_what_it_lacks_is_invalid_and_harms_nothing(device: CudaDevice) -> None:
    for text in ("() 60x64x64 f16 nt", "() 64 f32 nt", "() 64 i8 nt fused=relu"):
        with pytest.raises(InvalidOnDevice):
            device.measure(Configuration.parse(f"cusparselt{text} {SPARSE}"), QUICK)
    assert device.measure(supported(device, "cublaslt() 64x64x64 f16"), QUICK).runtime_ms > 0
