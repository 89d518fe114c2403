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
from workers.measure.elements import STORAGE, decode

Read = Callable[[int, int, Any], Any]
"""Gives so many elements of a NumPy type from an address on."""

ACTIVATIONS: dict[Activation | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    Activation.RELU: lambda x: np.where(x > 0, x, 0.0),
    Activation.GELU: lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
}


def wide_product(problem: Problem, placement: Placement, index: int, read: Read) -> Any:
    """[batch, m, n]: what a launch on the operand set of that number must give."""
    s, ab, cd = problem.shape, problem.types.ab, problem.types.cd
    a_at, b_at, c_at, _ = placement.addresses(index)
    a_factors, b_factors, bias_at = placement.added(index)

    def numbers(kind: ElementType, address: int, product: int, *extents: int, transposed: bool = False) -> Any:
        count = int(np.prod(extents))
        lies = decode(kind, read(address + product * count * kind.bytes, count, STORAGE[kind]))
        return lies.reshape(extents[::-1]).T if transposed else lies.reshape(extents)

    results = []
    for product in range(problem.batch):
        a = numbers(ab.of_a, a_at, product, s.m, s.k, transposed=problem.layout.a_transposed)
        b = numbers(ab.of_b, b_at, product, s.k, s.n, transposed=problem.layout.b_transposed)
        if a_factors:
            of_a, of_b = problem.scale.value.split(":")[0], problem.scale.value.split(":")[-1]
            a = a * each_factor(of_a, a_factors, s.m, s.k, read)
            b = b * each_factor(of_b, b_factors, s.n, s.k, read).T
        result = problem.alpha * (a @ b)
        if problem.beta:
            result = result + problem.beta * numbers(cd, c_at, product, s.m, s.n)
        if problem.fused.bias:
            result = result + numbers(cd, bias_at, product, s.n)
        results.append(ACTIVATIONS[problem.fused.activation](result))
    return np.stack(results)


def each_factor(blocks: str, address: int, lines: int, k: int, read: Read) -> Any:
    """[lines, k]: the factor of each element."""
    line, inner = np.meshgrid(np.arange(lines), np.arange(k), indexing="ij")
    groups = -(-k // 128)
    place = {
        "tensor": 0 * line,
        "row": line,
        "1x128": inner // 128 * lines + line,
        "128x128": line // 128 * (-(-groups // 4) * 4) + inner // 128,
    }[blocks]
    return read(address, int(place.max()) + 1, np.float32).astype(np.float64)[place]
