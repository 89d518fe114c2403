"""Triton kernels on Hopper whose tiles are copied by the tensor memory accelerator."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farm.kernels import Configuration
from farm.kernels.binary import Binary
from support import quick
from support.quick import QUICK, assert_right, launched_again
from workers.devices.cuda import CudaDevice

PROBLEMS = {
    "types": [
        "304x272x400 f16 nn beta=1", "304x272x400 f16:f16:f16 tt", "300x272x400 bf16 nt batch=3", "304x272x384 bf16 tn",
        "300x270x400 tf32 nt beta=-1", "304x272x400 tf32 tn", "300x272x400 i8 nt", "304x272x400 f8e4m3 nn",
        "1x1x16 f16 nt", "3x517x272 bf16 nt alpha=2 beta=1",
    ],
    "scale factors": [
        *(f"300x270x400 f8e4m3 nt batch=2 scale={scale}" for scale in ("tensor", "row", "1x128:128x128")),
        "300x272x400 bf16 nn scale=1x128", "304x270x400 f8e5m2e4m3 tt scale=128x128:1x128",
    ],
    "fused operations": ["300x270x400 bf16 nt beta=1 fused=bias+gelu", "304x272x400 f8e4m3 nt fused=silu"],
    "groups": [
        "200x272x400 bf16 nt groups=200", "204x272x400 f16 nn beta=1 groups=0,64,0*2,136,4,0",
        "826x272x400 bf16 nt fused=bias groups=300,4,0,1,76,33,400,12", "826x270x400 f8e4m3 nt scale=1x128:128x128 groups=300,4,0,1,76,33,400,12",
    ],
}  # fmt: skip
KERNELS = ("tile_k={k}", "tile_k={k},tile_m=64,tile_n=32,warps=4,stages=4,group_m=2", "tile_k={k},tile_m=16,tile_n=64,warps=4")  # fmt: skip


def lines(kind: str) -> list[str]:
    """The first kernel on every problem, and the others on one of them."""
    first, *others = KERNELS
    of = {problem: 128 if "f8" in problem else 32 if "tf32" in problem else 64 for problem in PROBLEMS[kind]}
    every = [(first, problem) for problem in of] + [(other, next(iter(of))) for other in others]
    return [f"triton(tma=1,{kernel.format(k=of[problem])}) {problem}" for kernel, problem in every]


@pytest.fixture(scope="module")
def built(device: CudaDevice) -> Mapping[Binary, str | None]:
    capability = device.identity.traits.compute_capability
    if capability is None or capability < (9, 0):
        pytest.skip("the card has no tensor memory accelerator")
    every = (text for kind in PROBLEMS for text in lines(kind))
    return quick.built(device, map(Configuration.parse, every))


@pytest.mark.parametrize("kind", PROBLEMS)
def test_products_are_those_of_a_wide_product(
    device: CudaDevice, built: Mapping[Binary, str | None], kind: str
) -> None:
    assert_right(device, built, lines(kind))


def test_one_that_is_launched_again_computes_the_same(device: CudaDevice, built: Mapping[Binary, str | None]) -> None:
    configuration = Configuration.parse(lines("types")[2])
    row = device.measure(configuration, QUICK.model_copy(update={"determinism": True}))
    assert (row.deterministic, row.details["timed_by"]) == (True, "graph")
    launched_again(device, configuration)
