"""The tiled kernel without a card: fused operations and batches that it is compiled with."""

from __future__ import annotations

from itertools import product

import pytest

from farm.devices import traits_of_capability
from farm.fusion import Fusion
from farm.kernels import Configuration
from support.fake_cuda import at_address
from support.quick import assert_wide_product
from workers.devices.cuda import CudaDevice
from workers.kernels.tiled import TiledKernel


def invalid(text: str) -> str | None:
    return Configuration.parse(text).why_invalid(traits_of_capability((9, 0)))


@pytest.mark.parametrize("fused", Fusion)
def test_tiled_fuses_everything_in_batches_up_to_its_grid(fused: Fusion) -> None:
    for types, batch in product(("f32", "f64"), (1, 65_535)):
        assert invalid(f"tiled() 16 {types} batch={batch} fused={fused}") is None
    assert invalid("tiled() 16 f32 batch=65536") == (
        "tiled has a block for each product along z of its grid, 65,535 at most: batch=65536 is too large"
    )


def test_each_operation_is_a_kernel_of_its_own_and_the_number_of_products_is_none() -> None:
    texts = [f"tiled() 64 f32 batch={batch} fused={fused}" for batch in (1, 2, 3) for fused in Fusion]
    assert len({TiledKernel.of(Configuration.parse(text)).hash for text in texts}) == 2 * len(Fusion)


@pytest.mark.parametrize("fused", Fusion)
@pytest.mark.parametrize("types", ["f32", "f64"])
def test_fused_products_and_batches_of_tiled_are_right(device: CudaDevice, types: str, fused: Fusion) -> None:
    for batch, scalars in product((1, 3), ("", "alpha=-1.5" if fused.gated else "alpha=-1.5 beta=0.5")):
        text = f"tiled(tile=8) 13x{22 if fused.gated else 21}x17 {types} tn {scalars} batch={batch} fused={fused}"
        assert_wide_product(device, Configuration.parse(text), at_address)
