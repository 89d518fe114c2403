"""Which points of the space suit a problem and fit on a device."""

from __future__ import annotations

from farm.kernels.cutlass.point import Point, load_at_once
from farm.kernels.family import Reason

_MIN_COPY_BYTES = 4
"""The least that an asynchronous copy moves (PTX ISA, cp.async)."""
_MAX_LOADS = 64
"""Loads of a tile by one thread that are guarded (PredicatedTileAccessIterator)."""
_REGISTERS, _MAX_REGISTERS = 65536, 255
"""Registers of a block, and of a thread: CUDA C++ Programming Guide, technical specifications."""
_MAX_BLOCKS = 65535
"""Blocks of a grid along y and along z, the same."""


def alignment_is_possible(p: Point) -> Reason:
    largest = p.largest_access
    if p.align > largest:
        most = "one element" if largest == 1 else f"at most {largest} elements"
        return f"loads {most} of {p.ab} at once, not align={p.align}"
    for operand in p.operands:
        if p.align and operand.extent % p.align:
            return (
                f"cannot load {p.align} elements of {operand.name} at once: in layout {p.problem.layout} they follow "
                f"each other along {operand.contiguous}={operand.extent}, which is no multiple of {p.align}"
            )
        at_once = load_at_once(operand.extent, p.ab, p.align)
        if p.stages > 2 and at_once * p.ab.bytes < _MIN_COPY_BYTES:
            return (
                f"copies at least {_MIN_COPY_BYTES} bytes asynchronously where stages={p.stages}, and {at_once} of "
                f"{operand.name} ({operand.contiguous}={operand.extent}) is {at_once * p.ab.bytes}; stages=2 does without"
            )
        loads = operand.tile * p.tile_k // at_once // p.threads
        if loads > _MAX_LOADS:
            return (
                f"needs {loads} loads of {operand.name} in each thread for a tile, {at_once} at once; "
                f"CUTLASS guards at most {_MAX_LOADS}"
            )
    return None


def shared_memory_fits(p: Point) -> Reason:
    need, most = p.shared_bytes, p.device.shared_memory_per_block_bytes
    if most is None or need <= most:
        return None
    return f"needs {need} bytes of shared memory, the device has {most}"


def registers_suffice(p: Point) -> Reason:
    most = min(_MAX_REGISTERS, _REGISTERS // p.threads)
    if p.accumulators < most:
        return None
    return (
        f"needs {p.accumulators} registers of a thread for accumulators alone (warp_m={p.warp_m}, warp_n={p.warp_n}), "
        f"a thread of a block of {p.threads} has {most}"
    )


def batch_is_whole(p: Point) -> Reason:
    batch = p.problem.batch
    if batch > 1 and p.split_k > 1:
        return f"slices k of one product only: with batch={batch}, split_k must be 1, not {p.split_k}"
    if batch > _MAX_BLOCKS:
        return f"computes at most {_MAX_BLOCKS} products in a batch, not {batch}"
    return None


def slices_have_work(p: Point) -> Reason:
    steps = -(-p.problem.shape.k // p.tile_k)
    each = -(-steps // p.split_k)
    if (p.split_k - 1) * each < steps:
        return None
    return (
        f"leaves slices of k empty: k={p.problem.shape.k} is {steps} steps of tile_k={p.tile_k}, "
        f"which split_k={p.split_k} shares out as {each} each"
    )


def grid_fits(p: Point) -> Reason:
    blocks = -(-p.problem.shape.n // (p.tile_n * p.swizzle))
    if blocks <= _MAX_BLOCKS:
        return None
    return f"needs a grid of {blocks} blocks along n, {_MAX_BLOCKS} is the most"
