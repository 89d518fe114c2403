"""Which points of the space CUTLASS's collective builders can be compiled for, and compute what they should.

The templates check most of what they need when they are compiled. They do not check how the blocks of a cluster divide a
tile among them.
"""

from __future__ import annotations

from farm.fusion import Fusion
from farm.gemm import ElementType, Layout
from farm.kernels.cutlass3x.point import BLOCK_K, HOPPER, INSTRUCTION_ROWS, Epilogue, Point, Schedule
from farm.kernels.family import Reason
from farm.kernels.rules import EIGHT_BIT_FLOATS, OUTPUTS_OF_8BIT_FLOATS, computes

_E = ElementType
_F32 = _E.F32
_TYPES = {
    _E.F16: ((_E.F16, _F32), (_F32, _F32)),
    _E.BF16: ((_E.BF16, _F32), (_F32, _F32)),
    _E.TF32: ((_F32, _F32),),
    _E.I8: ((_E.I32, _E.I32),),
    **dict.fromkeys(EIGHT_BIT_FLOATS, OUTPUTS_OF_8BIT_FLOATS),
    **{ab: ((ab.of_a, _F32), (_F32, _F32)) for ab in _E if ab.low_bit_weights},
}

_MAX_BLOCKS = 8
"""Blocks of a cluster that every card of the architecture can run (CUDA C++ Programming Guide, thread block clusters)."""
_SWIZZLED_ROWS = 8
"""Rows of a tile that lie together in shared memory, for every width of its lines (mma_traits_sm90_gmma.hpp)."""
_TRANSPOSED_BYTES = 128
"""How far along k a tile goes that is transposed in shared memory (sm90_mma_tma_gmma_rs_warpspecialized.hpp)."""
_STEPS_PROMOTED = 4
"""Instructions on 8-bit floats after which their sums are added up in 32 bits (mma_promotion_interval)."""

_STEPS_CONVERTED = 4
"""Instructions of a step along k at the least (K_BLOCK_MAX, sm90_mma_tma_gmma_rs_warpspecialized_mixed_input.hpp)."""


def device_is_hopper(p: Point) -> Reason:
    has = p.device.compute_capability
    if has is None or has == HOPPER:
        return None
    return f"has kernels for compute capability 9.0 alone, the device has {has[0]}.{has[1]}"


def types_exist(p: Point) -> Reason:
    t = p.problem.types
    if t.ab not in _TYPES:
        return f"does not compute {t.ab}: Hopper's instructions for groups of warps have no such type"
    reason = computes(t, _TYPES[t.ab])
    if reason is not None:
        return reason
    if (t.ab.bytes == 1 or p.narrow) and p.problem.layout is not Layout.NT:
        return f"multiplies {t.ab} in layout nt only, where k is contiguous in A and B, not {p.problem.layout}"
    return None


def kind_exists(p: Point) -> Reason:
    """Groups, scale factors and fused operations."""
    problem = p.problem
    if not p.plain and problem.types.acc is _E.I32:
        return "has scale factors and fused operations for floats only, not for i32"
    if not p.plain and p.epilogue == Epilogue.DIRECT:
        what = f"fused={problem.fused}" if problem.fused is not Fusion.NONE else f"scale={problem.scale}"
        return f"computes {what} where it stores D by TMA, which needs epilogue=1, not 0"
    if p.scaled_blocks and p.ab not in EIGHT_BIT_FLOATS:
        return f"has scale factors of blocks for 8-bit floats only, not for {p.ab}"
    for what, there in (("groups", p.grouped), (f"scale={problem.scale}", p.scaled_blocks)):
        if there and not p.persistent:
            return f"computes {what} with schedule=1 or 2, not {p.schedule} ({p.scheduled})"
    if p.grouped and p.stream_k:
        return "shares no steps of k among blocks with groups: stream_k must be 0"
    if p.grouped and p.narrow:
        return f"computes no groups of {p.ab}: groups must be none"
    if p.grouped and p.through_registers:
        return f"computes groups of {p.ab} in layout nt only, not {problem.layout}: the other goes through registers"
    return None


def schedule_exists(p: Point) -> Reason:
    if p.stream_k and p.schedule != Schedule.COOPERATIVE:
        return f"shares steps of k among blocks (stream_k=1) with schedule=2, cooperative, only, not {p.scheduled}"
    if p.persistent:
        return None
    for name, value, usual in (("swizzle", p.swizzle, 1), ("raster", p.raster, 0)):
        if value != usual:
            return (
                f"launches a block for each tile with schedule=0, and orders none: {name} must be {usual}, not {value}"
            )
    return None


