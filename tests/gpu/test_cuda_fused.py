"""Fused operations on a card: bias and activations of cuBLASLt and of `tiled`, which is compiled with them, and its batches."""

from __future__ import annotations

from itertools import product

import pytest

from farm.errors import InvalidOnDevice
from farm.fusion import Fusion
from farm.gemm import Layout
from farm.kernels import FAMILIES, Configuration
from support.quick import QUICK, assert_wide_product, supported
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

FUSIONS = [fused for fused in Fusion if fused is not Fusion.NONE]
OF_CUBLASLT = [fused for fused in FUSIONS if fused in FAMILIES["cublaslt"].fusions]
EXPECTED = ["f32", "tf32", "f16", "bf16"]
"""Types that cuBLASLt fuses every operation of its own into, in every layout and batch."""


@pytest.mark.parametrize("types", EXPECTED)
@pytest.mark.parametrize("fused", OF_CUBLASLT)
def test_cublaslt_fuses_every_operation(device: CudaDevice, fused: Fusion, types: str) -> None:
    for layout, batch, scalars in product(Layout, (1, 3), ("", "alpha=1.5 beta=0.5")):
        text = f"cublaslt() 64x48x40 {types} {layout} {scalars} batch={batch} fused={fused}"
        assert_wide_product(device, supported(device, text))


@pytest.mark.parametrize(
    "types", ["f64", "f16:f32:f32", "f16:f16:f16", "bf16:f32:f32", "f8e4m3", "f8e4m3:f16:f32", "f8e5m2e4m3"]
)
@pytest.mark.parametrize("fused", OF_CUBLASLT)
def test_of_other_types_it_is_right_or_invalid(device: CudaDevice, fused: Fusion, types: str) -> None:
    refused = []
    for batch, scalars in product((1, 3), ("", "alpha=1.5 beta=0.5")):
        text = f"cublaslt() 64x48x32 {types} nt {scalars} batch={batch} fused={fused}"
        try:
            assert_wide_product(device, supported(device, text))
        except InvalidOnDevice as error:
            assert f"with fused={fused}" in str(error)  # noqa: PT017 - both are fine
            refused.append(str(error))
    if refused:
        pytest.skip(f"{len(refused)} of 4: {refused[0]}")


@pytest.mark.parametrize("types", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("fused", OF_CUBLASLT)
@pytest.mark.parametrize(("shape", "batch"), [("17x131x67", 1), ("17x131x67", 3), ("1x1x1", 1), ("512x4096x1024", 2)])
def test_odd_and_large_shapes_are_measured_and_verified(
    device: CudaDevice, shape: str, batch: int, fused: Fusion, types: str
) -> None:
    configuration = supported(device, f"cublaslt() {shape} {types} nt batch={batch} fused={fused}")
    try:
        row = device.measure(configuration, QUICK)
    except InvalidOnDevice as error:  # of odd shapes some are not there
        assert f"with fused={fused}" in str(error)  # noqa: PT017 - both are fine
        pytest.skip(str(error))
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("fused", Fusion)
def test_tiled_fuses_everything_in_every_layout_and_batch(device: CudaDevice, fused: Fusion, types: str) -> None:
    for layout, batch, scalars in product(Layout, (1, 3), ("", "alpha=-1.5" if fused.gated else "alpha=-1.5 beta=0.5")):
        text = (
            f"tiled(tile=16) 37x{54 if fused.gated else 53}x41 {types} {layout} {scalars} batch={batch} fused={fused}"
        )
        assert_wide_product(device, supported(device, text))


@pytest.mark.parametrize("text", ["1x1x1 f32 batch=65535", "3x5x7 f64 tt batch=1000", "130x67x33 f32 batch=33"])
def test_many_products_in_one_launch_of_tiled_are_right(device: CudaDevice, text: str) -> None:
    row = device.measure(supported(device, f"tiled(tile=8) {text} fused=bias"), QUICK)
    assert row.verify_error is not None


@pytest.mark.parametrize("text", ["tiled(tile=16) 512x512x512 f32", "cublaslt() 512x512x512 f16 nt"])
def test_each_operation_is_a_kernel_of_its_own(device: CudaDevice, text: str) -> None:
    family = FAMILIES[text.split("(", maxsplit=1)[0]]
    rows = [device.measure(supported(device, f"{text} fused={fused}"), QUICK) for fused in family.fusions]
    assert len({row.kernel_hash for row in rows}) == len(rows)


@pytest.mark.parametrize(
    "text", ["cublaslt() 64 f16 fused=silu", "cublaslt() 64 i8 nt fused=relu", "cutlass() 64 f16 beta=1 fused=bias"]
)
def test_what_it_does_not_support_is_invalid_and_harms_nothing(device: CudaDevice, text: str) -> None:
    with pytest.raises(InvalidOnDevice):
        device.measure(Configuration.parse(text), QUICK)
    assert device.measure(supported(device, "cublaslt() 64x64x64 f16 fused=bias+gelu"), QUICK).runtime_ms > 0
