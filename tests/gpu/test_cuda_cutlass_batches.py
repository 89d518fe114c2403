"""Batches and fused operations of CUTLASS 2.x on a card, which has a compiler: their kernels are compiled all at once."""

from __future__ import annotations

import pytest

from farm.fusion import Fusion
from farm.gemm import Layout
from farm.kernels import FAMILIES, Configuration
from support import quick
from support.quick import QUICK, assert_wide_product, launched_again
from workers.devices.cuda import CudaDevice

TENSOR = "cutlass(tile_m=64,tile_n=64,tile_k=32,warp_m=32,warp_n=32,stages={},swizzle=2,split_k={})"
SIMT = "cutlass(tile_m=128,tile_n=128,tile_k=8,warp_m=32,warp_n=64,stages={},swizzle=2,split_k={})"
INTEGERS = TENSOR.replace("tile_k=32", "tile_k=64")

TYPES = ["f32", "tf32", "f64", "f16", "f16:f16:f16", "f16:f32:f32", "bf16", "i8"]
FUSED = ["f32", "tf32", "f64", "f16", "f16:f16:f16", "bf16"]
FUSIONS = [fused for fused in FAMILIES["cutlass"].fusions if fused is not Fusion.NONE]
SHAPES = ["520x504x264", "257x130x66"]


def line(types: str, rest: str, *, stages: int = 3, split_k: int = 1) -> Configuration:
    kernel = {"f32": SIMT, "i8": INTEGERS}.get(types, TENSOR)
    return Configuration.parse(f"{kernel.format(stages, split_k)} {rest}")


def batches(types: str, layout: str) -> list[Configuration]:
    scalars = ("", "alpha=2 beta=-1")
    shapes = SHAPES[:1] if types == "i8" else SHAPES
    return [
        line(types, f"{shape} {types} {layout} {more} batch={batch}")
        for shape in shapes
        for more in scalars
        for batch in (2, 7)
    ]


def fused(types: str, fusion: Fusion) -> list[Configuration]:
    scalars = "alpha=0.5" if fusion.bias else "alpha=0.5 beta=1"
    return [
        *(line(types, f"{shape} {types} nt {scalars} fused={fusion}") for shape in SHAPES),
        line(types, f"{SHAPES[0]} {types} nt {scalars} fused={fusion} batch=3"),
        line(types, f"{SHAPES[0]} {types} nt {scalars} fused={fusion}", split_k=3),
    ]


ALL = [
    *(one for types in TYPES for layout in Layout for one in batches(types, layout)),
    *(one for types in FUSED for fusion in FUSIONS for one in fused(types, fusion)),
]


@pytest.fixture(scope="module", autouse=True)
def built(device: CudaDevice) -> None:
    assert set(quick.built(device, ALL).values()) == {None}


def assert_right(device: CudaDevice, configurations: list[Configuration]) -> None:
    runnable = [c for c in configurations if c.why_invalid(device.identity.traits) is None]
    if not runnable:
        pytest.skip(str(configurations[0].why_invalid(device.identity.traits)))
    for configuration in runnable:
        assert_wide_product(device, configuration)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("layout", Layout)
def test_batches_of_every_type_and_layout_are_right(device: CudaDevice, layout: str, types: str) -> None:
    assert_right(device, batches(types, layout))


@pytest.mark.parametrize("types", FUSED)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fused_operation_is_right(device: CudaDevice, fusion: Fusion, types: str) -> None:
    assert_right(device, fused(types, fusion))


def test_sliced_fused_products_can_be_launched_again(device: CudaDevice) -> None:
    launched_again(device, fused("f16", Fusion.BIAS_GELU)[-1])


def test_a_row_of_a_batch_counts_the_blocks_of_all_products(device: CudaDevice) -> None:
    row = device.measure(line("f16", "512x512x256 f16 nt batch=7"), QUICK)
    assert row.details["blocks"] == 7 * 8 * 8
    assert row.verify_error is not None


def test_65535_products_are_right(device: CudaDevice) -> None:
    assert_right(device, [line("f16", "16x16x16 f16 nt batch=65535")])
