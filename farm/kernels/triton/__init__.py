"""The family `triton`: GEMMs in Triton, compiled ahead of time, and which points of their parameter space exist."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.fusion import Fusion
from farm.gemm import INPUT_TYPES, MAX_EXTENT, ElementType, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import (
    EIGHT_BIT_FLOATS,
    OUTPUTS_OF_8BIT_FLOATS,
    TYPES_OF_CUDA,
    computes,
    tensor_types_exist,
    whole_scalars,
)
from farm.kernels.triton.binaries import MULTIPLE, SCRATCH_BYTES, TEMPLATE, binary_of
from farm.scale import Scale

_E = ElementType

_TYPES: Mapping[ElementType, tuple[tuple[ElementType, ElementType], ...]] = {
    **{ab: known for ab, known in TYPES_OF_CUDA.items() if ab is not _E.F64},
    **dict.fromkeys(EIGHT_BIT_FLOATS, OUTPUTS_OF_8BIT_FLOATS),
    **{ab: ((ab.of_a, _E.F32), (_E.F32, _E.F32)) for ab in INPUT_TYPES if ab.low_bit_weights},
}

_FIRST = (8, 0)
"""The first compute capability that Triton compiles for tensor cores."""
_HOPPER = (9, 0)
_WARP = 32
_REGISTERS = 255
_MAX_TILE = 256
_MIN_TILE_K = {1: 32, 2: 16, 4: 8}
"""The least extent of tl.dot along k, by bytes of an element."""
_MIN_GATED_TILE_N = 32
_MAX_UNROLLED = 4096
"""Multiply-adds of a thread in one step of f32, which Triton writes out: twice as many take half a minute to compile, and spill."""
_MIN_COPY_BYTES = 4
"""The least that an asynchronous copy moves (PTX ISA, cp.async)."""
_MAX_BATCH, _MAX_BLOCKS = 65535, 2**31 - 1
"""Blocks of a grid along y, and along x: CUDA C++ Programming Guide, technical specifications."""
_MAX_SCRATCH = 2**30
"""Bytes of descriptors: of 4 million blocks."""


def _types_known(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    has = device.compute_capability
    if has is not None and has < _FIRST:
        return f"needs compute capability {_FIRST[0]}.{_FIRST[1]}, the device has {has[0]}.{has[1]}"
    if problem.types.ab not in _TYPES:
        return f"has no kernels for {problem.types.ab}"
    return computes(problem.types, _TYPES[problem.types.ab])


def _integers_are_plain(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.types.acc is not _E.I32 or (problem.scale is Scale.NONE and problem.fused is Fusion.NONE):
        return None
    return "has scale factors and fused operations for floats only, not for i32"


def _tile_fits(problem: Problem, p: Mapping[str, int], _: DeviceTraits) -> Reason:
    ab, threads = problem.types.ab, _WARP * p["warps"]
    least = _MIN_TILE_K[ab.bytes]
    if p["tile_k"] < least:
        return f"needs tile_k={least} or more for {ab}, not {p['tile_k']}"
    along_k = None if problem.scale.of_a is None else problem.scale.of_a.inner
    if along_k is not None and p["tile_k"] > along_k:
        return f"multiplies the sum of a tile by one factor: tile_k must be {along_k} or less, not {p['tile_k']}"
    accumulators = p["tile_m"] * p["tile_n"] * problem.types.acc.bytes // 4 // threads
    if accumulators > _REGISTERS:
        return f"needs {accumulators} registers of a thread for accumulators alone, a thread has {_REGISTERS}"
    unrolled = p["tile_m"] * p["tile_n"] * p["tile_k"] // threads
    if ab is _E.F32 and unrolled > _MAX_UNROLLED:
        return f"writes out the {unrolled} multiply-adds of a thread and step for f32, {_MAX_UNROLLED} at most"
    return None


def _tma_exists(problem: Problem, p: Mapping[str, int], device: DeviceTraits) -> Reason:
    s, layout, has = problem.shape, problem.layout, device.compute_capability
    if not p["tma"]:
        return None
    if has is not None and has < _HOPPER:
        return f"needs compute capability {_HOPPER[0]}.{_HOPPER[1]} for tma=1, the device has {has[0]}.{has[1]}"
    if problem.types.ab is _E.F32 or problem.types.ab.low_bit_weights:
        return f"has tma=1 for what tensor cores multiply as it lies in memory, not for {problem.types.ab}"
    contiguous = {"m" if layout.a_transposed else "k", "k" if layout.b_transposed else "n"}
    odd = next((name for name in sorted(contiguous) if getattr(s, name) % MULTIPLE), None)
    if odd is not None:
        return f"needs multiples of {MULTIPLE} of {' and '.join(sorted(contiguous))} for tma=1, not {odd}={getattr(s, odd)}"
    return None


def _gate_fits(problem: Problem, p: Mapping[str, int], _: DeviceTraits) -> Reason:
    if not problem.fused.gated:
        return None
    packed = problem.types.ab.of_b.per_item
    if not problem.layout.b_transposed and problem.shape.n // 2 % packed:
        return f"loads {packed} weights of a byte at once: half of n must be a multiple of {packed} for fused={problem.fused}, not {problem.shape.n // 2}"
    if p["tile_n"] < _MIN_GATED_TILE_N:
        return f"multiplies two tiles of half of tile_n: tile_n must be {_MIN_GATED_TILE_N} or more for fused={problem.fused}, not {p['tile_n']}"
    return None


def _shared_memory_fits(problem: Problem, p: Mapping[str, int], device: DeviceTraits) -> Reason:
    """The least that a kernel keeps in shared memory. How much it is exactly is known when it is compiled."""
    need, most = shared_bytes(problem, p, device.compute_capability), device.shared_memory_per_block_bytes
    if most is None or need <= most:
        return None
    return f"needs {need} bytes of shared memory or more, the device has {most}"


def shared_bytes(problem: Problem, p: Mapping[str, int], capability: tuple[int, int] | None) -> int:
    """The tiles that are loaded ahead of time. One is only if it can be copied asynchronously."""
    s, layout, ab = problem.shape, problem.layout, problem.types.ab
    # Tensor cores of Hopper read tiles in shared memory while the next ones arrive; 8-bit types along k only.
    in_place = capability is not None and _HOPPER <= capability < (10, 0) and p["tile_m"] >= 64 and p["warps"] % 4 == 0
    if ab.low_bit_weights:  # B is converted on its way
        return 0 if s.k % MULTIPLE or layout.a_transposed else (p["stages"] - 1) * p["tile_m"] * p["tile_k"] * ab.bytes
    total = 0
    for tile, along_k, extent in (
        (p["tile_m"], not layout.a_transposed, s.m if layout.a_transposed else s.k),
        (p["tile_n"], layout.b_transposed, s.k if layout.b_transposed else s.n),
    ):
        if not p["tma"] and extent % MULTIPLE and ab.bytes < _MIN_COPY_BYTES:
            continue
        if ab.bytes == 1 and not along_k:
            continue
        ahead = p["stages"] if in_place and ab is not _E.F32 and p["stages"] > 1 else p["stages"] - 1
        total += ahead * tile * p["tile_k"] * ab.bytes
    return total


def _grid_fits(problem: Problem, p: Mapping[str, int], _: DeviceTraits) -> Reason:
    s = problem.shape
    if max(s.m, s.n, s.k) > MAX_EXTENT - _MAX_TILE:
        return f"has 32-bit indices: m, n and k must be {MAX_EXTENT - _MAX_TILE} or less, not {s}"
    if problem.batch > _MAX_BATCH:
        return f"computes a batch of {_MAX_BATCH} or less, not {problem.batch}"
    rows = -(-s.m // p["tile_m"]) if problem.groups is None else problem.groups.tiles(p["tile_m"])
    blocks = rows * -(-s.n // p["tile_n"])
    if blocks > _MAX_BLOCKS:
        return f"needs a grid of {blocks} blocks, {_MAX_BLOCKS} is the most"
    scratch = blocks * problem.batch * SCRATCH_BYTES if p["tma"] else 0
    if scratch > _MAX_SCRATCH:
        return f"needs {scratch:,} bytes for the descriptors of its blocks with tma=1, {_MAX_SCRATCH:,} is the most"
    return None


_TILES = (16, 32, 64, 128, 256)

TRITON = KernelFamily(
    name="triton",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.triton.family:TritonFamily",
    meaning="Triton kernels built ahead of time",
    parameters=(
        Parameter(name="tile_m", values=_TILES, default=128, meaning="rows of C of a block: BLOCK_M"),
        Parameter(name="tile_n", values=_TILES, default=128, meaning="columns of B that a block multiplies: BLOCK_N"),
        Parameter(name="tile_k", values=_TILES, default=64, meaning="K step of a block: BLOCK_K"),
        Parameter(
            name="group_m", values=(1, 2, 4, 8, 16, 32), default=8, meaning="rows of tiles that are computed together"
        ),
        Parameter(name="warps", values=(1, 2, 4, 8, 16), default=8, meaning="warps of a block"),
        Parameter(name="stages", values=range(1, 9), default=3, meaning="pipeline stages"),
        Parameter(
            name="tma", values=(0, 1), default=0, meaning="1: the tensor memory accelerator copies tiles of A and B"
        ),
    ),
    binary=binary_of,
    templates=(TEMPLATE,),
    batched=True,
    grouped=True,
    scales=tuple(Scale),
    fusions=tuple(Fusion),
    rules=(
        _types_known,
        tensor_types_exist,
        whole_scalars,
        _integers_are_plain,
        _tile_fits,
        _tma_exists,
        _gate_fits,
        _shared_memory_fits,
        _grid_fits,
    ),
)
