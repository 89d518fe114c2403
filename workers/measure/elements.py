"""How element types lie in memory: their storage, how numbers become elements, and back.

NumPy and CuPy have no type for bf16, tf32 and the 8-bit floats. Their elements lie in unsigned integers of the same size
(tf32 in float32, whose 13 lowest bits the multiplier drops), and `decode` converts them to float64 exactly. The code is the
same for NumPy and CuPy: `xp` is the module that the arrays come from.

Elements of 4 bits lie two in a byte, the first in its low bits. `encode` and `decode` have each in a byte of its own, and `packed`
and `unpacked` convert.

The 8-bit formats are defined in "FP8 formats for deep learning" (arXiv 2209.05433): e4m3 has no infinities, one NaN, and
448 as its largest number; e5m2 is an IEEE format with 57344.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.gemm import ElementType
from farm.operands import MatrixRules

E = ElementType

STORAGE: dict[ElementType, Any] = {
    E.F64: np.float64,
    E.F32: np.float32,
    E.TF32: np.float32,
    E.F16: np.float16,
    E.BF16: np.uint16,
    E.F8E4M3: np.uint8,
    E.F8E5M2: np.uint8,
    E.I8: np.int8,
    E.I32: np.int32,
    E.I4: np.uint8,
    E.F4: np.uint8,
}
"""The array type that holds the elements of a type. A pair has none: A and B are arrays of their own types."""

UNIT_ROUNDOFF: dict[ElementType, float] = {
    E.F64: 2.0**-53,
    E.F32: 2.0**-24,
    E.TF32: 2.0**-11,
    E.F16: 2.0**-11,
    E.BF16: 2.0**-8,
    E.F8E4M3: 2.0**-4,
    E.F8E5M2: 2.0**-3,
    E.I8: 0.0,
    E.I32: 0.0,
    E.I4: 0.0,
    E.F4: 2.0**-2,
}
"""Half the distance from 1 to the next number of a type; integers are exact."""

INTEGERS = (E.I8, E.I32)
INTEGER_SPAN = 127
"""A number on [-1, 1] becomes an integer of -127 to 127."""

_SPANS = {E.I8: INTEGER_SPAN, E.I32: INTEGER_SPAN, E.I4: 8}
"""What 1 becomes in integers. i4 ends at 7: [-1, 1) is cut into 16 equal parts, one for each number."""

MAX_HALF = 65504.0

INTEGER_DEVIATION = 0.25
"""Normal numbers become integers of this standard deviation, as a share of 127: few reach the ends."""

MAX_INTEGER = 2
"""The largest of `integers`. Every type has these numbers, and sums of some 10^5 products are exact in float32."""

_FORMATS = {E.F8E4M3: (4, 3, 7), E.F8E5M2: (5, 2, 15)}  # exponent bits, mantissa bits, bias


_F4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # e2m1, without the sign
_DECODED_4BIT = {E.I4: np.array([*range(8), *range(-8, 0)], np.float64), E.F4: np.concatenate([_F4, -_F4])}


def packed(kind: ElementType, elements: Any) -> Any:
    """The memory of elements: where they have 4 bits, two of the last axis in a byte."""
    return elements if kind.per_item == 1 else elements[..., ::2] | elements[..., 1::2] << np.uint8(4)


def unpacked(kind: ElementType, memory: Any, xp: Any = np) -> Any:
    """The elements in memory: where they have 4 bits, the last axis becomes twice as long."""
    if kind.per_item == 1:
        return memory
    return xp.stack([memory & np.uint8(15), memory >> np.uint8(4)], axis=-1).reshape(*memory.shape[:-1], -1)


@cache
def _decoded_8bit(kind: ElementType) -> NDArray[np.float64]:
    """[256]: the number that each 8-bit pattern means."""
    exponent_bits, mantissa_bits, bias = _FORMATS[kind]
    numbers = np.empty(256)
    for pattern in range(256):
        exponent, mantissa = (pattern >> mantissa_bits) & (2**exponent_bits - 1), pattern & (2**mantissa_bits - 1)
        top = 2**exponent_bits - 1
        if exponent == 0:
            value = mantissa / 2**mantissa_bits * 2.0 ** (1 - bias)
        elif kind is E.F8E4M3 and (exponent, mantissa) == (top, 7):
            value = np.nan
        elif kind is E.F8E5M2 and exponent == top:
            value = np.nan if mantissa else np.inf
        else:
            value = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
        numbers[pattern] = -value if pattern >> 7 else value
    return numbers


@cache
def _encoded_8bit(kind: ElementType) -> NDArray[np.uint8]:
    """[65536]: the nearest finite 8-bit element for each float16 pattern, ties to an even mantissa."""
    numbers = _decoded_8bit(kind)
    positive = numbers[:128]
    finite = positive[np.isfinite(positive)]
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    size = np.minimum(np.abs(np.nan_to_num(halves, nan=0.0, posinf=finite[-1], neginf=-finite[-1])), finite[-1])
    above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
    lower, upper = finite[above - 1], finite[above]
    down = (size - lower < upper - size) | ((size - lower == upper - size) & ((above - 1) % 2 == 0))
    patterns: NDArray[np.uint8] = (np.where(down, above - 1, above) | np.where(np.signbit(halves), 128, 0)).astype(
        np.uint8
    )
    return patterns


def encode(kind: ElementType, numbers: Any, xp: Any = np) -> Any:
    """Elements of a type that are nearest to float32 numbers on about [-1, 1] (any for float types)."""
    if kind in (E.F64, E.F32, E.F16):
        return numbers.astype(STORAGE[kind])
    if kind in INTEGERS:
        return xp.clip(xp.rint(numbers * INTEGER_SPAN), -INTEGER_SPAN, INTEGER_SPAN).astype(STORAGE[kind])
    if kind is E.I4:
        return (xp.clip(xp.floor(numbers * _SPANS[kind]), -8, 7).astype(np.int8) & np.int8(15)).astype(np.uint8)
    if kind is E.F4:
        nearest = xp.searchsorted(xp.asarray((_F4[1:] + _F4[:-1]) / 2), xp.abs(numbers))
        return (nearest + 8 * xp.signbit(numbers)).astype(np.uint8)
    if kind in _FORMATS:
        table = xp.asarray(_encoded_8bit(kind))
        return table[xp.clip(numbers, -MAX_HALF, MAX_HALF).astype(np.float16).view(np.uint16)]
    dropped = 13 if kind is E.TF32 else 16  # bits of a float32 that the type does not have; ties go away from zero
    bits = numbers.astype(np.float32).view(np.uint32) + np.uint32(1 << (dropped - 1))
    if kind is E.TF32:
        return (bits & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)).view(np.float32)
    return (bits >> np.uint32(dropped)).astype(np.uint16)


def encoded(kind: ElementType, numbers: Any, rules: MatrixRules, xp: Any = np) -> Any:
    """Numbers of a distribution, times the scale, as elements. Those that have the storage type are returned unchanged."""
    if numbers.dtype == STORAGE[kind] and kind is not E.TF32:
        return numbers
    if kind in _SPANS and rules.distribution == "normal":
        numbers *= INTEGER_DEVIATION
    if kind in _SPANS and rules.distribution == "integers":
        numbers /= _SPANS[kind]
    if kind is E.F4 and rules.distribution in ("uniform", "sparse"):
        # All 16 numbers are as frequent. The nearest ones of [-1, 1] would be five of them.
        rank = xp.clip(xp.floor(numbers * 8), -8, 7)
        return xp.where(rank < 0, 7 - rank, rank).astype(np.uint8)
    if kind is E.F16 and rules.factor > 1:
        numbers = xp.clip(numbers, -MAX_HALF, MAX_HALF)
    return encode(kind, numbers, xp)


def decode(kind: ElementType, elements: Any, xp: Any = np) -> Any:
    """The elements as float64, exactly."""
    if kind in _FORMATS:
        return xp.asarray(_decoded_8bit(kind))[elements]
    if kind in _DECODED_4BIT:
        return xp.asarray(_DECODED_4BIT[kind])[elements]
    if kind is E.BF16:
        return (elements.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return elements.astype(np.float64)


def poison(kind: ElementType) -> Any:
    """What an output is filled with before a kernel runs: NaN, or where a type has none, its smallest number.

    No GEMM of the farm's operands yields that number: of i32 it is -2^31, of i8 it is -128. No output has elements of 4 bits, and
    those that are no operand are 0.
    """
    if kind in _DECODED_4BIT:
        return np.uint8(0)
    if kind in INTEGERS:
        return np.iinfo(STORAGE[kind]).min
    if kind is E.BF16:
        return np.uint16(0x7FC0)
    if kind in _FORMATS:
        return np.uint8(0x7F)
    return STORAGE[kind](np.nan)


def unwritten(kind: ElementType, elements: Any, xp: Any = np) -> Any:
    """Which elements still have the value of `poison`: an array of truth values."""
    if kind in (E.F64, E.F32, E.TF32, E.F16):
        return xp.isnan(elements)
    if kind is E.BF16:
        return (elements & np.uint16(0x7FFF)) > np.uint16(0x7F80)
    if kind is E.F8E4M3:
        return (elements & np.uint8(0x7F)) == np.uint8(0x7F)
    if kind is E.F8E5M2:
        return (elements & np.uint8(0x7F)) > np.uint8(0x7C)
    return elements == poison(kind)
