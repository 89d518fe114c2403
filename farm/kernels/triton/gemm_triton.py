"""The template of the family `triton`: D = activation(alpha * A * B + beta * C + bias), for each product of a batch or each group.

A builder loads this file and compiles `gemm` with what `specialisation` returns; the farm itself never imports it. A program computes
one tile of D. Programs of `GROUP_M` rows of tiles are neighbours, so that they share tiles of B in the L2 cache.

A tile has rows of one group, and programs of a group are neighbours. `groups` has of the group of each tile of rows its first tile,
its first row, where its rows end, and its number, as `workers.kernels.group_tiles` describes.

With `TMA`, tiles of A and B are copied by the tensor memory accelerator, by descriptors that each program makes in scratch memory.

With a gate, D = activation(P[:, :n/2]) * P[:, n/2:] of P = alpha * A * B + bias, and a program multiplies two tiles of B of half as
many columns.

Scale factors lie as `workers.measure.stored` describes. One for the matrix or for a row multiplies the whole sum, and one for 128
elements along k the sum of a tile, which lies inside these.

Weights of fewer bits are converted to A's type before they are multiplied. A factor for each `WEIGHTS_PER_FACTOR` of them along k
multiplies the sum of a tile that lies inside these, and otherwise the weights.
"""

import os

import triton
import triton.language as tl

_ELEMENTS = {
    "f32": "fp32",
    "tf32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "i8": "i8",
    "i32": "i32",
    "i4": "u8",  # two in a byte, as f4
    "f4": "u8",
}
_ACCUMULATORS = {"f32": tl.float32, "f16": tl.float16, "i32": tl.int32}


def specialisation(defined):
    """The signature, the constants, the arguments that are multiples of 16, and the options of a compilation.

    Args:
        defined: the definitions of the binary, as text.
    """
    a, b, d = (f"*{_ELEMENTS[defined[name]]}" for name in ("TYPE_A", "TYPE_B", "CD"))
    signature = {
        **{"a": a, "b": b, "c": d, "d": d, "scale_a": "*fp32", "bias": d},
        "scale_b": a if defined["SCALE_A"] == "none" != defined["SCALE_B"] else "*fp32",
        **({"groups": "*i64"} if defined["GROUPED"] == "1" else {}),
        **dict.fromkeys(("m", "n", "k"), "i32"),
        **dict.fromkeys(("alpha", "beta"), "i32" if defined["ACC"] == "i32" else "fp32"),
    }
    constants = {
        name: int(defined[name]) if defined[name].isdigit() else defined[name]
        for name in gemm.arg_names
        if name in defined
    }
    if "groups" not in signature:
        constants["groups"] = None
    constants["ACC"] = _ACCUMULATORS[defined["ACC"]]
    constants["PRECISION"] = "tf32" if defined["TYPE_A"] == "tf32" else "ieee"
    multiples = [name for name, kind in signature.items() if kind[0] == "*" or defined.get(f"{name.upper()}_16") == "1"]
    # One rounding for a product and a sum. Without it, f32 would take twice the instructions.
    options = {"num_warps": int(defined["WARPS"]), "num_stages": int(defined["STAGES"]), "enable_fp_fusion": True}
    return signature, constants, multiples, options


