"""Where the operands of each group lie: the table that gemm3x_kinds.cu reads on the card."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farm.groups import Groups
from workers.kernels.base import Placement
from workers.kernels.group_offsets import group_offsets


def group_table(groups: Groups, placement: Placement, index: int, *, swap: bool) -> NDArray[np.uint64]:
    """The table of groups of an operand set, as `Column` of gemm3x_kinds.cu describes it, with room up to a multiple of 16 bytes.

    `swap`: whether the kernel computes the transposed product, whose extents are n, rows, k.
    """
    problem = placement.layout.problem
    s, count = problem.shape, len(groups.sizes)
    a, b, c, d = placement.addresses(index)
    bases = np.array([a, b, c or d, d, *placement.added(index)[:2]], np.uint64)
    sizes = np.array(groups.sizes, np.uint64)
    addresses = bases[:, None] + group_offsets(problem, np.cumsum(sizes) - sizes, np.arange(count, dtype=np.uint64))
    leading = np.repeat(np.array([s.k, s.k if problem.layout.b_transposed else s.n, s.n], np.uint64), count)
    n, k = np.full(count, s.n), np.full(count, s.k)
    extents = np.stack((n, sizes, k) if swap else (sizes, n, k), axis=1).astype(np.int32)
    table = addresses.tobytes() + leading.tobytes() + extents.tobytes()
    return np.frombuffer(table + bytes(-len(table) % 16), np.uint64)
