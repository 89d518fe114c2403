"""Verification: a right result passes with room to spare, a wrong one is caught and its element named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.operands import DISTRIBUTIONS, OperandRules, operand_rules
from workers.measure.elements import STORAGE, decode, encode, poison
from workers.measure.magnitudes import result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import error_bound, verify

SMALL = Shape(37, 29, 41)
LARGE = Shape(300, 270, 310)  # past the size at which every element is compared one by one
TALL = Shape(3000, 3, 400)  # past it in float64 only, as long double has no BLAS
WIDE = Shape(2, 3001, 400)


def problem(shape: Shape, types: str = "f32", layout: str = "nn", alpha: float = 1.0, beta: float = 0.0) -> Problem:
    return Problem(shape, ElementTypes.parse(types), Layout(layout), alpha, beta)


def computed(given_problem: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    """An operand set with the right result in it."""
    layout = SetLayout.of(given_problem, HostArena.ALIGNMENT)
    operands = HostArena(2**16).sets(layout, 2, rules)[1]
    kind = STORAGE[given_problem.types.acc]
    operands.d[:] = kind(given_problem.alpha) * (operands.a @ operands.b)
    if operands.c is not None:
        operands.d[:] += kind(given_problem.beta) * operands.c
    return operands


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [Shape(1, 1, 1), SMALL, LARGE, TALL, WIDE])
def test_a_right_result_passes_with_room_to_spare(shape: Shape, layout: str, types: str) -> None:
    checked = verify(problem(shape, types, layout), computed(problem(shape, types, layout)))
    assert 0 <= checked.error < checked.bound / 2
    by_groups = shape == LARGE or (types == "f64" and shape in (TALL, WIDE))
    assert checked.method == ("groups" if by_groups else "elements")


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize(("alpha", "beta"), [(2.5, 0.0), (1.0, 1.0), (-0.5, 3.0), (0.0, 2.0), (0.0, 0.0)])
def test_alpha_and_beta_take_part(alpha: float, beta: float, shape: Shape, types: str) -> None:
    given_problem = problem(shape, types, "nt", alpha, beta)
    operands = computed(given_problem)
    checked = verify(given_problem, operands)
    assert checked.error < checked.bound / 2
    if alpha or beta:
        operands.d[:] *= 1.01
        with pytest.raises(WrongResult):
            verify(given_problem, operands)


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("shape", [SMALL, LARGE, TALL, WIDE])
@pytest.mark.parametrize("where", ["first", "last", "middle"])
@pytest.mark.parametrize("change", [lambda x: x + 0.3, lambda _: math.inf, lambda x: x - 0.3])
def test_a_single_wrong_element_is_caught_and_named(
    change: Callable[[float], float], where: str, shape: Shape, types: str
) -> None:
    given_problem = problem(shape, types)
    operands = computed(given_problem)
    row, column = {
        "first": (0, 0),
        "last": (shape.m - 1, shape.n - 1),
        "middle": (shape.m // 2, 2 * shape.n // 3),
    }[where]
    operands.d[row, column] = change(operands.d[row, column])
    with pytest.raises(WrongResult) as caught:
        verify(given_problem, operands)
    assert (caught.value.fields["row"], caught.value.fields["column"]) == (row, column)
    assert caught.value.fields["error"] > caught.value.fields["bound"]


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("shape", [SMALL, LARGE, TALL, WIDE])
def test_a_missing_element_is_caught_and_named(shape: Shape, types: str) -> None:
    given_problem = problem(shape, types)
    operands = computed(given_problem)
    operands.d[shape.m - 1, shape.n // 2] = math.nan
    with pytest.raises(ElementNotWritten, match=rf"\({shape.m - 1}, {shape.n // 2}\)"):
        verify(given_problem, operands)


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("extent", [40, 300])
def test_a_wrong_layout_is_caught(extent: int, types: str) -> None:
    given_problem = problem(Shape(extent, extent, extent), types)
    operands = computed(given_problem)
    operands.d[:] = operands.a @ operands.b.T
    with pytest.raises(WrongResult):
        verify(given_problem, operands)


@pytest.mark.parametrize("types", ["f32", "f64"])
def test_a_dropped_last_term_of_the_sum_is_caught(types: str) -> None:
    given_problem = problem(LARGE, types)
    operands = computed(given_problem)
    operands.d[:] = operands.a[:, :-1] @ operands.b[:-1]
    with pytest.raises(WrongResult):
        verify(given_problem, operands)


def test_a_result_of_lower_precision_is_caught() -> None:
    given_problem = problem(LARGE, "f32")
    operands = computed(given_problem)
    operands.d[:] = operands.a.astype(np.float16).astype(np.float32) @ operands.b
    with pytest.raises(WrongResult):
        verify(given_problem, operands)
    given_problem = problem(LARGE, "f64")
    operands = computed(given_problem)
    operands.d[:] = operands.a.astype(np.float32) @ operands.b.astype(np.float32)
    with pytest.raises(WrongResult):
        verify(given_problem, operands)


def test_the_bound_grows_as_the_root_of_k() -> None:
    bounds = [error_bound(problem(Shape(8, 8, k))) for k in (2**12, 2**14, 2**16)]
    assert bounds[1] / bounds[0] == pytest.approx(2, rel=0.01)
    assert bounds[2] / bounds[1] == pytest.approx(2, rel=0.01)


def test_the_scale_is_the_root_mean_square_of_a_result() -> None:
    given_problem = problem(LARGE, "f64", alpha=-1.5, beta=4.0)
    result: Any = computed(given_problem).d
    assert math.sqrt(float((result**2).mean())) == pytest.approx(result_scale(given_problem), rel=0.02)


@settings(max_examples=40)
@given(
    m=st.integers(1, 90),
    n=st.integers(1, 90),
    k=st.integers(1, 90),
    types=st.sampled_from(["f32", "f64"]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    beta=st.sampled_from([0.0, -2.0]),
    data=st.data(),
)
def test_any_element_off_by_a_tenth_is_caught(
    m: int, n: int, k: int, types: str, layout: str, beta: float, data: st.DataObject
) -> None:
    given_problem = problem(Shape(m, n, k), types, layout, 0.7, beta)
    operands = computed(given_problem, OperandRules(seed=m))
    verify(given_problem, operands)
    row, column = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))
    operands.d[row, column] += 0.1 * result_scale(given_problem)
    with pytest.raises(WrongResult):
        verify(given_problem, operands)


NARROW = [
    "tf32",
    "f16",
    "f16:f32:f32",
    "f16:f16:f16",
    "bf16",
    "bf16:f32:f32",
    "f8e4m3",
    "f8e4m3:f32:f32",
    "f8e5m2e4m3",
    "i8",
]


def narrow(given_problem: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    """An operand set of any types with the right result in it, rounded to the output's type."""
    layout = SetLayout.of(given_problem, HostArena.ALIGNMENT)
    operands = HostArena(2**16).sets(layout, 2, rules)[1]
    types = given_problem.types
    exact = given_problem.alpha * (decode(types.ab.of_a, operands.a) @ decode(types.ab.of_b, operands.b))
    if operands.c is not None:
        exact += given_problem.beta * decode(types.cd, operands.c)
    operands.d[:] = exact if types.cd is ElementType.I32 else encode(types.cd, exact.astype(np.float32))
    return operands