@triton.jit
def scale_of_lines(
    scale, product, first, exists, extent, k, step, KIND: tl.constexpr, TILE: tl.constexpr, ALIGNED: tl.constexpr = 1
):
    """The factors of a tile's rows of A, or of its columns of B: one for all, or one for each. `ALIGNED`: `first` is a multiple of
    the tile."""
    lines = first + tl.arange(0, TILE)
    if KIND == "tensor":
        return tl.load(scale + product)
    elif KIND == "row":
        return tl.load(scale + product * extent + lines, mask=exists, other=0.0)
    elif KIND == "1x128":
        return tl.load(scale + (product * tl.cdiv(k, 128) + step) * extent + lines, mask=exists, other=0.0)
    else:
        steps = tl.cdiv(tl.cdiv(k, 128), 4) * 4
        blocks = scale + product * tl.cdiv(extent, 128) * steps + step
        if TILE <= 128 and ALIGNED:
            return tl.load(blocks + first // 128 * steps)
        else:
            return tl.load(blocks + lines // 128 * steps, mask=exists, other=0.0)


@triton.jit
def scaled(value, of_rows, of_columns):
    """A tile times the factors of its rows and of its columns."""
    if of_rows.type.is_block():
        value = value * of_rows[:, None]
    else:
        value = value * of_rows
    if of_columns.type.is_block():
        return value * of_columns[None, :]
    else:
        return value * of_columns


@triton.jit
def number_of(code, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """A weight of 4 bits as a float16 or bfloat16, whose bits are found without a conversion."""
    bits = code.to(tl.uint16)
    if KIND == "i4":  # 1032 or 136 and the number: these have the last bit of 1
        if DTYPE == tl.float16:
            return (bits ^ 0x6408).to(tl.float16, bitcast=True) - 1032.0
        else:
            return (bits ^ 0x4308).to(tl.bfloat16, bitcast=True) - 136.0
    elif DTYPE == tl.float16:  # exponent and mantissa at their place, and then another bias
        return ((bits & 8) << 12 | (bits & 7) << 9).to(tl.float16, bitcast=True) * 16384.0
    else:
        return ((bits & 8) << 12 | (bits & 7) << 6).to(tl.bfloat16, bitcast=True) * 8.507059173023462e37


def _of_four_bytes(*steps):
    """PTX that makes a pair of numbers of 16 bits from each byte, from its low and its high code in the halves of `both`."""
    lines = ["shr.u32 high, $4, 4;"]
    for byte in range(4):
        lines.append(f"prmt.b32 both, $4, high, {0x4400 + 0x1111 * byte:#06x};")
        lines += [step.replace("PAIR", f"${byte}") for step in steps]
    return tl.constexpr("{ .reg .b32 high, both, sign, " + "factor, addend; " + " ".join(lines) + " }")


_SIGN = ("shl.b32 sign, both, 12;", "and.b32 sign, sign, 0x80008000;")
_I4_IN_F16 = _of_four_bytes(
    "and.b32 both, both, 0x000F000F;", "xor.b32 both, both, 0x64086408;",
    "mov.b32 addend, 0x64086408;", "sub.f16x2 PAIR, both, addend;",
)  # fmt: skip
_I4_IN_BF16 = _of_four_bytes(
    "and.b32 both, both, 0x000F000F;", "xor.b32 both, both, 0x43084308;",
    "mov.b32 factor, 0x3F803F80;", "mov.b32 addend, 0xC308C308;", "fma.rn.bf16x2 PAIR, both, factor, addend;",
)  # fmt: skip
_F4_IN_F16 = _of_four_bytes(
    *_SIGN, "shl.b32 both, both, 9;", "and.b32 both, both, 0x0E000E00;", "or.b32 both, both, sign;",
    "mov.b32 factor, 0x74007400;", "mul.f16x2 PAIR, both, factor;",
)  # fmt: skip
_F4_IN_BF16 = _of_four_bytes(
    *_SIGN, "shl.b32 both, both, 6;", "and.b32 both, both, 0x01C001C0;", "or.b32 both, both, sign;",
    "mov.b32 factor, 0x7E807E80;", "mov.b32 addend, 0x80008000;", "fma.rn.bf16x2 PAIR, both, factor, addend;",
)  # fmt: skip
_HALVES = tl.constexpr("mov.b32 {$0, $1}, $2;")
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""The interpreter has no PTX."""


@triton.jit
def unpacked(codes, KIND: tl.constexpr, DTYPE: tl.constexpr, LINES: tl.constexpr, LENGTH: tl.constexpr):
    """[LINES, LENGTH]: the numbers of bytes that have two each. The PTX computes what `number_of` does, with fewer instructions."""
    if _INTERPRETED:
        low, high = number_of(codes & 15, KIND, DTYPE), number_of(codes >> 4, KIND, DTYPE)
    else:
        if KIND == "i4":
            PTX: tl.constexpr = _I4_IN_F16 if DTYPE == tl.float16 else _I4_IN_BF16
        else:
            PTX: tl.constexpr = _F4_IN_F16 if DTYPE == tl.float16 else _F4_IN_BF16
        pairs = tl.inline_asm_elementwise(PTX, "=&r,=&r,=&r,=&r,r", [codes], dtype=tl.int32, is_pure=True, pack=4)
        if DTYPE == tl.float16:
            low, high = tl.inline_asm_elementwise(
                _HALVES, "=h,=h,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=1
            )
        else:
            low, high = tl.inline_asm_elementwise(
                _HALVES, "=h,=h,r", [pairs], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=1
            )
    return tl.reshape(tl.join(low, high), (LINES, LENGTH))


@triton.jit
def packed_tile(
    tile, inner, halves, length, column_exists, left,
    KIND: tl.constexpr, DTYPE: tl.constexpr, B_TRANSPOSED: tl.constexpr, WHOLE_K: tl.constexpr, TILE_K: tl.constexpr,
    TILE_N: tl.constexpr,
):  # fmt: skip
    """[TILE_K, TILE_N]: the weights of a tile, of 4 bits each."""
    if B_TRANSPOSED:
        if WHOLE_K:
            pairs = tl.load(tile, mask=column_exists[:, None], other=0)
        else:
            pairs = tl.load(tile, mask=column_exists[:, None] & (halves[None, :] < left // 2), other=0)
        return tl.trans(unpacked(pairs, KIND, DTYPE, TILE_N, TILE_K))
    else:
        if WHOLE_K:
            pairs = tl.load(tile, mask=halves[None, :] < length, other=0)
        else:
            pairs = tl.load(tile, mask=(inner[:, None] < left) & (halves[None, :] < length), other=0)
        return unpacked(pairs, KIND, DTYPE, TILE_K, TILE_N)


@triton.jit
def times_groups(
    tile, factors, step, column_exists, n, k, PER_FACTOR: tl.constexpr, TILE_K: tl.constexpr, TILE_N: tl.constexpr
):
    """The weights of a tile times the factors of its groups."""
    GROUPS: tl.constexpr = TILE_K // PER_FACTOR
    numbers = step * GROUPS + tl.arange(0, GROUPS)
    exists = (numbers[:, None] * PER_FACTOR < k) & column_exists[None, :]
    of_groups = tl.load(factors[None, :] + numbers[:, None] * n, mask=exists, other=0.0)
    by_group = tl.reshape(tile, (GROUPS, PER_FACTOR, TILE_N)) * of_groups[:, None, :]
    return tl.reshape(by_group, (TILE_K, TILE_N))


@triton.jit
def scaled_sum(
    total, alpha, scale_a, scale_b, product, product_of_b, first_row, row_exists, first_column, column_exists, m, n, k,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """The sum of a tile times alpha and the factors of a whole matrix or of its lines."""
    if total.dtype == tl.int32:
        result = total * alpha
    else:
        result = total.to(tl.float32) * alpha
    if SCALE_A == "tensor" or SCALE_A == "row":
        of_rows = scale_of_lines(scale_a, product, first_row, row_exists, m, k, 0, SCALE_A, TILE_M)
        of_columns = scale_of_lines(scale_b, product_of_b, first_column, column_exists, n, k, 0, SCALE_B, TILE_N)
        return scaled(result, of_rows, of_columns)
    elif SCALE_B == "row":
        of_columns = scale_of_lines(scale_b, product_of_b, first_column, column_exists, n, k, 0, SCALE_B, TILE_N)
        return result * of_columns.to(tl.float32)[None, :]
    else:
        return result


@triton.jit
def bias_of(bias, product, columns, exists, n):
    return tl.load(bias + product * n + columns, mask=exists, other=0.0).to(tl.float32)[None, :]


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        return tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":  # x/2 * (1 + tanh(y)) is x / (1 + exp(-2y))
        return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "silu":
        return x / (1.0 + tl.exp(-x))
    else:
        return x


@triton.jit
def gemm(
    a,
    b,
    c,
    d,
    scale_a,
    scale_b,
    bias,
    groups,
    m,
    n,
    k,
    alpha,
    beta,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    TYPE_B: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    GROUPED: tl.constexpr,
    TMA: tl.constexpr,
    WHOLE_K: tl.constexpr,  # whether k is a multiple of TILE_K
    WIDE: tl.constexpr,  # whether a matrix has 2^31 elements or more
    SUM_OFFSETS: tl.constexpr,  # whether lines of A or B are no multiples of 16 elements: each element has an address of its own
    IMPRECISE: tl.constexpr,  # after how many terms a sum of 8-bit floats goes to the accumulator
    ADDS_C: tl.constexpr,
    SCALE_A: tl.constexpr,
    SCALE_B: tl.constexpr,
    WEIGHTS_PER_FACTOR: tl.constexpr,  # along k, of weights alone that have factors of groups
    WHOLE_SECTORS: tl.constexpr,  # whether lines of packed weights are multiples of 16 bytes
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    UP_ALIGNED: tl.constexpr,  # whether half of n is a multiple of half a tile
):
    # Columns of D, and of its tile. The gate has the first ones of B, and what it is for the last ones.
    width = n // 2 if GATED else n
    TILE_D: tl.constexpr = TILE_N // 2 if GATED else TILE_N
    tiles_n, program = tl.cdiv(width, TILE_D), tl.program_id(0)
    product = tl.program_id(1).to(tl.int64)
    product_of_b = product
    if GROUPED:  # a product of its own
        of_tile = groups + program // tiles_n * 4
        first_of_group, end, product_of_b = tl.load(of_tile + 1), tl.load(of_tile + 2), tl.load(of_tile + 3)
        program -= tl.load(of_tile).to(tl.int32) * tiles_n
        m = (end - first_of_group).to(tl.int32)
        a += first_of_group * k
        c += first_of_group * width
        d += first_of_group * width
        if SCALE_A == "row":
            scale_a += first_of_group
        elif SCALE_A == "1x128":
            scale_a += first_of_group * tl.cdiv(k, 128)
    tiles_m = tl.cdiv(m, TILE_M)
    band = program // (GROUP_M * tiles_n)
    rows_of_band = min(tiles_m - band * GROUP_M, GROUP_M)
    within = program % (GROUP_M * tiles_n)
    first_row = (band * GROUP_M + within % rows_of_band) * TILE_M
    first_column = within // rows_of_band * TILE_D

    rows, columns, inner = (
        first_row + tl.arange(0, TILE_M),
        first_column + tl.arange(0, TILE_D),
        tl.arange(0, TILE_K),
    )
    row_exists, column_exists = rows < m, columns < width
    if WIDE:
        rows, columns, inner = rows.to(tl.int64), columns.to(tl.int64), inner.to(tl.int64)
    if A_TRANSPOSED:
        a_row, a_inner = 1, m
    else:
        a_row, a_inner = k, 1
    if B_TRANSPOSED:
        b_column, b_inner = k, 1
    else:
        b_column, b_inner = 1, n
    a += product * m * k
    PACKED: tl.constexpr = TYPE_B == "i4" or TYPE_B == "f4"
    if TMA:
        b += product_of_b * k * n
        if A_TRANSPOSED:
            of_a = tl.make_tensor_descriptor(a, shape=[k, m], strides=[m, 1], block_shape=[TILE_K, TILE_M])
        else:
            of_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[TILE_M, TILE_K])
        if B_TRANSPOSED:
            of_b = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[TILE_D, TILE_K])
        else:
            of_b = tl.make_tensor_descriptor(b, shape=[k, n], strides=[n, 1], block_shape=[TILE_K, TILE_D])
    else:
        # Summed first, offsets are added in 32 bits, unless a matrix is WIDE.
        if SUM_OFFSETS:
            a_tile = a + (rows[:, None] * a_row + inner[None, :] * a_inner)
        else:
            a_tile = a + rows[:, None] * a_row + inner[None, :] * a_inner
        if PACKED:
            if B_TRANSPOSED:
                length, lines, halves = k // 2, columns, tl.arange(0, TILE_K // 2)
            else:
                length, lines, halves = n // 2, inner, first_column // 2 + tl.arange(0, TILE_D // 2)
            if WHOLE_SECTORS:
                length = tl.multiple_of(length, 16)
            if WIDE:
                halves = halves.to(tl.int64)
            b_tile = b + product_of_b * n * k // 2 + lines[:, None] * length + halves[None, :]
            ends = width // 2
            if B_TRANSPOSED:
                b_step = TILE_K // 2
            else:
                b_step = TILE_K * length
        else:
            if SUM_OFFSETS:
                b_tile = b + product_of_b * k * n + (inner[:, None] * b_inner + columns[None, :] * b_column)
            else:
                b_tile = b + product_of_b * k * n + inner[:, None] * b_inner + columns[None, :] * b_column
            b_step = TILE_K * b_inner

    if PACKED:
        up_starts = width.to(tl.int64) * b_column // 2
    else:
        up_starts = width.to(tl.int64) * b_column
    GROUP_OF_TILE: tl.constexpr = WEIGHTS_PER_FACTOR >= TILE_K
    BLOCKS: tl.constexpr = SCALE_A == "1x128" or SCALE_A == "128x128"
    total = tl.zeros((TILE_M, TILE_D), dtype=tl.float32 if BLOCKS else ACC)
    up = total
    for step in range(0, tl.cdiv(k, TILE_K)):
        left = k - step * TILE_K
        if TMA:
            x = of_a.load([step * TILE_K, first_row]).T if A_TRANSPOSED else of_a.load([first_row, step * TILE_K])
        elif WHOLE_K:
            x = tl.load(a_tile, mask=row_exists[:, None], other=0.0)
        else:
            x = tl.load(a_tile, mask=row_exists[:, None] & (inner[None, :] < left), other=0.0)
        if TMA:
            y = of_b.load([first_column, step * TILE_K]).T if B_TRANSPOSED else of_b.load([step * TILE_K, first_column])
        elif PACKED:
            y = packed_tile(
                b_tile, inner, halves, ends, column_exists, left, TYPE_B, x.dtype, B_TRANSPOSED, WHOLE_K, TILE_K, TILE_D
            )
        elif WHOLE_K:
            y = tl.load(b_tile, mask=column_exists[None, :], other=0.0)
        else:
            y = tl.load(b_tile, mask=(inner[:, None] < left) & column_exists[None, :], other=0.0)
        if TYPE_B == "i8" and x.dtype != tl.int8:
            y = y.to(x.dtype)
        if WEIGHTS_PER_FACTOR > 0:
            factors = scale_b + product_of_b * tl.cdiv(k, WEIGHTS_PER_FACTOR) * n + columns
            if not GROUP_OF_TILE:
                y = times_groups(y, factors, step, column_exists, n, k, WEIGHTS_PER_FACTOR, TILE_K, TILE_D)
        if GATED and TMA:
            up_column = width + first_column
            z = of_b.load([up_column, step * TILE_K]).T if B_TRANSPOSED else of_b.load([step * TILE_K, up_column])
        elif GATED and PACKED:
            z = packed_tile(
                b_tile + up_starts, inner, halves, ends, column_exists, left, TYPE_B, x.dtype, B_TRANSPOSED, WHOLE_K, TILE_K,
                TILE_D,
            )  # fmt: skip
        elif GATED and WHOLE_K:
            z = tl.load(b_tile + up_starts, mask=column_exists[None, :], other=0.0)
        elif GATED:
            z = tl.load(b_tile + up_starts, mask=(inner[:, None] < left) & column_exists[None, :], other=0.0)
        if GATED and TYPE_B == "i8" and x.dtype != tl.int8:
            z = z.to(x.dtype)
        if GATED and WEIGHTS_PER_FACTOR > 0 and not GROUP_OF_TILE:
            z = times_groups(z, factors + width, step, column_exists, n, k, WEIGHTS_PER_FACTOR, TILE_K, TILE_D)
        if BLOCKS:
            at = step * TILE_K // 128
            of_rows = scale_of_lines(scale_a, product, first_row, row_exists, m, k, at, SCALE_A, TILE_M)
            of_columns = scale_of_lines(scale_b, product_of_b, first_column, column_exists, n, k, at, SCALE_B, TILE_D)
            part = tl.dot(x, y, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=ACC)
            total += scaled(part.to(tl.float32), of_rows, of_columns)
            if GATED:
                of_columns = scale_of_lines(
                    scale_b, product_of_b, width + first_column, column_exists, n, k, at, SCALE_B, TILE_D, UP_ALIGNED
                )
                part = tl.dot(x, z, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=ACC)
                up += scaled(part.to(tl.float32), of_rows, of_columns)
        elif WEIGHTS_PER_FACTOR > 0 and GROUP_OF_TILE:
            of_group = tl.load(factors + step * TILE_K // WEIGHTS_PER_FACTOR * n, mask=column_exists, other=0.0)
            total += tl.dot(x, y, out_dtype=ACC) * of_group.to(tl.float32)[None, :]
            if GATED:
                of_up = tl.load(
                    factors + width + step * TILE_K // WEIGHTS_PER_FACTOR * n, mask=column_exists, other=0.0
                )
                up += tl.dot(x, z, out_dtype=ACC) * of_up.to(tl.float32)[None, :]
        else:
            total = tl.dot(x, y, total, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=ACC)
            if GATED:
                up = tl.dot(x, z, up, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=ACC)
        if not TMA:
            a_tile += TILE_K * a_inner
            b_tile += b_step

    result = scaled_sum(
        total, alpha, scale_a, scale_b, product, product_of_b, first_row, row_exists, first_column, column_exists, m, n, k,
        SCALE_A, SCALE_B, TILE_M, TILE_D,
    )  # fmt: skip
    place = rows[:, None] * width + columns[None, :]
    exists = row_exists[:, None] & column_exists[None, :]
    if ADDS_C:
        result += tl.load(c + product * m * n + place, mask=exists, other=0.0).to(result.dtype) * beta
    if BIAS:
        result += bias_of(bias, product_of_b, columns, column_exists, n)
    result = activated(result, ACTIVATION)
    if GATED:
        up = scaled_sum(
            up, alpha, scale_a, scale_b, product, product_of_b, first_row, row_exists, width + first_column, column_exists, m, n, k,
            SCALE_A, SCALE_B, TILE_M, TILE_D,
        )  # fmt: skip
        if BIAS:
            up += bias_of(bias, product_of_b, width + columns, column_exists, n)
        result *= up
    tl.store(d + product * m * width + place, result.to(d.dtype.element_ty), mask=exists)
