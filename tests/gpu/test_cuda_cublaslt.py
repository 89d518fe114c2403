"""The vendor's library on a card: every element type, every layout, ranks, and what it does not support."""

from __future__ import annotations

import pytest

from farm.errors import FarmError, InvalidOnDevice
from farm.gemm import Layout
from farm.kernels import Configuration
from support.quick import QUICK, supported
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

TYPES = [
    "f64",
    "f32",
    "tf32",
    "f16",
    "f16:f32:f32",
    "f16:f16:f16",
    "bf16",
    "bf16:f32:f32",
    "i8",
    "f8e4m3",
    "f8e4m3e5m2",
    "f8e5m2e4m3",
]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", ["64x96x128", "512x768x1024"])
def test_every_type_and_layout_is_right(device: CudaDevice, shape: str, layout: str, types: str) -> None:
    scalars = "alpha=2 beta=-1" if types == "i8" else "alpha=1.5 beta=0.5"
    for scale in ("", scalars):
        configuration = supported(device, f"cublaslt() {shape} {types} {layout} {scale}")
        row = device.measure(configuration, QUICK)
        assert row.verify_error is not None
        assert row.verify_error <= error_bound(configuration.problem) / 1.5
        assert row.details["tile"]
        assert row.details["cublaslt"]


@pytest.mark.parametrize("types", ["f64", "f32", "tf32", "f16", "bf16"])
@pytest.mark.parametrize("shape", ["1x1x1", "257x131x67", "3x5000x7", "1000x1x999"])
def test_odd_sizes_are_right(device: CudaDevice, shape: str, types: str) -> None:
    assert device.measure(supported(device, f"cublaslt() {shape} {types}"), QUICK).verify_error is not None


@pytest.mark.parametrize("types", ["f16", "f32", "f8e4m3", "f8e5m2e4m3"])
def test_long_sums_stay_within_the_bound(device: CudaDevice, types: str) -> None:
    for algorithm in range(3):
        text = f"cublaslt(algorithm={algorithm}) 256x512x65536 {types}:f32:f32 nt"
        row = device.measure(supported(device, text), QUICK)
        assert row.verify_error is not None
        assert row.verify_error <= error_bound(Configuration.parse(text).problem) / 1.5


@pytest.mark.alone
def test_ranks_are_different_kernels_and_end_where_the_library_says(device: CudaDevice) -> None:
    rows = [
        device.measure(Configuration.parse(f"cublaslt(algorithm={rank}) 2048x2048x2048 f16"), QUICK)
        for rank in range(4)
    ]
    assert len({row.kernel_hash for row in rows}) == 4
    assert min(row.runtime_ms for row in rows) > 0.8 * rows[0].runtime_ms  # its first choice is about the best
    with pytest.raises(InvalidOnDevice, match="no algorithm has rank 255"):
        device.measure(Configuration.parse("cublaslt(algorithm=255) 16x16x16 f32"), QUICK)


@pytest.mark.alone
def test_short_gemms_are_not_the_launch_that_is_timed(device: CudaDevice) -> None:
    row = device.measure(supported(device, "cublaslt() 512x512x512 f16"), QUICK)
    assert row.runtime_ms < 0.012
    assert row.details["launches_per_sample"] > 50


def test_what_it_does_not_support_is_invalid_and_harms_nothing(device: CudaDevice) -> None:
    for text in ("cublaslt() 257x131x67 i8", "cublaslt() 64x64x64 f8e5m2", "cublaslt() 64x64x64 f64:f32:f64"):
        with pytest.raises(FarmError) as raised:
            device.measure(Configuration.parse(text), QUICK)
        assert isinstance(raised.value, InvalidOnDevice)
    assert device.measure(Configuration.parse("cublaslt() 64x64x64 f32"), QUICK).runtime_ms > 0
