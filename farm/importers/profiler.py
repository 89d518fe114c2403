"""Kernels of the farm by the names that the CUTLASS profiler writes.

`cutlass_simt_sgemm_128x64_8x2_tn_align1` is a block of 128x64, K steps of 8 and 2 stages. Letters and block are of a C that
lies by columns: `n` is by columns as well, and `t` by rows. By rows, as the farm has it, that C is the product of B and A, each
transposed: m and n change places, and so do the letters. The block keeps its name, because CUTLASS builds the kernel
for the transposed product (`EmitGemmUniversalInstance` in cutlass_library/gemm_operation.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration, Kernel
from farm.kernels.cutlass import CUTLASS

_WARPS = {
    (256, 128): (4, 2),
    (128, 256): (2, 4),
    (128, 128): (4, 2),
    (128, 64): (2, 2),
    (64, 128): (2, 2),
    (64, 64): (2, 1),
    (128, 32): (2, 1),
    (32, 128): (1, 2),
}
"""Warps of a block along its rows and columns: `GenerateSM50_Simt` and `GenerateSM80_Simt_f32` in cutlass_library."""

_SWIZZLE = 8
"""`Identity8`, with which the library builds its 2.x kernels (`CreateGemmOperator`)."""

_SGEMM = re.compile(r"cutlass_simt_sgemm_(\d+)x(\d+)_(\d+)x(\d+)_([nt])([nt])_align1")
_F32 = ElementTypes.parse("f32")


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """A kernel of the profiler."""

    kernel: Kernel
    layout: Layout

    def configuration(self, m: int, n: int, k: int, alpha: float, beta: float) -> Configuration:
        """What the profiler ran for its `--m`, `--n` and `--k`."""
        return Configuration(Problem(Shape(n, m, k), _F32, self.layout, alpha, beta), self.kernel)


@cache
def kernel_named(name: str) -> ProfiledKernel | None:
    """The kernel of that name; None where the family `cutlass` has no kernel for it."""
    found = _SGEMM.fullmatch(name)
    if found is None:
        return None
    tile_m, tile_n, tile_k, stages = (int(number) for number in found.groups()[:4])
    warps = _WARPS.get((tile_m, tile_n))
    if warps is None:
        return None
    kernel = Kernel.of(
        CUTLASS.name,
        **{"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "stages": stages, "swizzle": _SWIZZLE},
        **{"warp_m": tile_m // warps[0], "warp_n": tile_n // warps[1]},
    )
    of_a, of_b = found[5], found[6]
    return ProfiledKernel(kernel, Layout(of_b + of_a))