@pytest.mark.parametrize("types", NARROW)
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_right_result_of_any_types_passes(shape: Shape, layout: str, beta: float, types: str) -> None:
    given_problem = problem(shape, types, layout, 1.0, beta)
    checked = verify(given_problem, narrow(given_problem))
    assert checked.error <= checked.bound / 2


@pytest.mark.parametrize("types", NARROW)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_wrong_element_of_any_types_is_caught_and_named(shape: Shape, types: str) -> None:
    given_problem = problem(shape, types)
    operands = narrow(given_problem)
    row, column = shape.m - 1, shape.n // 2
    kind = given_problem.types.cd
    wrong = decode(kind, operands.d[row, column : column + 1]) + result_scale(given_problem)
    operands.d[row, column] = wrong[0] if kind is ElementType.I32 else encode(kind, wrong.astype(np.float32))[0]
    with pytest.raises(WrongResult, match=rf"\({row}, {column}\)"):
        verify(given_problem, operands)


def test_a_sum_of_integers_that_is_off_by_one_is_caught() -> None:
    for shape in (SMALL, LARGE):
        given_problem = problem(shape, "i8")
        operands = narrow(given_problem)
        operands.d[3, 5] += 1
        with pytest.raises(WrongResult, match=r"\(3, 5\)"):
            verify(given_problem, operands)


