"""Which points of the space suit a problem and fit on a device."""

from __future__ import annotations

from farm.kernels.cutlass3x.point import SHARED_BYTES, TMA_BYTES, Epilogue, Point
from farm.kernels.family import Reason

_REGISTERS = 232
"""Registers of a thread that multiplies (MmaRegisterRequirement of the persistent kernels)."""
_MIN_STAGES = 2
"""What every main loop needs (sm90_mma_tma_gmma_ss_warpspecialized.hpp)."""
_LINES_TOGETHER = 8
"""Rows of the pattern in which lines are swizzled (mma_traits_sm90_gmma.hpp)."""
_MAX_BLOCKS_Y = 65535
"""Blocks of a grid along y: CUDA C++ Programming Guide, technical specifications."""


def registers_suffice(p: Point) -> Reason:
    if p.accumulators < _REGISTERS:
        return None
    return (
        f"needs {p.accumulators} registers of a thread for accumulators alone (tile_m={p.tile_m}, tile_n={p.tile_n}, "
        f"{p.scheduled}), a thread has {_REGISTERS}"
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
        line = operand.extent * operand.element.bytes
        if line % TMA_BYTES:
            return (
                f"loads {operand.name} by TMA, which needs {operand.contiguous} to take a multiple of {TMA_BYTES} bytes in "
                f"layout {p.problem.layout}: {operand.extent} of {operand.element} take {line}"
            )
    n, stored = p.problem.shape.n, p.problem.types.cd
    if p.epilogue == Epilogue.TMA and n * stored.bytes % TMA_BYTES:
        return (
            f"stores D by TMA, which needs n to take a multiple of {TMA_BYTES} bytes: {n} of {stored} take "
            f"{n * stored.bytes}; epilogue=0 does without"
        )
    return None


def grid_fits(p: Point) -> Reason:
    """Where each tile has a block, those along the columns of the kernel's product are the grid's y, in whole clusters."""
    if p.persistent:
        return None
    extent = p.problem.shape.m if p.swap else p.problem.shape.n
    in_cluster = p.left.sharers
    blocks = -(-extent // (p.right.tile * in_cluster)) * in_cluster
    if blocks <= _MAX_BLOCKS_Y:
        return None
    return f"needs a grid of {blocks} blocks along {p.right.side} with schedule=0, {_MAX_BLOCKS_Y} is the most"
