"""The family `tiled`: the paper's shared-memory kernel."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.fusion import Fusion
from farm.gemm import ElementType, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import same_types


def _shared_bytes(problem: Problem, tile: int) -> int:
    """A tile of A and one of B, or with a gate two, as `workers/kernels/tiled.cu` declares them: an operand stored transposed has one
    more column."""
    of_b = 2 if problem.fused.gated else 1
    columns = tile + problem.layout.a_transposed + of_b * (tile + problem.layout.b_transposed)
    return tile * columns * problem.types.ab.bytes


def _tile_fits(problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    tile = parameters["tile"]
    threads, shared = tile * tile, _shared_bytes(problem, tile)
    if device.max_threads_per_block is not None and threads > device.max_threads_per_block:
        return f"needs {threads} threads in a block, the device allows {device.max_threads_per_block}"
    if device.shared_memory_per_block_bytes is not None and shared > device.shared_memory_per_block_bytes:
        return f"needs {shared} bytes of shared memory, the device has {device.shared_memory_per_block_bytes}"
    return None


_MAX_GRID_Z = 65_535


def _batch_fits(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.batch <= _MAX_GRID_Z:
        return None
    return (
        f"has a block for each product along z of its grid, {_MAX_GRID_Z:,} at most: batch={problem.batch} is too large"
    )


_FLOPS_OF_THREAD = 2e9
"""FLOP/s of one thread. The kernel is limited by its tile² threads per block; 32 x 32 threads reach about 2 TFLOP/s."""

TILED = KernelFamily(
    name="tiled",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.tiled:TiledFamily",
    meaning="the paper's shared-memory kernel: one thread per element of a tile x tile block of C",
    parameters=(Parameter(name="tile", values=range(1, 33), default=16, meaning="edge of a tile"),),
    slow_flops=lambda parameters: _FLOPS_OF_THREAD * parameters["tile"] ** 2,
    tile_shared_bytes=_shared_bytes,
    batched=True,
    grouped=True,
    fusions=tuple(Fusion),
    rules=(same_types(ElementType.F32, ElementType.F64), _tile_fits, _batch_fits),
)