@pytest.mark.parametrize("types", NARROW)
def test_a_missing_element_of_any_types_is_caught(types: str) -> None:
    given_problem = problem(LARGE, types)
    operands = narrow(given_problem)
    operands.d[LARGE.m - 1, 7] = poison(given_problem.types.cd)
    with pytest.raises(ElementNotWritten, match=rf"\({LARGE.m - 1}, 7\)"):
        verify(given_problem, operands)


@pytest.mark.parametrize("types", ["f16", "bf16:f32:f32", "f8e4m3", "tf32", "i8"])
def test_a_missing_part_of_the_sum_is_caught_in_any_type(types: str) -> None:
    given_problem = problem(Shape(200, 210, 2048), types)
    operands = narrow(given_problem)
    kind = given_problem.types
    partly = decode(kind.ab, operands.a[:, :-32]) @ decode(kind.ab, operands.b[:-32])
    operands.d[:] = partly if kind.cd is ElementType.I32 else encode(kind.cd, partly.astype(np.float32))
    with pytest.raises(WrongResult):
        verify(given_problem, operands)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("types", ["f32", "f64", "bf16", "f8e4m3", "i8"])
def test_every_distribution_is_verified_at_its_own_scale(types: str, distribution: Any) -> None:
    given_problem, rules = problem(LARGE, types, beta=1.0), OperandRules(distribution=distribution)
    operands = narrow(given_problem, rules) if types not in ("f32", "f64") else computed(given_problem, rules)
    checked = verify(given_problem, operands, rules)
    assert checked.error <= checked.bound / 2
    measured = np.sqrt(np.mean(decode(given_problem.types.cd, operands.d).astype(np.float64) ** 2)) or 1.0
    assert measured == pytest.approx(result_scale(given_problem, rules), rel=0.05)


MIXED = [
    *(f"a={a} b={b} c={c}" for a in DISTRIBUTIONS for b in DISTRIBUTIONS for c in ("zeros", "normal")),
    "a=normal*0.02 b=uniform*30 c=ones",
    "a=ones*0.3 b=ones*0.7 c=uniform",
    "a=integers*0.5 b=normal*0.001 c=integers",
    "a=zeros b=normal c=normal*100",
    "normal*0.01",
    "uniform*20",
]


def right(given_problem: Problem, rules: OperandRules) -> OperandSet:
    return (
        narrow(given_problem, rules)
        if given_problem.types.cd is not ElementType.F64
        else computed(given_problem, rules)
    )


def changed(given_problem: Problem, operands: OperandSet, row: int, column: int, by: float) -> None:
    """Adds to an element of D, and at least what its type can hold."""
    kind = given_problem.types.cd
    number = decode(kind, operands.d[row, column : column + 1]) + max(by, 1.0 if kind is ElementType.I32 else 0.0)
    wide = kind in (ElementType.I32, ElementType.F64)
    operands.d[row, column] = number[0] if wide else encode(kind, number.astype(np.float32))[0]


