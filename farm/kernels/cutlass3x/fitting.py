"""Which points of the space suit a problem and fit on a device."""

from __future__ import annotations

from farm.kernels.cutlass3x.point import BLOCK_K, FACTOR_BYTES, SHARED_BYTES, TMA_BYTES, Epilogue, Point
from farm.kernels.family import Reason
from farm.scale import PADDED

_REGISTERS = 232
"""Registers of a thread that multiplies (MmaRegisterRequirement of the persistent kernels)."""
_MIN_STAGES = 2
"""What every main loop needs (sm90_mma_tma_gmma_ss_warpspecialized.hpp)."""
_LINES_TOGETHER = 8
"""Rows of the pattern in which lines are swizzled (mma_traits_sm90_gmma.hpp)."""
_MAX_BLOCKS_Y = 65535
"""Blocks of a grid along y, and along z: CUDA C++ Programming Guide, technical specifications."""
_MANY_FACTORS = 32
"""Of a tile (ScaleTmaThreshold, sm90_mma_tma_gmma_ss_warpspecialized_fp8_blockwise_scaling.hpp)."""


def registers_suffice(p: Point) -> Reason:
    need = p.accumulators + p.factor_registers
    if need < _REGISTERS:
        return None
    what = "accumulators and scale factors" if p.factor_registers else "accumulators"
    return (
        f"needs {need} registers of a thread for {what} alone (tile_m={p.tile_m}, tile_n={p.tile_n}, {p.scheduled}), a "
        f"thread has {_REGISTERS}"
    )


def shared_memory_fits(p: Point) -> Reason:
    if p.stages_kept < _MIN_STAGES:
        return (
            f"needs {_MIN_STAGES} stages at least, and {p.stages_kept} of {p.stage_bytes} bytes fit into shared memory "
            "next to the stored tiles"
        )
    most = min(SHARED_BYTES, p.device.shared_memory_per_block_bytes or SHARED_BYTES)
    if p.shared_bytes <= most:
        return None
    return f"needs {p.shared_bytes} bytes of shared memory for {p.stages_kept} stages, the device has {most}"


def stages_are_swizzled_alike(p: Point) -> Reason:
    """Eight lines of a tile are swizzled together, counted in elements: a smaller tile shares them with the next stage."""
    for operand in p.operands:
        tile, together = operand.tile * p.tile_k, _LINES_TOGETHER * p.line_bytes(operand)
        if p.stages_kept * tile % together:
            return (
                f"swizzles {together} elements of {operand.name} in shared memory alike, and a tile of {operand.tile} x "
                f"{p.tile_k} has {tile}: the number of stages must be a multiple of {together // tile}, not {p.stages_kept}"
            )
    return None


def tma_can_copy(p: Point) -> Reason:
    for operand in p.operands:
        line = operand.extent * operand.element.bits // 8
        if line % TMA_BYTES:
            return (
                f"loads {operand.name} by TMA, which needs {operand.contiguous} to take a multiple of {TMA_BYTES} bytes in "
                f"layout {p.problem.layout}: {operand.extent} of {operand.element} take {line}"
            )
    n, stored, factor = p.problem.shape.n, p.problem.types.cd, p.narrow_factor_bytes
    if n * factor % TMA_BYTES:
        return f"loads the factors of B by TMA, which needs n to be a multiple of {TMA_BYTES // factor} for {p.ab}, not {n}"
    if p.epilogue == Epilogue.TMA and n * stored.bytes % TMA_BYTES:
        return (
            f"stores D by TMA, which needs n to take a multiple of {TMA_BYTES} bytes: {n} of {stored} take "
            f"{n * stored.bytes}; epilogue=0 does without"
        )
    return None


def factors_can_be_read(p: Point) -> Reason:
    """The main loop copies the factors of many single lines by TMA, if those of the other operand are few. For groups it
    computes itself where factors lie, without the room that those of 128x128 blocks have (see `workers.measure.stored`)."""
    if not p.scaled_blocks:
        return None
    shape = p.problem.shape
    for operand, other in (p.operands, p.operands[::-1]):
        lines = shape.m if operand.side == "m" else shape.n
        by_tma = operand.lines == 1 and operand.tile >= _MANY_FACTORS > other.factors and not p.grouped
        if by_tma and lines * FACTOR_BYTES % TMA_BYTES:
            return (
                f"loads the factors of {operand.name} by TMA, which needs {operand.side} to be a multiple of "
                f"{TMA_BYTES // FACTOR_BYTES}, not {lines}"
            )
        blocks = -(-shape.k // BLOCK_K)
        if p.grouped and operand.lines > 1 and blocks % PADDED:
            return (
                f"reads the factors of {operand.name} for groups where k has a multiple of {PADDED} blocks of {BLOCK_K}, "
                f"not {blocks}"
            )
    return None


def grid_fits(p: Point) -> Reason:
    """Where each tile has a block, those along the columns of the kernel's product are the grid's y, in whole clusters, and
    products of a batch its z."""
    if p.persistent:
        return None
    if p.problem.batch > _MAX_BLOCKS_Y:
        return f"computes a batch of {_MAX_BLOCKS_Y} or less with schedule=0, not {p.problem.batch}"
    extent = p.problem.shape.m if p.swap else p.problem.shape.n
    in_cluster = p.left.sharers
    blocks = -(-extent // (p.right.tile * in_cluster)) * in_cluster
    if blocks <= _MAX_BLOCKS_Y:
        return None
    return f"needs a grid of {blocks} blocks along {p.right.side} with schedule=0, {_MAX_BLOCKS_Y} is the most"
