"""Operand sets: where they lie, how many there are, and what is in them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workers.kernels
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.operands import OperandRules, operand_rules
from workers.measure.elements import decode
from workers.measure.operands import OPERANDS_VERSION, HostArena, SetLayout, plan_rotation

MIB = 2**20


def problem(shape: Shape, types: str = "f32", layout: str = "nn", beta: float = 0.0) -> Problem:
    return Problem(shape, ElementTypes.parse(types), Layout(layout), 1.0, beta)


def test_a_rotation_covers_the_cache_twice() -> None:
    rotation = plan_rotation(3 * MIB, cache_bytes=32 * MIB, memory_bytes=2**34, max_sets=1000)
    assert (rotation.sets, rotation.footprint_bytes, rotation.l2) == (22, 66 * MIB, "cold")


def test_large_problems_still_take_turns_with_a_second_set() -> None:
    assert plan_rotation(500 * MIB, cache_bytes=32 * MIB, memory_bytes=2**34, max_sets=1000).sets == 2


def test_a_set_that_fits_once_is_measured_alone() -> None:
    rotation = plan_rotation(500 * MIB, cache_bytes=32 * MIB, memory_bytes=400 * MIB, max_sets=1000)
    assert (rotation.sets, rotation.l2) == (1, "cold")


def test_tiny_problems_that_stay_in_the_cache_say_so() -> None:
    rotation = plan_rotation(192, cache_bytes=32 * MIB, memory_bytes=2**34, max_sets=1000)
    assert (rotation.sets, rotation.l2) == (1000, "warm")


@given(
    set_bytes=st.integers(12, 2**36),
    cache_bytes=st.integers(2**20, 2**30),
    memory_bytes=st.integers(2**20, 2**38),
)
def test_a_rotation_is_called_cold_exactly_when_it_is(set_bytes: int, cache_bytes: int, memory_bytes: int) -> None:
    rotation = plan_rotation(set_bytes, cache_bytes=cache_bytes, memory_bytes=memory_bytes, max_sets=2048)
    assert 1 <= rotation.sets <= 2048
    assert rotation.footprint_bytes == rotation.sets * set_bytes
    assert rotation.cold == (rotation.footprint_bytes >= 2 * cache_bytes)
    assert rotation.sets == 1 or rotation.footprint_bytes <= memory_bytes


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_operands_have_the_layout_and_lie_apart(layout: Layout, beta: float) -> None:
    given_problem = problem(Shape(5, 7, 3), "f64", layout, beta)
    sets = HostArena(2**12).sets(SetLayout.of(given_problem, 64), 3, OperandRules(seed=1))
    operands = [x for s in sets for x in (s.a, s.b, s.c, s.d) if x is not None]
    for number, one in enumerate(operands):
        assert one.base is not None
        assert not any(np.shares_memory(one, other) for other in operands[number + 1 :])
    first = sets[0]
    assert (first.a.shape, first.b.shape, first.d.shape) == ((5, 3), (3, 7), (5, 7))
    assert first.a.flags.f_contiguous == layout.a_transposed
    assert first.b.flags.f_contiguous == layout.b_transposed
    assert (first.c is not None) == bool(beta)


def test_the_same_seed_gives_the_same_numbers_also_after_growing() -> None:
    small, large = problem(Shape(8, 8, 8)), problem(Shape(200, 200, 200))
    arena = HostArena(2**10)
    before = arena.sets(SetLayout.of(small, 64), 1, OperandRules(seed=7))[0].a.copy()
    arena.sets(SetLayout.of(large, 64), 2, OperandRules(seed=7))
    after = arena.sets(SetLayout.of(small, 64), 1, OperandRules(seed=7))[0].a.copy()
    other = arena.sets(SetLayout.of(small, 64), 1, OperandRules(seed=8))[0].a
    assert np.array_equal(before, after)
    assert not np.array_equal(before, other)


def test_operands_are_uniform_on_minus_one_to_one() -> None:
    numbers = HostArena(2**10).sets(SetLayout.of(problem(Shape(400, 4, 400)), 64), 1, OperandRules(seed=0))[0].a
    assert -1 <= numbers.min() < -0.99
    assert 0.99 < numbers.max() <= 1
    assert abs(float(numbers.mean())) < 0.01
    assert float(numbers.var()) == pytest.approx(1 / 3, rel=0.02)


def test_buffers_are_kept_between_problems() -> None:
    arena = HostArena(2**20)
    layout = SetLayout.of(problem(Shape(16, 16, 16)), 64)
    first, again = arena.sets(layout, 4), arena.sets(layout, 2)
    assert np.shares_memory(first[0].a, again[0].a)
    assert np.shares_memory(first[0].d, again[0].d)


@pytest.mark.parametrize(
    ("distribution", "mean_square"),
    [("normal", 1.0), ("zeros", 0.0), ("ones", 1.0), ("sparse", 1 / 6), ("integers", 2.0)],
)
@pytest.mark.parametrize("types", ["f32", "f16", "f8e4m3"])
def test_other_distributions_have_their_spread(types: str, distribution: Any, mean_square: float) -> None:
    given_problem = problem(Shape(400, 4, 400), types)
    rules = OperandRules(distribution=distribution)
    elements = HostArena(2**10).sets(SetLayout.of(given_problem, 64), 1, rules)[0].a
    numbers = decode(given_problem.types.ab, elements)
    assert float((numbers**2).mean()) == pytest.approx(mean_square, rel=0.02)
    if distribution == "sparse":
        assert float((numbers == 0).mean()) == pytest.approx(0.5, abs=0.02)


def test_operands_and_addends_are_numbers_of_their_own() -> None:
    first = HostArena(2**10).sets(SetLayout.of(problem(Shape(64, 64, 64), beta=1.0), 64), 1)[0]
    assert first.c is not None
    assert not np.array_equal(first.a, first.c)


def test_a_narrow_input_and_a_wide_output_are_counted_in_their_own_bytes() -> None:
    given_problem = problem(Shape(10, 20, 30), "i8", beta=1.0)
    layout = SetLayout.of(given_problem, 64)
    assert (layout.b_offset, layout.inputs, layout.outputs, layout.addends) == (320, 320 + 640, 208, 208)
    assert layout.bytes == 960 + 2 * 208 * 4


def test_of_a_pair_each_operand_has_its_own_type() -> None:
    given_problem = problem(Shape(200, 300, 100), "f8e5m2e4m3")
    operands = HostArena(2**10).sets(SetLayout.of(given_problem, 64), 2)[1]
    a, b = decode(ElementType.F8E5M2, operands.a), decode(ElementType.F8E4M3, operands.b)
    for numbers in (a, b):
        assert float((numbers**2).mean()) == pytest.approx(1 / 3, rel=0.05)
    assert (a.shape, b.shape) == ((200, 100), (100, 300))


@pytest.mark.parametrize("types", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3e5m2", "i8"])
def test_matrices_may_differ(types: str) -> None:
    given_problem = problem(Shape(120, 80, 100), types, "tn", beta=1.0)
    rules = operand_rules("a=normal*0.5 b=integers c=ones*0.25")
    sets = HostArena(2**10).sets(SetLayout.of(given_problem, 64), 3, rules)
    a, b, c = (
        decode(kind, stored) / (127 if kind in (ElementType.I8, ElementType.I32) and step != "b" else 1)
        for step, kind, stored in (
            ("a", given_problem.types.ab.of_a, sets[2].a),
            ("b", given_problem.types.ab.of_b, sets[2].b),
            ("c", given_problem.types.cd, sets[2].c),
        )
    )
    deviation = 0.125 if types == "i8" else 0.5
    assert float((a**2).mean()) == pytest.approx(deviation**2, rel=0.05)
    assert set(np.unique(b).tolist()) == {-2, -1, 0, 1, 2}
    assert np.unique(c).tolist() == pytest.approx([0.25], abs=0.003)


@pytest.mark.parametrize("types", ["f16", "bf16", "f8e4m3", "f8e5m2", "i8"])
@pytest.mark.parametrize("scale", ["1e-6", "0.01", "1000", "1e6"])
def test_scaled_numbers_are_rounded_and_clipped_to_their_type(types: str, scale: str) -> None:
    given_problem = problem(Shape(64, 8, 64), types)
    rules = operand_rules(f"a=normal*{scale} b=zeros")
    elements = HostArena(2**10).sets(SetLayout.of(given_problem, 64), 1, rules)[0].a
    numbers = decode(given_problem.types.ab, elements)
    largest = {"f16": 65504, "bf16": 1e38, "f8e4m3": 448, "f8e5m2": 57344, "i8": 127}[types]
    assert np.isfinite(numbers).all()
    assert np.abs(numbers).max() <= largest


def test_matrices_that_differ_have_the_same_numbers_whatever_the_arena_held_before() -> None:
    given_problem, rules = problem(Shape(24, 16, 40), beta=1.0), operand_rules("a=normal b=uniform*3 c=sparse", seed=7)
    layout = SetLayout.of(given_problem, 64)
    fresh = HostArena(2**10).sets(layout, 2, rules)
    arena = HostArena(2**10)
    arena.sets(SetLayout.of(problem(Shape(99, 98, 97)), 64), 3)
    arena.sets(SetLayout.of(problem(Shape(50, 60, 70)), 64), 5, rules)
    again = arena.sets(layout, 4, rules)
    for one in again:
        assert np.array_equal(one.a, fresh[0].a)
        assert np.array_equal(one.b, fresh[0].b)
    assert again[0].c is not None
    assert np.array_equal(again[0].c, fresh[0].c)
    assert not np.shares_memory(again[0].a, again[1].a)
    assert not np.array_equal(again[0].a[:16, :16], again[0].b[:16, :16])


def test_the_memory_of_an_arena_does_not_grow_with_the_rules() -> None:
    arena, layout = HostArena(2**20), SetLayout.of(problem(Shape(64, 64, 64), beta=1.0), 64)
    held = set[int]()
    for text in ("uniform", "normal", "a=normal b=zeros", "b=integers", "a=ones c=zeros", "uniform*3"):
        arena.sets(layout, 4, operand_rules(text))
        held.add(arena._arena.bytes)
    assert len(held) == 1


def numbers_of_version() -> str:
    """What the operands of each type and distribution hold on the host, and the code that fills them on a card."""
    found = hashlib.sha256()
    for types in ("f64", "f32", "f16", "bf16:bf16:f32", "i8:i32:i32"):
        # Without "normal": the C library's logarithm decides the last bit of a few of its numbers.
        for distribution in ("uniform", "zeros", "ones", "sparse", "integers"):
            of = problem(Shape(33, 17, 65), types, beta=1.0)
            rules = OperandRules(distribution=distribution, seed=7)
            (operands,) = HostArena(1).sets(SetLayout.of(of, 64), 1, rules)
            assert operands.c is not None
            for matrix in (operands.a, operands.b, operands.c):
                found.update(np.ascontiguousarray(matrix).tobytes())
    code = re.sub(r"\s*//.*", "", (Path(workers.kernels.__file__).parent / "operands.cu").read_text())
    found.update(code.encode())
    return found.hexdigest()[:16]


def test_other_numbers_have_another_version() -> None:
    """Another result: the numbers changed. Raise `OPERANDS_VERSION`, and write both down here."""
    assert (OPERANDS_VERSION, numbers_of_version()) == (1, "dc00944a245db2ed")
