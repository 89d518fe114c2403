"""Scale factors and fused operations that are verified on a card: right results pass, wrong ones of every kind do not.

No kernel of a family takes part. Results are computed on the host, from the operands that the card has.
"""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import ElementNotWritten, WrongResult
from farm.gemm import Layout, Problem, Shape
from farm.operands import OperandRules
from farm.scale import SCALES_OF_BOTH, Scale
from support.scaled_and_fused import (
    WRONG_ACTIVATIONS,
    WRONG_BIASES,
    WRONG_FACTORS,
    Kernel,
    changes,
    problem,
    result_of,
    right_kernel,
)
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import poison
from workers.measure.magnitudes import FACTORS
from workers.measure.operands import OperandSet, SetLayout
from workers.measure.verify import Verification

RULES = OperandRules(seed=3)
SHAPES = {"every element": Shape(40, 52, 300), "a large problem": Shape(272, 336, 260)}
FUSIONS = ["none", "bias", "bias+relu", "bias+gelu", "silu"]
TYPES = ["f64", "f32", "tf32", "f16", "bf16", "f8e4m3", "f8e4m3e5m2"]


class Checked:
    """A problem with its operands on the card, and a copy of them on the host."""

    def __init__(self, device: CudaDevice, given: Problem) -> None:
        self._device, self._given = device, given
        self.operands = device._arena.buffers(SetLayout.of(given, ALIGNMENT), 2, RULES).views(1)
        o = self.operands
        arrays = (o.a, o.b, o.c, o.d, o.a_factors, o.b_factors, o.bias)
        self.on_host = OperandSet(*(None if x is None else x.get() for x in arrays))
        self.right = right_kernel(given, self.on_host)

    def verify(self) -> Verification:
        return self._device._verifier.begin(self._given, self.operands, RULES)()

    def compute(self, kernel: Kernel) -> None:
        """Writes what that kernel computes to D."""
        found = result_of(self._given, self.on_host, kernel).reshape(self.operands.d.shape)
        self.operands.d.set(found.astype(self.on_host.d.dtype, copy=False))


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("fused", FUSIONS)
@pytest.mark.parametrize("scale", SCALES_OF_BOTH)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_right_results_pass(device: CudaDevice, shape: Shape, scale: str, fused: str, types: str) -> None:
    for layout in (Layout.NT, Layout.TN):
        given = problem(shape, types, layout, scale=scale, fused=fused, batch=2, alpha=1.5, beta=0.5)
        checked = Checked(device, given)
        checked.compute(checked.right)
        found = checked.verify()
        assert 0 <= found.error <= found.bound / 2


WRONG = [
    *(
        ("factors", scale, fused)
        for scale in SCALES_OF_BOTH
        if scale is not Scale.NONE
        for fused in ("none", "bias+gelu")
    ),
    *(("biases", scale, fused) for scale in ("none", "row") for fused in ("bias", "bias+relu")),
    *(("activations", "none", fused) for fused in ("relu", "silu", "bias+gelu")),
]
MUTATIONS = {"factors": WRONG_FACTORS, "biases": WRONG_BIASES, "activations": WRONG_ACTIVATIONS}


@pytest.mark.parametrize(("wrong", "scale", "fused"), WRONG)
@pytest.mark.parametrize("types", ["f64", "f32", "bf16", "f8e4m3"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_wrong_results_do_not(device: CudaDevice, shape: Shape, types: str, wrong: str, scale: str, fused: str) -> None:
    given = problem(shape, types, "nt", scale=scale, fused=fused, batch=3)
    checked = Checked(device, given)
    for mutation in MUTATIONS[wrong].values():
        if changes(given, mutation):
            checked.compute(mutation(checked.right))
            with pytest.raises(WrongResult, match="of matrix"):
                checked.verify()


@pytest.mark.parametrize("types", ["f64", "f32", "bf16"])
@pytest.mark.parametrize(
    ("scale", "fused"), [("row", "none"), ("none", "bias"), ("1x128", "bias+gelu"), ("none", "silu")]
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_wrong_elements_are_named(device: CudaDevice, shape: Shape, scale: str, fused: str, types: str) -> None:
    given = problem(shape, types, "tn", scale=scale, fused=fused, batch=3)
    checked = Checked(device, given)
    checked.compute(checked.right)
    d, s = checked.operands.d, shape
    for matrix, row, column in ((0, 0, 0), (1, s.m // 2, s.n // 3), (2, s.m - 1, s.n - 1)):
        right = d[matrix, row, column].copy()
        place = rf"\({row}, {column}\) of matrix {matrix}"
        d[matrix, row, column] = poison(given.types.cd)
        with pytest.raises(ElementNotWritten, match=place):
            checked.verify()
        d[matrix, row, column] = _large(given)
        with pytest.raises(WrongResult, match=place):
            checked.verify()
        d[matrix, row, column] = right
    first = d[[0]].copy()
    d[0] = d[1]
    with pytest.raises(WrongResult, match="of matrix 0"):
        checked.verify()
    d[[0]] = first
    assert checked.verify().error >= 0


def _large(given: Problem) -> Any:
    return 0x42C8 if given.types.cd == "bf16" else 100.0  # the bits of 100


@pytest.mark.parametrize("scale", [s for s in SCALES_OF_BOTH if s is not Scale.NONE])
def test_factors_are_numbers_of_their_range(device: CudaDevice, scale: str) -> None:
    given = problem(Shape(2000, 1900, 1000), "f8e4m3", "nt", scale=scale, fused="bias", batch=2)
    first, second = (device._arena.buffers(SetLayout.of(given, ALIGNMENT), 2, RULES).views(n) for n in (0, 1))
    for name in ("a_factors", "b_factors"):
        one, other = getattr(first, name).get(), getattr(second, name).get()
        assert one.dtype == "float32"
        assert FACTORS[0] <= one.min() <= one.max() <= FACTORS[1]
        assert not (one == other).all()
        if one.size > 1000:
            assert abs(float(one.mean()) - sum(FACTORS) / 2) < 0.02


@pytest.mark.parametrize(
    ("types", "scale", "fused"), [("bf16", "none", "gelu"), ("f8e4m3", "1x128", "bias"), ("f32", "row", "silu")]
)
def test_the_memory_of_a_check_is_bounded(device: CudaDevice, types: str, scale: str, fused: str) -> None:
    import cupy

    given = problem(Shape(16384, 8192, 4096), types, "nt", scale=scale, fused=fused)
    operands = device._arena.buffers(SetLayout.of(given, ALIGNMENT), 1, RULES).views(0)
    operands.d.fill(0)  # which is wrong: the first part that is compared says so, and no later one is larger
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    with pytest.raises(WrongResult):
        device._verifier.begin(given, operands, RULES)()
    assert pool.total_bytes() - before < 2 * 2**30