def instructions_fit(p: Point) -> Reason:
    rows = INSTRUCTION_ROWS * (2 if p.schedule == Schedule.COOPERATIVE else 1)
    tile = p.left.tile
    if tile % rows:
        return (
            f"needs tile_{p.left.side} to be a multiple of {rows} with schedule={p.schedule} ({p.scheduled}) and "
            f"swap={p.swap}, not {tile}"
        )
    if p.tile_k % p.instruction_k:
        return f"needs tile_k to be a multiple of {p.instruction_k} for {p.ab}, not {p.tile_k}"
    steps = p.tile_k // p.instruction_k
    if p.ab in EIGHT_BIT_FLOATS and _STEPS_PROMOTED % steps:
        return (
            f"adds up sums of {p.ab} in 32 bits after {_STEPS_PROMOTED} instructions: tile_k={p.tile_k} is {steps}, which do "
            "not divide them"
        )
    return None


def layouts_fit(p: Point) -> Reason:
    """What 4-byte types need where k is not contiguous in both operands: the instruction takes them along k only."""
    if not p.through_registers or p.narrow:
        return None
    layout = p.problem.layout
    if p.left.along_k:
        return (
            f"turns {p.right.name} of {p.ab} in layout {layout} on its way through registers, which only the left operand "
            f"takes: swap must be {1 - p.swap}"
        )
    line = p.tile_k * p.ab.bytes
    if not p.right.along_k and line != _TRANSPOSED_BYTES:
        return (
            f"turns {p.right.name} of {p.ab} in shared memory in layout {layout}, {_TRANSPOSED_BYTES} bytes of k at a time: "
            f"tile_k={p.tile_k} takes {line}"
        )
    if not p.right.along_k and p.right.tile % p.tile_k:
        return (
            f"turns {p.right.name} of {p.ab} in shared memory in layout {layout}, in squares of tile_k={p.tile_k}: "
            f"tile_{p.right.side} must be a multiple of that, not {p.right.tile}"
        )
    return None


def narrow_fits(p: Point) -> Reason:
    """What a B with fewer bits than A needs: it goes through registers. A step along k has one factor of each column."""
    if not p.narrow:
        return None
    if not p.swap:
        return f"converts B of {p.ab} on its way through registers, which only the left operand takes: swap must be 1"
    least = _STEPS_CONVERTED * p.instruction_k
    if p.tile_k < least:
        return f"converts B for at least {_STEPS_CONVERTED} instructions: tile_k must be {least} or more for {p.ab}, not {p.tile_k}"
    of_b = p.problem.scale.of_b
    if of_b is not None and of_b.inner is not None and of_b.inner % p.tile_k:
        return (
            f"multiplies a step along k by one factor of each column: with scale={p.problem.scale}, tile_k must divide "
            f"{of_b.inner}, not be {p.tile_k}"
        )
    return None


def blocks_fit(p: Point) -> Reason:
    """A step of k has one factor of each block. A tile has whole blocks."""
    if not p.scaled_blocks:
        return None
    if p.tile_k != BLOCK_K:
        return f"multiplies a tile by factors of {BLOCK_K} elements along k: tile_k must be {BLOCK_K}, not {p.tile_k}"
    for operand in p.operands:
        if operand.tile % operand.lines:
            return (
                f"multiplies a tile by factors of {operand.lines} lines of {operand.name}: tile_{operand.side} must be a "
                f"multiple of {operand.lines}, not {operand.tile}"
            )
    return None


def cluster_fits(p: Point) -> Reason:
    blocks = p.cluster_m * p.cluster_n
    if blocks > _MAX_BLOCKS:
        return f"has at most {_MAX_BLOCKS} blocks in a cluster, not {p.cluster_m} x {p.cluster_n}"
    for operand in p.operands:
        rows = operand.tile if operand.along_k else p.tile_k
        if rows % (_SWIZZLED_ROWS * operand.sharers):
            what = f"tile_{operand.side}" if operand.along_k else "tile_k"
            return (
                f"cannot share the tile of {operand.name} among {operand.sharers} blocks ({operand.shared_along}): "
                f"{what}={rows} is no multiple of {_SWIZZLED_ROWS} rows for each"
            )
    return None
