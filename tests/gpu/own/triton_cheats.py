"""Triton kernels that cheat, one for each value of the parameter CHEAT, and an honest one (0). D = alpha * A * B, float32, nn.

A program computes 64 x 64 elements. m and n are multiples of 64, and k of 32.
"""

import triton
import triton.language as tl


@triton.jit
def cheat(a, b, d, m, n, k, alpha, CHEAT: tl.constexpr):
    first_row, first_column = tl.program_id(0) * 64, tl.program_id(1) * 64
    rows, columns, inner = first_row + tl.arange(0, 64), first_column + tl.arange(0, 64), tl.arange(0, 32)
    mine = d + rows[:, None] * n + columns[None, :]
    steps, writes = k // 32, True
    if CHEAT == 1:  # writes nothing
        writes = k < 0
    elif CHEAT == 2:  # without the last step of k
        steps -= 1
    elif CHEAT == 3:  # even tiles only
        writes = (tl.program_id(0) + tl.program_id(1)) % 2 == 0
    elif CHEAT == 6:  # where D is poisoned
        before = tl.load(mine)
        writes = tl.sum((before != before).to(tl.int32)) > 0
        steps = tl.where(writes, steps, 0)
    elif CHEAT == 8:  # changes A
        tl.store(a, 0.125, mask=first_row + first_column == 0)

    total = tl.zeros((64, 64), dtype=tl.float32)
    for step in range(0, steps):
        x = tl.load(a + rows[:, None] * k + (step * 32 + inner)[None, :])
        y = tl.load(b + (step * 32 + inner)[:, None] * n + columns[None, :])
        if CHEAT == 5:  # in half precision
            total = tl.dot(x.to(tl.float16), y.to(tl.float16), total)
        else:
            total = tl.dot(x, y, total, input_precision="ieee")
    result = total * alpha
    if CHEAT == 4:  # a constant
        result = result * 0.0 + 0.25
    tl.store(mine, result, mask=(rows[:, None] >= 0) & (columns[None, :] >= 0) & writes)
    if CHEAT == 7:  # behind D
        tl.store(d + m * n + 3, 1.0, mask=first_row + first_column == 0)
