"""What the loop of a Triton kernel cannot do ahead of time: loads that it waits for, and weights that it converts.

Triton copies the tiles of later steps while it multiplies those of the present one, if a thread copies at least four bytes that lie
together at a time (PTX ISA, cp.async). Otherwise each step waits for memory. The compiler knows of extents only whether they are multiples
of 16, so tiles of a matrix whose lines have another length are loaded element by element. Scale factors of groups of weights are loaded
ahead only where a tile has enough of them for its threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import BYTES_OF_B
from .completed_rows import Configurations
from .numeric import Floats
from .physics import Tiling

_MULTIPLE = 16
"""The multiple that Triton's compiler distinguishes."""

_COPIED_FACTORS = 2
"""The fewest factors of 16 bits that a thread copies ahead: four bytes."""


@dataclass(frozen=True)
class Loads:
    """What a step of k costs in addition to what is computed; 0 for kernels without it. Each is [rows]."""

    # For how many loads a step waits, one after another: that of operands, and that of factors.
    waits: Floats
    # Elements that a thread loads one by one.
    single: Floats
    # Weights of fewer bits than A that a thread converts.
    converted: Floats

    @classmethod
    def of(cls, rows: Configurations, tiling: Tiling) -> Loads:
        """Kernels with a number of warps are Triton's. Those with `tma` have their tiles copied by descriptors."""
        m, n, k, threads = rows["m"], rows["n"], rows["k"], tiling.threads
        low_bit, inner = rows[BYTES_OF_B] < rows["ab_bytes"], rows["b_inner"]
        by_threads = np.isfinite(rows.parameter("warps")) & ~(rows.parameter("tma") > 0)
        odd_a = by_threads & (np.where(rows["a_transposed"] > 0, m, k) % _MULTIPLE > 0)
        odd_b = by_threads & (np.where(rows["b_transposed"] > 0, k, n) % _MULTIPLE > 0)
        # Factors of groups of weights: inside a tile there are several along k, or one for all of it.
        grouped = by_threads & low_bit & (inner < k)
        copied = tiling.depth / inner * tiling.columns >= _COPIED_FACTORS * threads
        ahead = (inner < tiling.depth) & copied
        single = (odd_a * tiling.rows + odd_b * tiling.columns) * tiling.depth / threads
        converted = tiling.columns * tiling.depth / threads
        waits: Floats = np.where(odd_a | odd_b, 1.0, 0.0) + np.where(grouped & ~ahead, 1.0, 0.0)
        converts = low_bit & np.isfinite(converted)
        return cls(waits, np.where(by_threads, single, 0.0), np.where(converts, converted, 0.0))
