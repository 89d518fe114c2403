"""Scale factors and fused operations that are measured: their memory, their numbers, and the verification of each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.errors import ElementNotWritten, WrongResult
from farm.fusion import Fusion
from farm.gemm import Layout, Problem, Shape
from farm.kernels import FAMILIES, Configuration, Kernel
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules, operand_rules
from farm.scale import SCALES_OF_BOTH, Scale
from support.fake_cuda import FakeCupy, at_address
from support.scaled_and_fused import (
    ONE_WRONG_FACTOR,
    WRONG_ACTIVATIONS,
    WRONG_BIASES,
    WRONG_FACTORS,
    Family,
    Mutation,
    changes,
    gelu_of_card,
    gelu_of_erf,
    problem,
    result_of,
    right_kernel,
    scaled,
)
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.devices.cuda_verify import CudaVerifier
from workers.kernels.base import Placement
from workers.measure import verify as verifying
from workers.measure.elements import decode, encode
from workers.measure.magnitudes import FACTORS, bias_rules, result_scale
from workers.measure.operands import OPERANDS_VERSION, HostArena, OperandSet, SetLayout
from workers.measure.verify import error_bound, verify

SCALES = [scale for scale in SCALES_OF_BOTH if scale is not Scale.NONE]


def operands_of(given: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    return HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]


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
@pytest.mark.sampled(5)
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
    given = problem(Shape(60, 70, 290), "f64", scale=scale, fused=fused, batch=60)
    operands = operands_of(given, operand_rules(rules))
    assert operands.a_factors is not None
    assert operands.b_factors is not None
    assert given.scale.of_a is not None
    assert given.scale.of_b is not None
    a = scaled(operands.a, operands.a_factors, given.scale.of_a)
    b = scaled(operands.b.swapaxes(1, 2), operands.b_factors.swapaxes(1, 2), given.scale.of_b)
    expected = a @ b.swapaxes(1, 2)
    if operands.bias is not None:
        expected = expected + operands.bias[:, None]
    measured = float(np.sqrt((expected**2).mean()))
    assert result_scale(given, operand_rules(rules)) == pytest.approx(measured, rel=0.1)


def test_other_factors_and_biases_have_another_version() -> None:
    """Another result: the numbers changed. Raise `OPERANDS_VERSION`, and write both down here."""
    found = hashlib.sha256()
    for types in ("f64", "f32", "f16", "bf16"):
        operands = operands_of(problem(Shape(33, 17, 300), types, scale="1x128:128x128", fused="bias"))
        for numbers in (operands.a_factors, operands.b_factors, operands.bias):
            found.update(np.ascontiguousarray(numbers).tobytes())
    assert (OPERANDS_VERSION, found.hexdigest()[:16]) == (1, "a71dbe16a31acb6d")


# --- verification -------------------------------------------------------------------------------------

SMALL, LARGE = Shape(13, 21, 300), Shape(140, 133, 300)  # every element is compared, or sums of groups
LONG = Shape(30, 40, 8192)
BATCH = 3
TYPES = ["f32", "f64", "tf32", "f16", "f16:f16:f16", "bf16", "bf16:f32:f32", "f8e4m3", "f8e5m2e4m3"]
FUSIONS = ["none", "bias", "bias+gelu"]


@pytest.fixture(autouse=True)
def soon_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of a few million products are large, so that these tests take little time."""
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT", 2**19)
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT_F64", 2**18)


