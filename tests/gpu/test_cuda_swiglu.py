"""Products with a gate on a card: tiled and Triton kernels are right in every layout, batch and type, and wrong ones are found.

The kernels of triton are compiled here where Triton is installed; conftest.py says how to bring built ones.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from farm.errors import ElementNotWritten, InvalidOnDevice, MeasurementFailed, WrongResult
from farm.gemm import Layout
from farm.groups import Groups
from farm.kernels import Configuration
from farm.operands import OperandRules
from support.quick import QUICK, assert_wide_product, launched_again, supported
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import poison
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound, verify

SMALL = "tile_m=64,tile_n=64,tile_k=32,warps=4"
TRITON = [
    f"triton({SMALL}) 257x134x67 f16 nn fused=bias+swiglu batch=2",
    f"triton({SMALL}) 257x134x67 f32 tn alpha=-2 fused=bias+swiglu",
    f"triton({SMALL}) 257x134x67 tf32 nt fused=swiglu",
    "triton() 528x400x272 bf16 nt fused=swiglu",
    "triton() 528x512x272 f8e4m3 nt scale=row fused=bias+swiglu",
    # Half of n lies inside a block of 128 columns, and at the end of one.
    "triton() 528x400x400 f8e4m3 nt scale=1x128:128x128 fused=swiglu batch=2",
    "triton() 528x512x400 bf16 nt scale=1x128:128x128 fused=swiglu",
    "triton() 528x400x272 bf16i4 nt scale=none:1x128 fused=swiglu batch=2",
    f"triton({SMALL}) 257x136x72 f16f4 nn scale=none:row fused=bias+swiglu",
    "triton(tile_m=16,tile_n=64,tile_k=128,warps=4,stages=4) 16x2816x512 bf16i4 nt scale=none:1x32 fused=swiglu",
    "triton(tma=1) 528x400x272 bf16 nt fused=bias+swiglu batch=2",
    "triton(tma=1) 512x4096x1024 bf16 nn fused=swiglu",
    f"triton({SMALL},tma=1) 210x272x400 f8e4m3 nt fused=swiglu scale=1x128:128x128 groups=0,64,0,130,1*12,4",
    f"triton({SMALL}) 210x272x400 bf16 nt fused=bias+swiglu groups=0,64,0,130,1*12,4",
    f"triton({SMALL}) 210x400x400 f8e4m3 nt fused=swiglu scale=1x128:128x128 groups=0,64,0,130,1*12,4",
    "triton(tile_m=16,tile_n=32,tile_k=64,warps=4,stages=4) 16x2816x512 bf16 nt fused=bias+swiglu",
    "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x4096x1024 bf16 nt fused=swiglu",
]


@pytest.fixture(scope="module")
def built(device: CudaDevice) -> None:
    """Compiles all binaries at once, as a builder does."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(device.prepare, map(Configuration.parse, TRITON)))


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("text", TRITON)
def test_gates_of_triton_are_those_of_a_wide_product(device: CudaDevice, text: str) -> None:
    configuration = supported(device, text)
    try:
        assert_wide_product(device, configuration)
    except MeasurementFailed as error:
        pytest.skip(str(error))
    row = device.measure(configuration, QUICK)
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem) / 1.5


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("fused", ["swiglu", "bias+swiglu"])
@pytest.mark.parametrize("tile", [7, 32])
def test_gates_of_tiled_are_those_of_a_wide_product(device: CudaDevice, tile: int, fused: str, types: str) -> None:
    for layout, rest in product(Layout, ("", "alpha=-1.5 batch=3")):
        assert_wide_product(
            device, supported(device, f"tiled(tile={tile}) 37x54x41 {types} {layout} {rest} fused={fused}")
        )
    groups = Groups.of((40, 0, 7, 7, 1, 90))
    text = f"tiled(tile={tile}) {groups.rows}x134x70 {types} nt fused={fused} groups={groups}"
    assert_wide_product(device, supported(device, text))


@pytest.mark.parametrize(
    "text", ["tiled() 130x268x70 f32 nt fused=swiglu batch=2", "tiled(tile=32) 600x1024x512 f32 nt fused=swiglu"]
)
def test_wrong_and_missing_elements_are_found(device: CudaDevice, text: str) -> None:
    import cupy

    rules = OperandRules(seed=3)
    configuration = supported(device, text)
    problem = configuration.problem
    launched_again(device, configuration)
    with device.replaying(configuration, rules):  # which computes and verifies
        operands = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 1, rules).views(0)
        d, right = operands.d, operands.d.copy()
        assert verify(problem, operands, rules, cupy).error <= error_bound(problem, rules)
        p = operands.a @ operands.b
        gate, up = p[..., : p.shape[-1] // 2], p[..., p.shape[-1] // 2 :]

        def silu(x: cupy.ndarray) -> cupy.ndarray:
            return x / (1 + cupy.exp(-x))

        for wrong in (gate * silu(up), gate * up, silu(gate), cupy.roll(right, 1, axis=-1)):
            d[...] = wrong
            with pytest.raises(WrongResult):
                device._verifier.begin(problem, operands, rules)()
        d[...] = right
        d[..., -1, -1] = poison(problem.types.cd)
        with pytest.raises(ElementNotWritten, match=rf"\({d.shape[-2] - 1}, {d.shape[-1] - 1}\)"):
            device._verifier.begin(problem, operands, rules)()


@pytest.mark.parametrize("text", ["cublaslt() 64 f16 nt fused=swiglu", "cutlass() 64 f16 fused=swiglu"])
def test_libraries_without_gates_say_so(device: CudaDevice, text: str) -> None:
    with pytest.raises(InvalidOnDevice, match="has no fused=swiglu"):
        device.measure(Configuration.parse(text), QUICK)
