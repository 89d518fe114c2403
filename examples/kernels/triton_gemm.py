"""A GEMM in Triton: D = alpha * A * B + beta * C, for each product of a batch, in any layout.

The farm compiles `triton_gemm` ahead of time. Of a file it uses imports of Triton, constants and functions with the decorator
triton.jit; a file may have other functions, which launch the kernel elsewhere, and the farm leaves them out.
"""

import triton
import triton.language as tl


@triton.jit
def tile_of_program(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The first row and column of a program's tile. Programs of GROUP_M rows of tiles are neighbours and share tiles of B in the L2."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    rows = min(tiles_m - group * GROUP_M, GROUP_M)
    within = tl.program_id(0) % (GROUP_M * tiles_n)
    return (group * GROUP_M + within % rows) * BLOCK_M, within // rows * BLOCK_N


@triton.jit
def triton_gemm(
    a, b, c, d, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, alpha, beta,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WHOLE_K: tl.constexpr,  # whether k is a multiple of BLOCK_K
    ADDS_C: tl.constexpr,
):  # fmt: skip
    first_row, first_column = tile_of_program(m, n, BLOCK_M, BLOCK_N, GROUP_M)
    rows, columns = first_row + tl.arange(0, BLOCK_M), first_column + tl.arange(0, BLOCK_N)
    row_exists, column_exists = rows < m, columns < n
    inner = tl.arange(0, BLOCK_K)
    product = tl.program_id(1).to(tl.int64)
    # The offset of a product has 64 bits. Those of elements in a tile are many: with 32 bits, they take fewer registers.
    a_tile = a + product * m * k + (rows[:, None] * stride_am + inner[None, :] * stride_ak)
    b_tile = b + product * k * n + (inner[:, None] * stride_bk + columns[None, :] * stride_bn)

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BLOCK_K)):
        if WHOLE_K:
            x = tl.load(a_tile, mask=row_exists[:, None], other=0.0)
            y = tl.load(b_tile, mask=column_exists[None, :], other=0.0)
        else:
            left = k - step * BLOCK_K
            x = tl.load(a_tile, mask=row_exists[:, None] & (inner[None, :] < left), other=0.0)
            y = tl.load(b_tile, mask=(inner[:, None] < left) & column_exists[None, :], other=0.0)
        total = tl.dot(x, y, total)
        a_tile += BLOCK_K * stride_ak
        b_tile += BLOCK_K * stride_bk

    result = total * alpha
    place = rows[:, None] * n + columns[None, :]
    exists = row_exists[:, None] & column_exists[None, :]
    if ADDS_C:
        result += beta * tl.load(c + product * m * n + place, mask=exists, other=0.0).to(tl.float32)
    tl.store(d + product * m * n + place, result.to(d.dtype.element_ty), mask=exists)