def computed(given: Problem, mutation: Mutation | None = None, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    """An operand set with what a kernel leaves, by default a right one."""
    operands = operands_of(given, rules)
    kernel = right_kernel(given, operands)
    if mutation is not None:
        kernel = mutation(kernel)
    operands.d[...] = result_of(given, operands, kernel).reshape(operands.d.shape)
    return operands


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("scale", SCALES_OF_BOTH)
@pytest.mark.parametrize("fused", FUSIONS)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.sampled(5)
def test_a_right_result_passes_with_room_to_spare(shape: Shape, fused: str, scale: str, types: str) -> None:
    given = problem(shape, types, "nt", scale=scale, fused=fused, batch=BATCH, alpha=-1.5, beta=0.5)
    checked = verify(given, computed(given))
    assert 0 <= checked.error <= checked.bound / 2
    narrow = scale != "none" and types not in ("f32", "f64", "tf32")
    by_groups = shape == LARGE and given.fused.activation is None and not narrow
    assert checked.method == ("groups" if by_groups else "elements")


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [SMALL, LARGE, Shape(1, 700, 1), Shape(3000, 2, 400), Shape(130, 1, 129)])
@pytest.mark.parametrize("rules", ["normal*0.02", "ones", "a=integers b=sparse c=zeros"])
@pytest.mark.sampled(5)
def test_right_results_of_any_layout_and_rules_pass(rules: str, shape: Shape, layout: str) -> None:
    for scale, fused in (("row", "none"), ("128x128:1x128", "bias"), ("none", "gelu"), ("1x128:128x128", "bias+silu")):
        given = problem(shape, "bf16", layout, scale=scale, fused=fused, beta=1.0)
        found = operand_rules(rules)
        checked = verify(given, computed(given, rules=found), found)
        assert 0 <= checked.error <= checked.bound


def cases(mutations: Mapping[str, Mutation], *problems: Problem) -> list[Any]:
    """Each problem with each mutation that changes it."""
    return [
        pytest.param(given, mutation, id=f"{given.shape} {given.types.ab} {given.scale} {given.fused}: {name}")
        for given in problems
        for name, mutation in mutations.items()
        if changes(given, mutation)
    ]


@pytest.mark.parametrize(
    ("given", "mutation"),
    cases(
        WRONG_FACTORS,
        *(
            problem(shape, types, "nt", scale=scale, fused=fused, batch=BATCH)
            for scale in SCALES
            for shape, fused, types in (
                *((SMALL, "none", "f32"), (LARGE, "none", "f32"), (LARGE, "none", "f64")),
                *((LARGE, "bias", "f8e4m3"), (LARGE, "bias+silu", "bf16")),
            )
        ),
    ),
)
@pytest.mark.sampled(5)
def test_wrong_factors_are_caught(given: Problem, mutation: Mutation) -> None:
    with pytest.raises(WrongResult, match="of matrix"):
        verify(given, computed(given, mutation))


@pytest.mark.parametrize("mutation", WRONG_BIASES)
@pytest.mark.parametrize("fused", ["bias", "bias+relu", "bias+gelu"])
@pytest.mark.parametrize("types", ["f32", "f64", "f8e4m3"])
@pytest.mark.parametrize("shape", [SMALL, LARGE, LONG])
@pytest.mark.sampled(5)
def test_a_wrong_bias_is_caught(shape: Shape, types: str, fused: str, mutation: str) -> None:
    given = problem(shape, types, fused=fused, batch=BATCH)
    with pytest.raises(WrongResult, match="of matrix"):
        verify(given, computed(given, WRONG_BIASES[mutation]))


@pytest.mark.parametrize(
    ("given", "mutation"),
    cases(
        WRONG_ACTIVATIONS,
        *(
            problem(shape, types, fused=fused)
            for shape in (SMALL, LARGE, LONG)
            for types in ("f32", "bf16", "f8e4m3")
            for fused in ("relu", "silu", "bias+relu", "bias+gelu")
            # There, activations differ by no more than sums of 8-bit floats may.
            if (shape, types) != (LONG, "f8e4m3")
        ),
    ),
)
@pytest.mark.sampled(5)
def test_a_wrong_activation_is_caught(given: Problem, mutation: Mutation) -> None:
    with pytest.raises(WrongResult):
        verify(given, computed(given, mutation))


def evaluating(function: Callable[[Any], Any]) -> Mutation:
    return lambda kernel: replace(kernel, activation=function)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_gelu_of_an_approximate_tanh_passes_and_that_of_erf_does_not(shape: Shape) -> None:
    given = problem(shape, "f32", fused="gelu")
    checked = verify(given, computed(given, evaluating(gelu_of_card)))
    assert checked.error <= checked.bound / 2
    for types in ("f32", "f64"):
        given = problem(shape, types, fused="gelu")
        with pytest.raises(WrongResult):
            verify(given, computed(given, evaluating(gelu_of_erf)))


