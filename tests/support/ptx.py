"""The few instructions of PTX that gemm_triton.py has inline, on one 32-bit register after another."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from farm.gemm import ElementType
from workers.measure.elements import decode, encode


def _numbers(register: int, kind: ElementType) -> list[Fraction]:
    halves = np.array([register & 0xFFFF, register >> 16], np.uint16)
    return [Fraction(x) for x in decode(kind, halves.view(np.float16) if kind is ElementType.F16 else halves).tolist()]


def _register(numbers: list[Fraction], kind: ElementType) -> int:
    halves = encode(kind, np.array([float(number) for number in numbers], np.float32)).view(np.uint16)
    assert [
        Fraction(x) for x in decode(kind, halves.view(np.float16) if kind is ElementType.F16 else halves).tolist()
    ] == numbers
    return int(halves[0]) | int(halves[1]) << 16


def _bytes_chosen(a: int, b: int, selector: int) -> int:
    given = a | b << 32
    return sum((given >> 8 * (selector >> 4 * byte & 7) & 255) << 8 * byte for byte in range(4))


def _packed(kind: ElementType, compute: Callable[..., Fraction]) -> Callable[..., int]:
    return lambda *given: _register(
        [compute(*each) for each in zip(*(_numbers(x, kind) for x in given), strict=True)], kind
    )


_INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b & 0xFFFFFFFF,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "prmt.b32": _bytes_chosen,
    "sub.f16x2": _packed(ElementType.F16, lambda a, b: a - b),
    "mul.f16x2": _packed(ElementType.F16, lambda a, b: a * b),
    "fma.rn.bf16x2": _packed(ElementType.BF16, lambda a, b, c: a * b + c),
}


def run(ptx: str, given: int, outputs: int) -> list[int]:
    """The output registers of inline PTX with one input, which comes after them. Results that are not exact are refused."""
    registers: dict[str, int] = {f"${outputs}": given}
    for statement in ptx.strip("{} ").split(";"):
        name, _, rest = statement.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *sources = (word.strip() for word in rest.split(","))
        values: list[Any] = [registers[x] if x in registers else int(x, 0) for x in sources]
        registers[target] = _INSTRUCTIONS[name](*values)
    return [registers[f"${number}"] for number in range(outputs)]


def pairs_of(ptx: str, given: int, kind: ElementType) -> list[float]:
    """The numbers that PTX makes of four bytes, in the order of memory."""
    return [float(number) for register in run(ptx, given, 4) for number in _numbers(register, kind)]
