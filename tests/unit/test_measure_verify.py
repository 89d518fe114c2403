"""Verification: a right result passes with room to spare, a wrong one is caught and its element named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import ElementNotWritten, WrongResult
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.measurement import OperandRules
from workers.measure.elements import STORAGE, decode, encode, poison
from workers.measure.operands import HostArena, OperandSet, SetLayout, result_scale
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


@pytest.mark.parametrize("distribution", ["uniform", "normal", "zeros", "ones", "sparse"])
@pytest.mark.parametrize("types", ["f32", "f64", "bf16", "f8e4m3", "i8"])
def test_every_distribution_is_verified_at_its_own_scale(types: str, distribution: Any) -> None:
    given_problem, rules = problem(LARGE, types, beta=1.0), OperandRules(distribution=distribution)
    operands = narrow(given_problem, rules) if types not in ("f32", "f64") else computed(given_problem, rules)
    checked = verify(given_problem, operands, rules)
    assert checked.error <= checked.bound / 2
    measured = np.sqrt(np.mean(decode(given_problem.types.cd, operands.d).astype(np.float64) ** 2)) or 1.0
    assert measured == pytest.approx(result_scale(given_problem, rules), rel=0.05)