@pytest.mark.parametrize("types", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("fused", FUSIONS)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("wrong", [0.6, math.inf, math.nan])
def test_a_single_wrong_element_is_named(wrong: float, shape: Shape, fused: str, types: str) -> None:
    given = problem(shape, types, scale="row", fused=fused, batch=BATCH)
    operands = computed(given)
    off = wrong * result_scale(given)
    numbers = decode(given.types.cd, operands.d[2, 11, 5]) + off
    operands.d[2, 11, 5] = encode(given.types.cd, np.float32(numbers)) if types != "f64" else numbers
    caught: type[Exception] = ElementNotWritten if math.isnan(wrong) else WrongResult
    with pytest.raises(caught, match=r"\(11, 5\) of matrix 2") as found:
        verify(given, operands)
    assert math.isnan(wrong) or found.value.fields["error"] > found.value.fields["bound"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("fused", FUSIONS)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_group_of_wrong_elements_is_caught(shape: Shape, fused: str) -> None:
    given = problem(shape, "bf16", scale="1x128", fused=fused, batch=BATCH)
    operands = computed(given)
    here = np.s_[1, 7, :32]
    numbers = decode(given.types.cd, operands.d[here]) + 0.2 * result_scale(given)
    operands.d[here] = encode(given.types.cd, numbers.astype(np.float32))
    with pytest.raises(WrongResult, match=r"\(7, \d+\) of matrix 1"):
        verify(given, operands)


@pytest.mark.parametrize("block", [2**12, 2**15, 2**18])
@pytest.mark.parametrize(
    ("types", "fused"), [("f64", "bias"), ("f64", "bias+silu"), ("f16", "bias+silu"), ("f32", "gelu")]
)
@pytest.mark.parametrize("scale", ["none", "128x128:1x128"])
def test_parts_of_a_problem_are_all_of_it(
    scale: str, types: str, fused: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(LARGE, types, "tn", scale=scale, fused=fused, batch=BATCH, beta=1.0)
    operands = computed(given)
    whole = verify(given, operands)
    monkeypatch.setattr(verifying, "_BLOCK", block)
    assert verify(given, operands).error == pytest.approx(whole.error, rel=1e-3)
    for matrix, row, column in ((0, 0, 0), (1, 77, 66), (2, 139, 132)):
        right = operands.d[matrix, row, column].copy()
        operands.d[matrix, row, column] = encode(given.types.cd, np.float32(99))
        with pytest.raises(WrongResult, match=rf"\({row}, {column}\) of matrix {matrix}"):
            verify(given, operands)
        operands.d[matrix, row, column] = right


def test_integers_with_a_bias_and_relu_are_exact() -> None:
    given = problem(SMALL, "i8", fused="bias+relu", batch=BATCH)
    operands = operands_of(given)
    assert operands.bias is not None
    x = operands.a.astype(np.int64) @ operands.b.astype(np.int64) + operands.bias[:, None]
    operands.d[...] = np.maximum(x, 0)
    assert verify(given, operands).error == 0
    operands.d[1, 2, 3] += 1
    with pytest.raises(WrongResult, match=r"\(2, 3\) of matrix 1"):
        verify(given, operands)


# --- on a card ----------------------------------------------------------------------------------------

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))
ASKED = QUICK.model_copy(update={"determinism": True})


@pytest.fixture
def family(device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> Family:
    """A family that computes all of it, in the place of `tiled`."""
    computing = Family(cupy)
    every = replace(FAMILIES["tiled"], batched=True, scales=SCALES_OF_BOTH, fusions=tuple(Fusion))
    monkeypatch.setitem(FAMILIES, "tiled", every)
    monkeypatch.setitem(device._families, "tiled", computing)
    return computing


def configured(shape: Shape, layout: str = "nn", rest: str = "") -> Configuration:
    return Configuration.parse(f"tiled(tile=16) {shape} f32 {layout} {rest}")


@pytest.mark.parametrize("scale", SCALES_OF_BOTH)
@pytest.mark.parametrize("fused", ["none", "bias", "bias+gelu"])
@pytest.mark.parametrize(("layout", "batch"), [("nt", 1), ("tn", BATCH)])
@pytest.mark.sampled(5)
def test_a_card_measures_them(
    family: Family, device: CudaDevice, scale: str, fused: str, layout: str, batch: int
) -> None:
    rest = f"alpha=-1.5 beta=0.5 batch={batch} scale={scale} fused={fused}"
    configuration = configured(Shape(70, 60, 150), layout, rest)
    row = device.measure(configuration, QUICK)
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem) / 2
    large = configuration.problem.flops // 2 > 2**19
    assert row.details["verified_by"] == ("groups" if large and "gelu" not in fused else "elements")
    assert row.details["footprint_bytes"] >= row.details["operand_sets"] * configuration.problem.operand_bytes


@pytest.mark.parametrize(
    ("given", "mutation"),
    cases(
        {**WRONG_FACTORS, **WRONG_BIASES, **WRONG_ACTIVATIONS},
        *(
            problem(shape, scale="1x128", fused="bias+gelu", batch=2)
            for shape in (Shape(9, 7, 300), Shape(70, 60, 300))
        ),
    ),
)
@pytest.mark.sampled(5)
def test_a_card_with_a_wrong_kernel_gives_no_row(
    family: Family, device: CudaDevice, given: Problem, mutation: Mutation
) -> None:
    configuration = Configuration(given, Kernel.of("tiled"))
    family.mutation = mutation
    with pytest.raises(WrongResult, match="of matrix"):
        device.measure(configuration, QUICK)
    family.mutation = None
    assert device.measure(configuration, QUICK).verify_error is not None


@pytest.mark.parametrize("scale", SCALES_OF_BOTH)
@pytest.mark.parametrize("batch", [1, 2])
def test_fewer_rows_have_their_own_factors(family: Family, device: CudaDevice, scale: str, batch: int) -> None:
    rest = f"beta=1 batch={batch} scale={scale} fused=bias+silu"
    row = device.measure(configured(Shape(260, 5, 140), "tn", rest), ASKED)
    assert (row.deterministic, row.batch_invariant) == (True, True)


@pytest.mark.parametrize("fused", ["bias", "bias+silu"])
def test_the_arrays_of_a_card_are_verified(cupy: FakeCupy, fused: str) -> None:
    given = problem(LARGE, "bf16", "nt", scale="1x128:128x128", fused=fused, batch=BATCH)
    arena, verifier = DeviceArena(cupy, 2**10, 132), CudaVerifier(cupy, 132)
    operands = arena.buffers(SetLayout.of(given, ALIGNMENT), 2, OperandRules()).views(1)
    verifier.prepare(given)
    operands.d[...] = result_of(given, operands)
    checked = verifier.begin(given, operands, OperandRules())()
    assert checked.error <= checked.bound / 2
    operands.d[1, 139, 131] = encode(given.types.cd, np.float32(99))
    with pytest.raises(WrongResult, match=r"\(139, 131\) of matrix 1"):
        verifier.begin(given, operands, OperandRules())()


@pytest.mark.parametrize("types", ["bf16", "f8e4m3"])
def test_one_factor_of_many_along_k_shows(types: str) -> None:
    given = problem(LONG, types, "nt", scale="1x128")  # 64 blocks
    for mutation in ONE_WRONG_FACTOR.values():
        with pytest.raises(WrongResult):
            verify(given, computed(given, mutation))


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_result_that_is_not_finite_is_wrong_also_where_its_bias_is_not(shape: Shape) -> None:
    given = problem(shape, "f32", fused="bias+relu")
    operands = operands_of(given)
    assert operands.bias is not None
    operands.bias[5] = math.inf
    operands.d[...] = result_of(given, operands)[0]
    assert operands.d[3, 5] == math.inf
    with pytest.raises(WrongResult, match=r"\(0, 5\)"):
        verify(given, operands)
