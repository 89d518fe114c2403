"""The result of a problem in float64, from the addresses that a kernel is given.

It shares neither views nor sums with the farm's own verification: where each number lies is written out here once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farm.fusion import Activation
from farm.gemm import ElementType, Problem
from workers.kernels.base import Placement
from workers.measure.elements import STORAGE, decode, unpacked

Read = Callable[[int, int, Any], Any]
"""Gives so many elements of a NumPy type from an address on."""

ACTIVATIONS: dict[Activation | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    Activation.RELU: lambda x: np.where(x > 0, x, 0.0),
    Activation.GELU: lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
}


def wide_product(problem: Problem, placement: Placement, index: int, read: Read) -> Any:
    """[batch, m, n]: what a launch on the operand set of that number must give. With groups, batch is 1."""
    s, ab, cd = problem.shape, problem.types.ab, problem.types.cd
    a_at, b_at, c_at, _ = placement.addresses(index)
    a_factors, b_factors, bias_at = placement.added(index)
    of_a, of_b = problem.scale.value.split(":")[0], problem.scale.value.split(":")[-1]

    def numbers(kind: ElementType, address: int, first: int, *extents: int, transposed: bool = False) -> Any:
        items = int(np.prod(extents)) // kind.per_item
        lies = decode(kind, unpacked(kind, read(address + first // kind.per_item * kind.bytes, items, STORAGE[kind])))
        return lies.reshape(extents[::-1]).T if transposed else lies.reshape(extents)

    def factors(address: int, count: int) -> Any:
        kind = problem.factor_type
        return decode(kind, read(address, count, STORAGE[kind]))

    def product(row: int, rows: int, matrix: int) -> Any:
        """The product of so many rows of A from that one on, with that matrix B. A transposed A has no rows before."""
        a = numbers(ab.of_a, a_at, row * s.k, rows, s.k, transposed=problem.layout.a_transposed)
        b = numbers(ab.of_b, b_at, matrix * s.k * s.n, s.k, s.n, transposed=problem.layout.b_transposed)
        if a_factors:
            if problem.groups is None:
                before = matrix * stored_factors(of_a, s.m, s.k)
            else:
                before = 0 if of_a == "tensor" else row * (-(-s.k // 128) if "128" in of_a else 1)
            a = a * each_factor(of_a, a_factors + 4 * before, rows, s.k, factors)
        if b_factors:
            before = matrix * stored_factors(of_b, s.n, s.k) * problem.factor_type.bytes
            b = b * each_factor(of_b, b_factors + before, s.n, s.k, factors).T
        result = problem.alpha * (a @ b)
        if problem.beta:
            result = result + problem.beta * numbers(cd, c_at, row * s.n, rows, s.n)
        if problem.fused.bias:
            result = result + numbers(cd, bias_at, matrix * s.n, s.n)
        if problem.fused.gated:
            return ACTIVATIONS[problem.fused.activation](result[:, : s.n // 2]) * result[:, s.n // 2 :]
        return ACTIVATIONS[problem.fused.activation](result)

    if problem.groups is None:
        return np.stack([product(number * s.m, s.m, number) for number in range(problem.batch)])
    results, row = [], 0
    for matrix, rows in enumerate(problem.groups.sizes):
        results.append(product(row, rows, matrix) if rows else np.empty((0, problem.columns_of_d)))
        row += rows
    return np.concatenate(results)[None]


def stored_factors(blocks: str, lines: int, k: int) -> int:
    """How many factors of a matrix lie before those of the next."""
    if blocks.startswith("1x"):
        return -(-k // int(blocks[2:])) * lines
    padded = -(-lines // 128) * -(-k // 512) * 4
    return {"tensor": 1, "row": lines, "128x128": padded}[blocks]


def each_factor(blocks: str, address: int, lines: int, k: int, read: Callable[[int, int], Any]) -> Any:
    """[lines, k]: the factor of each element, from so many of them from an address on."""
    line, inner = np.meshgrid(np.arange(lines), np.arange(k), indexing="ij")
    if blocks.startswith("1x"):
        place = inner // int(blocks[2:]) * lines + line
    else:
        along = -(-k // 512) * 4
        place = {"tensor": 0 * line, "row": line, "128x128": line // 128 * along + inner // 128}[blocks]
    return read(address, int(place.max()) + 1)[place]