@pytest.mark.parametrize("text", MIXED)
@pytest.mark.parametrize("types", ["f32", "f64", "f16", "bf16", "f8e4m3", "i8"])
@pytest.mark.sampled(5)
def test_every_mixture_passes_where_it_is_right_and_fails_where_it_is_wrong(types: str, text: str) -> None:
    for shape in (SMALL, LARGE):
        given_problem, rules = problem(shape, types, "nt", beta=1.0), operand_rules(text, seed=3)
        operands = right(given_problem, rules)
        checked = verify(given_problem, operands, rules)
        assert checked.error <= checked.bound / 2
        scale = result_scale(given_problem, rules)
        measured = math.sqrt(float((decode(given_problem.types.cd, operands.d) ** 2).mean()))
        # Where A is ones, all rows of D are the same.
        assert measured == pytest.approx(scale, rel=0.15 if shape == LARGE else 0.5) or (measured == 0 and scale == 1)
        changed(given_problem, operands, shape.m // 2, 7, 0.7 * scale)
        with pytest.raises(WrongResult, match=rf"\({shape.m // 2}, 7\)"):
            verify(given_problem, operands, rules)


@pytest.mark.parametrize("text", [text for text in MIXED if "zeros b" not in text and "b=zeros" not in text])
@pytest.mark.parametrize("types", ["f32", "f16:f16:f32", "bf16:f32:f32", "i8"])
@pytest.mark.sampled(5)
def test_a_missing_part_of_the_sum_is_caught_in_any_mixture(types: str, text: str) -> None:
    given_problem, rules = problem(Shape(200, 210, 512), types, "tn"), operand_rules(text)
    operands, kinds = narrow(given_problem, rules), given_problem.types
    partly = decode(kinds.ab, operands.a[:, :-16]) @ decode(kinds.ab, operands.b[:-16])
    if np.array_equal(partly, decode(kinds.ab, operands.a) @ decode(kinds.ab, operands.b)):
        return  # numbers so small that the type has none of them
    operands.d[:] = partly if kinds.cd is ElementType.I32 else encode(kinds.cd, partly.astype(np.float32))
    with pytest.raises(WrongResult):
        verify(given_problem, operands, rules)


@pytest.mark.parametrize(
    "text", ["ones*0.3", "a=ones*0.3 b=ones*0.7", "a=ones*0.1 b=uniform", "uniform*0.1", "integers"]
)
def test_sums_that_only_grow_in_one_order_are_right(text: str) -> None:
    """As a kernel adds up that walks along k."""
    given_problem, rules = problem(Shape(4, 4, 60_000)), operand_rules(text)
    operands = HostArena(2**10).sets(SetLayout.of(given_problem, 64), 1, rules)[0]
    total = np.zeros((4, 4), np.float32)
    for inner in range(given_problem.shape.k):
        total += np.outer(operands.a[:, inner], operands.b[inner])
    operands.d[:] = total
    verify(given_problem, operands, rules)


@pytest.mark.parametrize("k", [1, 2, 4, 16])
@pytest.mark.parametrize("text", ["normal", "a=normal b=uniform", "a=normal b=sparse", "normal*0.001"])
@pytest.mark.parametrize("types", ["bf16", "f16", "f16:f16:f16"])
def test_few_products_of_normal_numbers_are_right_in_narrow_types(types: str, text: str, k: int) -> None:
    given_problem, rules = problem(Shape(500, 400, k), types), operand_rules(text)
    operands = narrow(given_problem, rules)
    checked = verify(given_problem, operands, rules)
    assert checked.error <= checked.bound


def test_the_largest_product_of_two_large_normal_matrices_is_right() -> None:
    given_problem, rules = problem(Shape(500, 400, 1), "bf16"), operand_rules("normal")
    operands = narrow(given_problem, rules)
    operands.a[0], operands.b[:, 0] = (encode(ElementType.BF16, np.float32([number]))[0] for number in (4.53, 4.53))
    exact = decode(ElementType.BF16, operands.a) @ decode(ElementType.BF16, operands.b)
    operands.d[:] = encode(ElementType.BF16, exact.astype(np.float32))
    assert verify(given_problem, operands, rules).error > 8 * 2**-8


def test_sums_of_integers_are_exact_in_float32_and_float16() -> None:
    given_problem, rules = problem(Shape(64, 64, 8192), "f16"), operand_rules("integers")
    operands = narrow(given_problem, rules)
    exact = decode(ElementType.F16, operands.a) @ decode(ElementType.F16, operands.b)
    assert np.array_equal(operands.a.astype(np.float32) @ operands.b.astype(np.float32), exact)
    assert np.array_equal(operands.d.astype(np.float64), exact)


def test_operands_whose_results_overflow_are_refused_before_anything_runs() -> None:
    given_problem = problem(Shape(64, 64, 64), "f16")
    with pytest.raises(
        InvalidOnDevice, match=r"operands of uniform\*1000 make .* f16 ends at 65504; fill A with smaller numbers"
    ):
        result_scale(given_problem, operand_rules("uniform*1000"))
    assert result_scale(problem(Shape(64, 64, 64), "bf16"), operand_rules("uniform*1000")) > 1e6
