"""Groups of rows of Triton kernels on a card: each has its own matrix, factors and bias, whatever its rows, and tiles are counted."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farm.groups import Groups
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from support import quick
from support.quick import QUICK, assert_right, launched_again
from workers.devices.cuda import CudaDevice
from workers.measure.verify import error_bound

SIZES = {
    "one": (200,),
    "empty ones": (0, 64, 0, 0, 136, 4, 0),
    "uneven": (300, 4, 0, 1, 76, 33, 1400, 12),
    "128": (0, 1, 2, 29) * 32,
}
TYPES = ["f16", "f16:f16:f16", "bf16:f32:f32", "bf16", "tf32", "f32", "i8", "f8e4m3", "f8e5m2e4m3"]
SCALES = ["tensor", "row", "1x128", "1x128:128x128"]
SCALED = [f"{types} nt scale={scale}" for types in ("f8e4m3", "bf16") for scale in SCALES]
FUSED = ["bf16 nt fused=bias", "f16 nn fused=bias+gelu", "f8e4m3 nt scale=row fused=bias+silu", "bf16 nt fused=silu"]
KERNELS = [
    "tile_m=16,tile_n=64,tile_k=128,warps=4,stages=4", "tile_m=64,tile_n=256,tile_k=64,group_m=2,warps=4", "tile_m=256,tile_n=64,group_m=1",
]  # fmt: skip
LAYERS = [((16,) * 64, 768, 1024), ((500, 12, 0, 0, 40, 200, 1, 15), 1024, 768), ((8, 0, 1, 3) * 32, 1536, 2048)]


def line(rest: str, sizes: tuple[int, ...], kernel: str = "", n: int = 272, k: int = 400) -> str:
    return f"triton({kernel}) {sum(sizes)}x{n}x{k} {rest} groups={Groups.of(sizes)}"


def of_type(types: str) -> list[str]:
    """Both layouts with all sizes, ragged and whole steps of k, and C every second time."""
    return [
        line(f"{types} {layout} {('', 'alpha=2 beta=-1')[number % 2]}", sizes, k=k)
        for layout, k in (("nn", 400), ("nt", 384))
        for number, sizes in enumerate(SIZES.values())
    ]


def of_kind(rest: str) -> list[str]:
    return [line(rest, SIZES[name]) for name in ("uneven", "128")]


def of_kernel(kernel: str) -> list[str]:
    return [line("bf16 nt", SIZES["uneven"], kernel)]


def of_layer(sizes: tuple[int, ...], n: int, k: int) -> list[str]:
    return [line(f"{kind} nt", sizes, KERNELS[0], n, k) for kind in ("bf16", "f8e4m3")]


LINES = [
    *(text for types in TYPES for text in of_type(types)),
    *(text for rest in (*SCALED, *FUSED) for text in of_kind(rest)),
    *(text for kernel in KERNELS for text in of_kernel(kernel)),
    *(text for layer in LAYERS for text in of_layer(*layer)),
]


@pytest.fixture(scope="module")
def built(device: CudaDevice) -> Mapping[Binary, str | None]:
    """Of all lines: one binary for all routings of a kind."""
    return quick.built(device, map(Configuration.parse, LINES))


@pytest.mark.parametrize("types", TYPES)
def test_groups_of_any_rows_are_those_of_a_wide_product(
    device: CudaDevice, built: Mapping[Binary, str | None], types: str
) -> None:
    assert_right(device, built, of_type(types))


@pytest.mark.parametrize("rest", [*SCALED, *FUSED])
def test_each_group_has_factors_and_a_bias_of_its_own(
    device: CudaDevice, built: Mapping[Binary, str | None], rest: str
) -> None:
    assert_right(device, built, of_kind(rest))


@pytest.mark.parametrize("kernel", KERNELS)
def test_tiles_of_any_size_have_rows_of_one_group(
    device: CudaDevice, built: Mapping[Binary, str | None], kernel: str
) -> None:
    assert_right(device, built, of_kernel(kernel))


@pytest.mark.parametrize("layer", LAYERS, ids=["64 experts", "8 experts", "128 experts"])
def test_layers_of_a_mixture_of_experts_are_measured(
    device: CudaDevice, built: Mapping[Binary, str | None], layer: tuple[tuple[int, ...], int, int]
) -> None:
    sizes, n, _ = layer
    tiles = sum(-(-size // 16) for size in sizes)
    for configuration in map(Configuration.parse, of_layer(*layer)):
        if configuration.why_invalid(device.identity.traits) is not None:
            continue
        row = device.measure(configuration, QUICK.model_copy(update={"determinism": True}))
        assert row.verify_error is not None
        assert row.verify_error <= error_bound(configuration.problem)
        assert (row.deterministic, row.details["timed_by"]) == (True, "graph")
        assert (row.details["blocks"], row.details["useful_share"]) == (tiles * n // 64, sum(sizes) / (16 * tiles))
        launched_again(device, configuration)
