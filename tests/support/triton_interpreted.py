"""Computes configurations of the family `triton` in Triton's interpreter, on the CPU, and compares them with NumPy.

    TRITON_INTERPRET=1 python -m support.triton_interpreted < configurations

For each configuration it prints the largest error, as a share of the largest element. Triton is made an interpreter when it is
imported, so it has a process of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from farm.devices import traits_of_capability
from farm.fusion import Activation
from farm.gemm import ElementType, Problem, Shape
from farm.kernels import Configuration
from farm.kernels.triton.binaries import TEMPLATE
from farm.operands import OperandRules
from support.ptx import pairs_of
from workers.kernels.group_tiles import group_tiles
from workers.kernels.toolchains.triton_program import loaded
from workers.measure.elements import decode, unpacked
from workers.measure.operands import HostArena, OperandSet, SetLayout

_DTYPES = {
    "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "i8": "int8", "u8": "uint8",
    "i32": "int32",
}  # fmt: skip


@dataclass
class Pointer:
    """An array as the interpreter takes those of PyTorch. It reads and writes the memory itself."""

    array: Any
    dtype: str

    def data_ptr(self) -> int:
        return 0 if self.array is None else int(self.array.ctypes.data)

    def untyped_storage(self) -> Pointer:
        return self

    def cpu(self) -> Pointer:
        return self

    def new_empty(self, *_: object, **__: object) -> Pointer:
        return Pointer(self.array, self.dtype)

    def storage_offset(self) -> int:
        return 0

    size = stride = storage_offset

    def set_(self, *_: object) -> None:
        """It is the same memory already."""

    copy_ = set_


def computed(module: Any, configuration: Configuration, **changes: int) -> OperandSet:
    """The operands of a problem, with what the kernel wrote. `changes` are of its constants."""
    p, binary = configuration.problem, configuration.binary(traits_of_capability((9, 0)))
    assert binary is not None
    signature, constants, _, _ = module.specialisation(dict(binary.definitions))
    constants |= changes
    layout = SetLayout.of(p, 64)
    buffers = HostArena(2**10)._arena.buffers(layout, 1, OperandRules())
    arrays = {
        "a": buffers.inputs, "b": buffers.inputs_of_b[layout.b_offset :], "c": buffers.addends, "d": buffers.outputs,
        "scale_a": buffers.a_factors, "scale_b": buffers.b_factors, "bias": buffers.bias,
    }  # fmt: skip
    pointers = {name: Pointer(array, _DTYPES[signature[name][1:]]) for name, array in arrays.items()}
    scalar = int if p.types.acc is ElementType.I32 else float
    rows = -(-p.shape.m // constants["TILE_M"])
    if p.groups is not None:
        table = group_tiles(p.groups, constants["TILE_M"])
        rows, pointers["groups"] = len(table), Pointer(table, "int64")
    module.gemm[rows * -(-p.shape.n // constants["TILE_N"]), p.batch](
        **pointers, m=p.shape.m, n=p.shape.n, k=p.shape.k, alpha=scalar(p.alpha), beta=scalar(p.beta), **constants
    )
    return buffers.views(0)


def expected(p: Problem, given: OperandSet) -> Any:
    """The result in float64."""
    if p.groups is not None:
        each = (
            (number, rows, Shape(rows.stop - rows.start, p.shape.n, p.shape.k)) for number, rows in p.groups.with_rows()
        )
        return np.concatenate(
            [expected(replace(p, shape=shape, groups=None), given.group(number, rows)) for number, rows, shape in each],
            axis=1,
        )
    o = given.stacked()
    lines = o.b.swapaxes(1, 2) if p.layout.b_transposed else o.b
    numbers = decode(p.types.ab.of_b, unpacked(p.types.ab.of_b, lines))
    a, b = decode(p.types.ab.of_a, o.a), numbers if p.layout.b_transposed else numbers.swapaxes(1, 2)
    if o.a_factors is not None:
        a = a * _spread(decode(p.factor_type, o.a_factors), a.shape, p.scale.of_a)
    if o.b_factors is not None:
        b = b * _spread(decode(p.factor_type, o.b_factors).swapaxes(1, 2), b.shape, p.scale.of_b)
    result = p.alpha * (a @ b.swapaxes(1, 2))
    if o.c is not None:
        result = result + p.beta * decode(p.types.cd, o.c)
    if o.bias is not None:
        result = result + decode(p.types.cd, o.bias)[:, None, :]
    if p.fused.activation is Activation.RELU:
        return np.maximum(result, 0)
    if p.fused.activation is Activation.GELU:
        return result / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (result + 0.044715 * result**3)))
    if p.fused.activation is Activation.SILU:
        half = p.columns_of_d
        gate = result[..., :half]
        gate = gate / (1 + np.exp(-gate))
        return gate * result[..., half:] if p.fused.gated else gate
    return result


def _spread(factors: Any, shape: tuple[int, int, int], blocks: Any) -> Any:
    """A factor for each element of [batch, lines, k]."""
    _, lines, k = shape
    wide = factors.repeat(blocks.lines or lines, axis=1)[:, :lines]
    return wide.repeat(blocks.inner or k, axis=2)[:, :, :k]


def check_ptx(module: Any) -> None:
    """That the PTX of the template, which the interpreter does not run, makes the right numbers of every byte at every place."""
    for weight, kind in product((ElementType.I4, ElementType.F4), (ElementType.F16, ElementType.BF16)):
        ptx = getattr(module, f"_{weight}_IN_{kind}".upper()).value
        for first in range(256):
            memory = np.array([first, 255 - first, first ^ 90, first // 2], np.uint8)
            wanted = decode(weight, unpacked(weight, memory)).tolist()
            assert pairs_of(ptx, int(memory.view("<u4")[0]), kind) == wanted, (weight, kind, first)


def main() -> None:
    module = loaded(str(TEMPLATE.path))
    check_ptx(module)
    for line in sys.stdin.read().splitlines():
        configuration = Configuration.parse(line)
        problem, found = configuration.problem, computed(module, configuration)
        wanted, got = expected(problem, found), decode(problem.types.cd, found.stacked().d)
        assert np.array_equal(found.d, computed(module, configuration, WIDE=1).d), "other with indices of 64 bits"
        print(np.abs(got - wanted).max() / np.abs(wanted).max(), line, flush=True)  # noqa: T201


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
