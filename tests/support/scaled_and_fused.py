"""Kernels with scale factors and fused operations on NumPy, right ones and wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.fusion import Activation, Fusion
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from farm.scale import Blocks, Scale
from support.fake_cuda import FakeCupy, at_address
from workers.kernels.base import Placement
from workers.measure.elements import decode, encode
from workers.measure.operands import OperandSet


def problem(
    shape: Shape,
    types: str = "f32",
    layout: str = "nn",
    *,
    scale: str = "none",
    fused: str = "none",
    batch: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Problem:
    return Problem(shape, ElementTypes.parse(types), Layout(layout), alpha, beta, batch, Scale(scale), Fusion(fused))


def scaled(lines: Any, factors: Any, blocks: Blocks) -> Any:
    """A matrix [batch, lines, k] in float64, each block of it times its factor."""
    wide = np.array(lines, np.float64)
    _, across, along = wide.shape
    each = np.repeat(factors, blocks.lines or across, axis=1)[:, :across]
    wide *= np.repeat(each, blocks.inner or along, axis=2)[:, :, :along]
    return wide


def gelu(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_of_erf(x: Any) -> Any:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_of_card(x: Any) -> Any:
    """With a tanh whose relative error is that of `tanh.approx.f32`."""
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x / 2 * (1 + tanh * (1 + 1.113e-5 * np.sin(1e4 * x)))


def silu(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def relu(x: Any) -> Any:
    return np.where(x > 0, x, 0)


FUNCTIONS = {None: lambda x: x, Activation.RELU: relu, Activation.GELU: gelu, Activation.SILU: silu}


@dataclass(frozen=True)
class Kernel:
    """What a kernel reads and does. Arrays are stacked; factors are by line: [batch, lines, inner]."""

    a_factors: Any
    b_factors: Any
    bias: Any
    activation: Callable[[Any], Any]
    bias_comes_last: bool = False


def right_kernel(given: Problem, operands: OperandSet) -> Kernel:
    o = operands.stacked()
    b_factors = None if o.b_factors is None else o.b_factors.swapaxes(1, 2)
    return Kernel(o.a_factors, b_factors, o.bias, FUNCTIONS[given.fused.activation])


def result_of(given: Problem, operands: OperandSet, kernel: Kernel | None = None) -> Any:
    """D of a kernel that adds up in float64, by default of the right one: [batch, m, n] in its type."""
    found = right_kernel(given, operands) if kernel is None else kernel
    o, types = operands.stacked(), given.types
    a, b = decode(types.ab.of_a, o.a), decode(types.ab.of_b, o.b).swapaxes(1, 2)
    if given.scale.of_a is not None and given.scale.of_b is not None:
        a, b = scaled(a, found.a_factors, given.scale.of_a), scaled(b, found.b_factors, given.scale.of_b)
    x = given.alpha * (a @ b.swapaxes(1, 2))
    if o.c is not None:
        x += given.beta * decode(types.cd, o.c)
    bias = 0 if found.bias is None else decode(types.cd, found.bias)[:, None]
    x = found.activation(x) + bias if found.bias_comes_last else found.activation(x + bias)
    return x if types.cd is ElementType.F64 else encode(types.cd, x.astype(np.float32))


Mutation = Callable[[Kernel], Kernel]


def _factors(change: Callable[[Any], Any], *, a: bool = True, b: bool = True) -> Mutation:
    return lambda kernel: replace(
        kernel,
        a_factors=change(kernel.a_factors) if a else kernel.a_factors,
        b_factors=change(kernel.b_factors) if b else kernel.b_factors,
    )


def _transposed(factors: Any) -> Any:
    """Read from memory as if the other axis came first."""
    return np.ascontiguousarray(factors.swapaxes(1, 2)).reshape(factors.shape)


def _swapped(kernel: Kernel) -> Kernel:
    a, b = kernel.a_factors, kernel.b_factors
    return replace(kernel, a_factors=np.resize(b, a.shape), b_factors=np.resize(a, b.shape))


def _one_off(factors: Any) -> Any:
    factors = factors.copy()
    factors[len(factors) // 2, factors.shape[1] // 2, factors.shape[2] // 2] *= 1 + 2.0**-3
    return factors


def _some_off(factors: Any) -> Any:
    """Every eighth line: where the bias of a column is far below 0, gelu makes 0 of it with any factor."""
    factors = factors.copy()
    factors[len(factors) // 2, ::8, factors.shape[2] // 2] *= 1 + 2.0**-3
    return factors


ONE_WRONG_FACTOR = {"of A": _factors(_one_off, b=False), "of B": _factors(_one_off, a=False)}

WRONG_FACTORS: dict[str, Mutation] = {
    "those of A are left out": _factors(np.ones_like, b=False),
    "those of B are left out": _factors(np.ones_like, a=False),
    "all are left out": _factors(np.ones_like),
    "those of A are applied twice": _factors(np.square, b=False),
    "A and B are swapped": _swapped,
    "one of A is off": ONE_WRONG_FACTOR["of A"],
    "some of B are off": _factors(_some_off, a=False),
    "A has those of the next block along k": _factors(lambda x: np.roll(x, -1, axis=2), b=False),
    "B has those of the next block along k": _factors(lambda x: np.roll(x, -1, axis=2), a=False),
    "A has those of the next line": _factors(lambda x: np.roll(x, -1, axis=1), b=False),
    "B has those of the next line": _factors(lambda x: np.roll(x, -1, axis=1), a=False),
    "all lines of A have the first's": _factors(lambda x: np.repeat(x[:, :1], x.shape[1], axis=1), b=False),
    "those of A are transposed": _factors(_transposed, b=False),
    "those of B are transposed": _factors(_transposed, a=False),
    "A has those of the next matrix": _factors(lambda x: np.roll(x, -1, axis=0), b=False),
    "B has those of the next matrix": _factors(lambda x: np.roll(x, -1, axis=0), a=False),
}
"""What a wrong kernel makes of the factors."""

WRONG_BIASES: dict[str, Mutation] = {
    "it is left out": lambda kernel: replace(kernel, bias=None),
    "it is that of the next matrix": lambda kernel: replace(kernel, bias=np.roll(kernel.bias, -1, axis=0)),
    "it is that of the next column": lambda kernel: replace(kernel, bias=np.roll(kernel.bias, -1, axis=1)),
    "all have the first": lambda kernel: replace(kernel, bias=np.repeat(kernel.bias[:1], len(kernel.bias), axis=0)),
}


def _twice(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return function if function is relu else lambda x: function(function(x))


WRONG_ACTIVATIONS: dict[str, Mutation] = {
    "none": lambda kernel: replace(kernel, activation=lambda x: x),
    "relu": lambda kernel: replace(kernel, activation=relu),
    "gelu": lambda kernel: replace(kernel, activation=gelu),
    "silu": lambda kernel: replace(kernel, activation=silu),
    "twice": lambda kernel: replace(kernel, activation=_twice(kernel.activation)),
    "before the bias": lambda kernel: replace(kernel, bias_comes_last=True),
}


def numbered(given: Problem) -> Kernel:
    """A right kernel whose factors and biases all differ, to see what a wrong one reads."""

    def numbers(*extents: int) -> Any:
        return np.arange(2, math.prod(extents) + 2, dtype=np.float64).reshape(extents)

    s, batch, of_a, of_b = given.shape, given.batch, given.scale.of_a, given.scale.of_b
    return Kernel(
        None if of_a is None else numbers(batch, *of_a.counts(s.m, s.k)),
        None if of_b is None else numbers(batch, *of_b.counts(s.n, s.k)),
        numbers(batch, s.n) if given.fused.bias else None,
        FUNCTIONS[given.fused.activation],
    )


def changes(given: Problem, mutation: Mutation) -> bool:
    """Whether a wrong kernel computes anything else at all: two neighbours may be one and the same."""
    kernel = numbered(given)
    wrong = mutation(kernel)
    if given.scale is Scale.TENSOR and mutation is _swapped:
        return False  # the product of both factors is the same
    pairs = [(kernel.a_factors, wrong.a_factors), (kernel.b_factors, wrong.b_factors), (kernel.bias, wrong.bias)]
    same = all(x is y or (x is not None and y is not None and np.array_equal(x, y)) for x, y in pairs)
    late = wrong.bias_comes_last and given.fused.bias and given.fused.activation is not None
    return not same or late or kernel.activation is not wrong.activation


class Family:
    """A family on the fake card that computes f32 at the addresses of a placement, row by row."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.mutation: Mutation | None = None

    def prepare(self, configuration: Configuration) -> None:
        """Does nothing."""

    def bind(self, configuration: Configuration, placement: Placement) -> Launched:
        return Launched(self._cupy, configuration.problem, placement, self.mutation)

    def close(self) -> None:
        """Does nothing."""


