"""Groups of configurations, the roofline, costs, and how ids and kinds of rows are told apart."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.compare import breakdowns, money, row_query
from farm.compare.breakdowns import Problems
from farm.db import arrow_columns
from farm.fusion import Fusion
from farm.gemm import ElementType, ElementTypes, Problem, Shape
from farm.gpus import find_gpu
from farm.groups import Groups
from farm.scale import SCALES_OF_BOTH, Scale
from farm.sparsity import Sparsity


def problems_of(listed: Sequence[Problem]) -> Problems:
    known, scales, fusions, sparsities = (
        list(dict.fromkeys(str(getattr(problem, name)) for problem in listed))
        for name in ("types", "scale", "fused", "sparsity")
    )
    groupings = list(dict.fromkeys(str(problem.groups or "none") for problem in listed))
    return Problems(
        m=np.array([p.shape.m for p in listed]),
        n=np.array([p.shape.n for p in listed]),
        k=np.array([p.shape.k for p in listed]),
        types=np.array([known.index(str(p.types)) for p in listed]),
        types_known=known,
        beta=np.array([p.beta for p in listed]),
        batch=np.array([p.batch for p in listed]),
        scale=np.array([scales.index(p.scale) for p in listed]),
        scales=scales,
        fused=np.array([fusions.index(p.fused) for p in listed]),
        fusions=fusions,
        groups=np.array([groupings.index(str(p.groups or "none")) for p in listed]),
        groupings=groupings,
        sparsity=np.array([sparsities.index(p.sparsity) for p in listed]),
        sparsities=sparsities,
        family=np.zeros(len(listed), int),
        families=["tiled"],
    )


def problem(
    m: int, n: int, k: int, types: str = "f32", beta: float = 0.0, batch: int = 1,
    scale: Scale = Scale.NONE, fused: Fusion = Fusion.NONE, groups: Groups | None = None,
    sparsity: Sparsity = Sparsity.NONE,
) -> Problem:  # fmt: skip
    if fused.gated:
        n, beta = 2 * -(-n // 4), 0.0
    return Problem(
        Shape(m, n, k), ElementTypes.parse(types), beta=beta, batch=batch, scale=scale, fused=fused, groups=groups,
        sparsity=sparsity,
    )  # fmt: skip


def grouped(sizes: list[int], n: int, k: int, scale: Scale, fused: Fusion) -> Problem:
    return problem(
        max(1, sum(sizes)), n, k, "f16", scale=scale, fused=fused, groups=Groups.of(sizes if any(sizes) else [1])
    )


extents = st.integers(1, 2**31 - 2)


@given(
    st.lists(
        st.builds(
            grouped, st.lists(st.integers(0, 999), min_size=1, max_size=9), extents, extents,
            st.sampled_from([scale for scale in SCALES_OF_BOTH if scale is not Scale.BLOCK_GROUP]), st.sampled_from(Fusion),
        )
        | st.builds(
            problem, extents, extents.map(lambda n: n + n % 2), extents, st.sampled_from(["f16i8", "bf16f4"]),
            st.sampled_from([0, 1]), st.just(1),
            st.sampled_from([scale for scale in Scale if scale is Scale.NONE or scale.of_weights]),
        )
        | st.builds(
            problem, extents, extents, extents, st.sampled_from(["f32", "f16", "i8", "f64"]), st.sampled_from([0, 1]),
            st.one_of(st.just(1), extents), st.sampled_from(SCALES_OF_BOTH), st.sampled_from(Fusion), st.none(),
            st.sampled_from(Sparsity),
        ),
        min_size=1,
        max_size=8,
    )
)  # fmt: skip
def test_operations_bytes_and_shapes_are_those_of_the_problems(listed):
    found = problems_of(listed)
    assert breakdowns.flops_of(found) == pytest.approx([float(p.flops) for p in listed], rel=1e-14)
    assert breakdowns.bytes_of(found) == pytest.approx([float(p.bytes) for p in listed], rel=1e-14)
    numbers = breakdowns.shapes_of(found)
    kinds = [(p.shape, p.batch, p.scale, p.fused, p.groups, p.sparsity) for p in listed]
    same = [[a == b for b in kinds] for a in kinds]
    assert [[a == b for b in numbers] for a in numbers] == same


def test_batches_of_one_shape_are_several_shapes():
    listed = [problem(64, 64, 64, batch=batch) for batch in (8, 1, 8, 64)]
    assert breakdowns.shapes_of(problems_of(listed)).tolist() == [1, 0, 1, 2]


def test_a_shape_with_scale_factors_or_a_fused_operation_is_another_shape():
    listed = [problem(64, 64, 64, scale=scale, fused=fused) for scale in SCALES_OF_BOTH for fused in Fusion]
    assert len(set(breakdowns.shapes_of(problems_of([*listed, *listed])).tolist())) == len(listed)


def test_the_rows_of_its_groups_make_another_shape():
    listed = [problem(64, 64, 64, groups=Groups.parse(text)) for text in ("none", "64", "32*2", "0,64", "32*2")]
    assert breakdowns.shapes_of(problems_of(listed)).tolist() == [0, 1, 2, 3, 2]


def test_element_types_are_named_shortly_where_all_are_the_same():
    found = breakdowns.by_type(
        problems_of([problem(1, 1, 1, "tf32"), problem(1, 1, 1, "f32"), problem(2, 1, 1, "tf32")])
    )
    assert [found.labels[number] for number in found.which] == ["tf32:f32:f32", "f32", "tf32:f32:f32"]
    assert found.labels == ["f32", "tf32:f32:f32"]


def test_sizes_are_decades_of_operations():
    found = breakdowns.by_size(np.array([0.099e9, 0.1e9, 9.9e9, 10e9, 99e12]))
    assert [found.labels[number] for number in found.which] == [
        "< 0.1 GFLOP", "0.1 – 1 GFLOP", "1 – 10 GFLOP", "10 – 100 GFLOP", "≥ 10,000 GFLOP",
    ]  # fmt: skip


def test_the_roofline_is_the_larger_of_computing_and_moving():
    card = find_gpu("nvidia-h200")
    assert card is not None
    square, thin = problem(8192, 8192, 8192, "f16"), problem(1, 8192, 8192, "f16")
    found = problems_of([square, thin])
    flops, traffic = breakdowns.flops_of(found), breakdowns.bytes_of(found)
    at_best = breakdowns.attainable_ms(found, flops, traffic, card)
    assert at_best[0] == pytest.approx(square.flops / (card.tflops["f16"] * 1e12) * 1e3)
    assert at_best[1] == pytest.approx(thin.bytes / (card.memory_gb_per_s * 1e9) * 1e3)
    bound = breakdowns.by_bound(found, flops, traffic, card)
    assert [bound.labels[number] for number in bound.which] == ["compute-bound", "memory-bound"]


def test_without_a_figure_of_the_card_nothing_is_said_of_the_roofline():
    card = find_gpu("tesla-t4")
    assert card is not None
    assert card.peak_tflops(ElementType.BF16) is None
    found = problems_of([problem(64, 64, 64, "bf16")])
    flops, traffic = breakdowns.flops_of(found), breakdowns.bytes_of(found)
    for unknown in (None, card):
        assert np.isnan(breakdowns.attainable_ms(found, flops, traffic, unknown)).all()
        assert breakdowns.by_bound(found, flops, traffic, unknown).which.tolist() == [-1]


def test_money_is_hours_of_the_card_by_operations():
    flops, shapes = np.full(8, 1e15), np.arange(8)
    hour = np.full(8, 3.6e6)
    found = money.money(flops, shapes, hour, hour / 4, (2.0, 6.0))
    assert found is not None
    assert (found.baseline, found.side, found.ratio) == pytest.approx((2.0, 1.5, 0.75))
    assert (found.low, found.high) == pytest.approx((0.75, 0.75))
    one_price = money.money(flops, shapes, hour, hour / 4, (None, 6.0))
    assert one_price is not None
    assert (one_price.baseline, one_price.side, one_price.ratio) == (None, 1.5, None)
    assert money.money(flops, shapes, hour, hour, (None, None)) is None
    few = money.money(flops[:5], shapes[:5], hour[:5], hour[:5], (2.0, 2.0))
    assert few is not None
    assert (few.ratio, few.low) == (1.0, None)


def test_carbon_is_of_the_configurations_that_both_have_the_energy_of():
    kwh = 3.6e9  # mJ
    flops = np.array([1e15, 1e15, 5e15])
    found = money.carbon(
        flops, np.arange(3), np.array([kwh, kwh, np.nan]), np.array([kwh / 2, kwh / 2, kwh]), grams_per_kwh=300
    )
    assert found is not None
    assert (found.baseline, found.side, found.ratio, found.configurations) == pytest.approx((300, 150, 0.5, 2))
    assert money.carbon(flops, np.arange(3), flops * np.nan, flops, grams_per_kwh=300) is None


# --- ids and kinds -------------------------------------------------------------------------------------


def words(ids: Sequence[uuid.UUID]) -> np.ndarray:
    return np.frombuffer(b"".join(one.bytes for one in ids), np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("alike", [False, True])
def test_ids_are_numbered_and_found_again_even_where_their_keys_are_the_same(alike, monkeypatch):
    if alike:
        monkeypatch.setattr(arrow_columns, "keys", lambda given: given[:, 0] & np.uint64(1))
    some = [uuid.UUID(int=n * 2**70 + n % 3) for n in range(20)]
    rows = [some[n] for n in np.random.default_rng(0).integers(0, 20, 100)]
    codes, ids = arrow_columns.coded(words(rows))
    assert [row_query.as_uuids(ids)[code] for code in codes] == rows
    assert len(ids) == len(set(rows))
    at = row_query._positions(words(some), ids)
    assert [some[place] for place in at] == row_query.as_uuids(ids)


def test_the_kind_of_a_row_is_told_by_the_columns_that_differ():
    devices = pa.chunked_array([[1, 2, 1], [2, 3]])
    clocks = pa.chunked_array([["a", None, None], ["a", "a"]])
    found = row_query._which_kind([(devices, [1, 2, 2]), (clocks, ["a", None, "a"])], 5)
    assert found.tolist() == [0, 1, -1, 2, -1]
    assert row_query._which_kind([], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("start", [0, 3, 11])
def test_columns_become_numbers_with_nan_for_null(start):
    values = [None if n % 3 == 0 else float(n) for n in range(20)]
    found = arrow_columns.numbers(pa.chunked_array([pa.array(values)[start:], pa.array([None, 1.5])]))
    assert found == pytest.approx([math.nan if v is None else v for v in [*values[start:], None, 1.5]], nan_ok=True)
    assert arrow_columns.numbers(pa.array(values)[start:]) == pytest.approx(found[:-2], nan_ok=True)
    assert arrow_columns.numbers(pa.chunked_array([], pa.int64())).tolist() == []
