"""Scale factors on a card: cuBLASLt applies them where the farm has them in memory, and what it lacks is invalid."""

from __future__ import annotations

import pytest

from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.scale import SCALES_OF_BOTH, Scale
from support.quick import QUICK, assert_wide_product, supported
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

SCALES = [scale for scale in SCALES_OF_BOTH if scale is not Scale.NONE]
TYPES = ["f8e4m3", "f8e4m3:f16:f32", "f8e4m3:f32:f32", "f8e4m3e5m2", "f8e5m2e4m3:f32:f32"]
SHAPES = ["64x96x128", "4x16x16", "132x272x144", "300x528x1296"]
"""Blocks that end inside a matrix and at its end, in each direction; of 128 along k 1, 2 and 11."""


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_and_type_is_that_of_a_wide_product(device: CudaDevice, scale: Scale, types: str) -> None:
    for shape in SHAPES:
        for scalars in ("", "alpha=1.5 beta=0.5"):
            assert_wide_product(device, supported(device, f"cublaslt() {shape} {types} nt {scalars} scale={scale}"))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", ["512x4096x7168", "4096x2112x7168"])
def test_shapes_of_models_are_measured_and_verified(device: CudaDevice, shape: str, scale: Scale) -> None:
    configuration = supported(device, f"cublaslt() {shape} f8e4m3 nt scale={scale}")
    row = device.measure(configuration, QUICK)
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)
    assert row.details["tile"]


def test_factors_of_each_kind_are_kernels_of_their_own(device: CudaDevice) -> None:
    texts = [f"cublaslt() 512x512x512 f8e4m3 nt scale={scale}" for scale in SCALES_OF_BOTH]
    hashes = {device.measure(supported(device, text), QUICK).kernel_hash for text in texts}
    assert len(hashes) == len(texts)


@pytest.mark.parametrize("fused", ["bias", "relu", "gelu", "bias+relu", "bias+gelu"])
@pytest.mark.parametrize("scale", SCALES)
def test_scaled_products_with_fused_operations_are_right_or_invalid(
    device: CudaDevice, scale: Scale, fused: str
) -> None:
    configuration = supported(device, f"cublaslt() 132x272x656 f8e4m3 nt scale={scale} fused={fused}")
    try:
        assert_wide_product(device, configuration)
    except InvalidOnDevice as error:
        assert f"with scale={scale} with fused={fused}" in str(error)  # noqa: PT017 - both are fine
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "text",
    [
        "cublaslt() 64x64x64 f16 nt scale=tensor",
        "cublaslt() 64x64x128 f8e4m3 nt scale=row batch=2",
        "cublaslt() 66x64x128 f8e4m3 nt scale=1x128",
        "cublaslt(algorithm=255) 64x64x128 f8e4m3 nt scale=1x128",
    ],
)
def test_what_it_does_not_support_is_invalid_and_harms_nothing(device: CudaDevice, text: str) -> None:
    with pytest.raises(InvalidOnDevice):
        device.measure(Configuration.parse(text), QUICK)
    for scale in ("tensor", "1x128:128x128"):
        row = device.measure(supported(device, f"cublaslt() 64x64x128 f8e4m3 nt scale={scale}"), QUICK)
        assert row.runtime_ms > 0