class Launched:
    """A kernel of `Family`."""

    hash, capturable, roundings, deterministic = "0", True, 1, True

    def __init__(self, cupy: FakeCupy, given: Problem, placement: Placement, mutation: Mutation | None) -> None:
        self._cupy, self._given, self._placement, self._mutation = cupy, given, placement, mutation

    def launch(self, index: int) -> None:
        if self._cupy.capturing is not None:
            self._cupy.capturing.append(lambda: self._compute(index))
        else:
            self._compute(index)

    def _compute(self, index: int) -> None:
        given, s, batch = self._given, self._given.shape, self._given.batch
        a, b, c, d = self._placement.addresses(index)
        a_factors, b_factors, bias = self._placement.added(index)

        def read(address: int, *extents: int) -> Any:
            return at_address(address, batch * math.prod(extents), np.float32).reshape(batch, *extents)

        left = read(a, s.k, s.m).swapaxes(1, 2) if given.layout.a_transposed else read(a, s.m, s.k)
        right = read(b, s.n, s.k).swapaxes(1, 2) if given.layout.b_transposed else read(b, s.k, s.n)
        kernel = Kernel(
            _read_factors(read, a_factors, given.scale.of_a, s.m, s.k),
            _read_factors(read, b_factors, given.scale.of_b, s.n, s.k),
            read(bias, s.n) if bias else None,
            FUNCTIONS[given.fused.activation],
        )
        kernel = self._mutation(kernel) if self._mutation is not None else kernel
        operands = OperandSet(left, right, read(c, s.m, s.n) if c else None, None)
        result = read(d, s.m, s.n)
        for row, numbers in enumerate(_rows_of(given, operands, kernel)):
            result[:, row] = numbers

    def details(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Does nothing."""


def _read_factors(read: Callable[..., Any], address: int, blocks: Blocks | None, lines: int, k: int) -> Any:
    """[batch, lines, inner] of factors as cuBLASLt reads them."""
    if blocks is None:
        assert address == 0
        return None
    across, inner = blocks.counts(lines, k)
    if blocks.lines == 1:
        return read(address, inner, across).swapaxes(1, 2)
    return read(address, across, -(-inner // 4) * 4 if blocks.inner else 1)[..., :inner]


def _rows_of(given: Problem, operands: OperandSet, kernel: Kernel) -> Iterator[Any]:
    """[batch, n] of each row, whose bits do not depend on other rows."""
    a, b = operands.a.astype(np.float64), operands.b.swapaxes(1, 2).astype(np.float64)
    if given.scale.of_a is not None and given.scale.of_b is not None:
        a = scaled(a, kernel.a_factors, given.scale.of_a)
        b = scaled(b, kernel.b_factors, given.scale.of_b)
    bias = 0 if kernel.bias is None else kernel.bias
    for row in range(given.shape.m):
        x = given.alpha * np.einsum("bik,bnk->bn", a[:, row : row + 1].copy(), b)
        if operands.c is not None:
            x += given.beta * operands.c[:, row]
        yield kernel.activation(x) + bias if kernel.bias_comes_last else kernel.activation(x + bias)
