"""Scale factors and fused operations that are measured: their memory, their numbers, and the verification of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.fusion import Fusion
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.operands import OperandRules, operand_rules
from farm.scale import Blocks, Scale
from support.fake_cuda import FakeCupy, at_address
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.kernels.base import Placement
from workers.measure.elements import decode
from workers.measure.magnitudes import FACTORS, bias_rules, result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout

SCALES = [scale for scale in Scale if scale is not Scale.NONE]


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


def operands_of(given: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    return HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]


def scaled(lines: Any, factors: Any, blocks: Blocks | None) -> Any:
    """A matrix [batch, lines, k] in float64, each block of it times its factor: block by block."""
    assert blocks is not None
    wide = np.array(lines, np.float64)
    across, along = blocks.lines or wide.shape[1], blocks.inner or wide.shape[2]
    for line in range(factors.shape[1]):
        for inner in range(factors.shape[2]):
            here = np.s_[:, line * across : (line + 1) * across, inner * along : (inner + 1) * along]
            wide[here] *= factors[:, line, inner, None, None]
    return wide


# --- memory and numbers -------------------------------------------------------------------------------

STORED = {  # of 200x300x700: products, rows and columns of A's factors and of B's
    "tensor": ((1, 1), (1, 1)),
    "row": ((1, 200), (1, 300)),
    "1x128": ((6, 200), (6, 300)),
    "1x128:128x128": ((6, 200), (3, 8)),
    "128x128:1x128": ((2, 8), (6, 300)),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("batch", [1, 3])
def test_factors_lie_as_cublaslt_reads_them(cupy: FakeCupy, scale: Scale, batch: int) -> None:
    given = problem(Shape(200, 300, 700), "f32", scale=scale, fused="bias", batch=batch)
    layout = SetLayout.of(given, ALIGNMENT)
    buffers = DeviceArena(cupy, 2**10, 132).buffers(layout, 3, OperandRules())
    placement, operands = Placement.of(buffers, 3), buffers.views(2)
    a, b, bias = placement.added(2)
    for address, view, stored, by_line in (
        (a, operands.a_factors, STORED[scale][0], 1),
        (b, operands.b_factors, STORED[scale][1], 0),
    ):
        assert (address - placement.added(0)[by_line ^ 1]) % ALIGNMENT == 0
        rows, columns = stored
        lying = at_address(address, batch * rows * columns, np.float32).reshape(batch, rows, columns)
        assert view is not None
        found = np.asarray(view).reshape(batch, *view.shape[-2:])
        found = found if by_line else found.swapaxes(1, 2)  # [batch, lines, inner]
        expected = (
            lying.swapaxes(1, 2) if rows in (1, 6) and (rows, columns) != (1, 1) else lying[..., : found.shape[2]]
        )
        assert np.array_equal(found, expected)
        assert np.shares_memory(found, buffers.a_factors if by_line else buffers.b_factors)
    assert np.array_equal(at_address(bias, batch * 300, np.float32).reshape(operands.bias.shape), operands.bias)
    assert placement.addresses(2)[0] > 0


def test_a_problem_without_them_has_no_factors_and_no_bias(cupy: FakeCupy) -> None:
    layout = SetLayout.of(problem(Shape(8, 8, 8)), ALIGNMENT)
    buffers = DeviceArena(cupy, 2**10, 132).buffers(layout, 3, OperandRules())
    assert Placement.of(buffers, 3).added(2) == (0, 0, 0)
    operands = buffers.views(2)
    assert operands.a_factors is operands.b_factors is operands.bias is None


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("types", ["f64", "f8e4m3", "bf16"])
def test_a_set_counts_what_is_added(types: str, scale: Scale) -> None:
    shape = Shape(200, 300, 700)
    plain = SetLayout.of(problem(shape, types), 64)
    given = problem(shape, types, scale=scale, fused="bias+relu")
    added = SetLayout.of(given, 64)
    assert (added.b_offset, added.inputs, added.outputs) == (plain.b_offset, plain.inputs, plain.outputs)
    least = given.operand_bytes - problem(shape, types).operand_bytes
    assert least <= added.bytes - plain.bytes < least + 3 * 64 + 400  # alignment, and padded rows of 128x128


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("layout", Layout)
def test_each_matrix_and_set_has_factors_and_a_bias_of_its_own(scale: Scale, layout: Layout) -> None:
    given = problem(Shape(200, 190, 300), "f64", layout, scale=scale, fused="bias", batch=3, beta=1.0)
    sets = HostArena(2**10).sets(SetLayout.of(given, 64), 3)
    arrays = [x for s in sets for x in (s.a, s.b, s.c, s.d, s.a_factors, s.b_factors, s.bias) if x is not None]
    assert len(arrays) == 21
    assert not any(np.shares_memory(x, y) for i, x in enumerate(arrays) for y in arrays[:i])
    for one in sets:
        for factors in (one.a_factors, one.b_factors):
            assert factors is not None
            assert (factors.dtype, factors.ndim, len(factors)) == (np.float32, 3, 3)
            assert FACTORS[0] <= factors.min() <= factors.max() <= FACTORS[1]
        assert one.bias is not None
        assert one.bias.shape == (3, 190)
    numbers = [
        matrix.tobytes() for s in sets for x in (s.a_factors, s.b_factors, s.bias) if x is not None for matrix in x
    ]
    assert len(set(numbers)) == 27


@pytest.mark.parametrize("rules", ["uniform", "a=normal b=uniform*3 c=sparse"])
def test_the_matrices_of_a_problem_have_the_numbers_that_they_have_without(rules: str) -> None:
    shape = Shape(20, 30, 40)
    plain = operands_of(problem(shape, beta=1.0), operand_rules(rules))
    added = operands_of(problem(shape, beta=1.0, scale="1x128", fused="bias+gelu"), operand_rules(rules))
    for name in "abc":
        assert np.array_equal(getattr(plain, name), getattr(added, name))


@pytest.mark.parametrize("types", ["f32", "f16", "bf16", "f64", "f8e4m3"])
@pytest.mark.parametrize("rules", ["uniform", "normal*0.02", "zeros", "ones*0.1"])
@pytest.mark.parametrize("k", [1, 100, 3000])
def test_a_bias_is_as_large_as_the_rest_of_the_result(types: str, rules: str, k: int) -> None:
    shape = Shape(2, 4000, k)
    rest = result_scale(problem(shape, types, scale="row", beta=2.0), operand_rules(rules))
    given = problem(shape, types, scale="row", beta=2.0, fused="bias")
    operands = operands_of(given, operand_rules(rules))
    assert operands.bias is not None
    bias = decode(given.types.cd, operands.bias)
    size = float(np.sqrt((bias**2).mean()))
    assert 0.68 < size / rest < 1.45
    assert result_scale(given, operand_rules(rules)) == pytest.approx(
        np.hypot(size, 0 if rules == "zeros" else rest), rel=0.03
    )
    assert np.log2(bias_rules(given, operand_rules(rules)).factor) % 1 == 0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fused", ["none", "bias"])
@pytest.mark.parametrize("rules", ["uniform", "ones*0.5"])
def test_the_size_of_a_result_counts_its_factors(scale: Scale, fused: str, rules: str) -> None:
    given = problem(Shape(150, 160, 290), "f64", scale=scale, fused=fused, batch=60)
    operands = operands_of(given, operand_rules(rules))
    assert operands.a_factors is not None
    assert operands.b_factors is not None
    a = scaled(operands.a, operands.a_factors, given.scale.of_a)
    b = scaled(operands.b.swapaxes(1, 2), operands.b_factors.swapaxes(1, 2), given.scale.of_b)
    expected = a @ b.swapaxes(1, 2)
    if operands.bias is not None:
        expected = expected + operands.bias[:, None]
    measured = float(np.sqrt((expected**2).mean()))
    assert result_scale(given, operand_rules(rules)) == pytest.approx(measured, rel=0.1)
