"""A campaign's rows as columns, what follows from them, and what pictures make of them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.both_times import burst_apart
from farm.charts.chart import Scale
from farm.kernels import Configuration
from farm.report.document import Cell, Table
from farm.report.figures import both_times, fronts, occupancy, parameter_maps, rooflines, sizes
from farm.report.figures import points as chart_points
from farm.report.figures.shades import MAX_SHADES, shading
from farm.report.result_points import Results, short_names
from support.result_rows import results_of, row, tiled

# --- points ----------------------------------------------------------------------------------------------


def test_rows_of_a_configuration_are_one_point_with_their_median() -> None:
    found = results_of(tiled(8, 1.0, 10.0), tiled(8, 3.0, math.nan), tiled(8, 2.0, 20.0), tiled(16, 5.0))
    eight = int(np.flatnonzero(found.rows == 3)[0])
    assert (found.runtime_ms[eight], found.energy_mj[eight]) == (2.0, 15.0)
    assert str(found.kernels[found.kernel[eight]]) == "tiled(tile=8)"
    assert len(found) == 2
    assert np.isnan(found.energy_mj[1 - eight])


def test_types_and_problems_that_differ_in_one_thing_stay_apart() -> None:
    alike = "tiled(tile=8) 64x64x64 f32"
    found = results_of(
        row(alike, 1.0),
        row(f"{alike} nt", 1.0),
        row(f"{alike} nn beta=1", 1.0),
        row("tiled(tile=8) 64x64x64 f64", 1.0),
        row(alike, 1.0, device_type="other"),
    )
    assert len(found) == 5
    assert len(found.problems) == 4
    other = found.taken(found.type == found.types.index("other"))
    assert other.types == found.types
    assert len(other) == 1


def test_a_batch_is_a_problem_of_its_own_with_the_work_of_all_its_products() -> None:
    alone, eight = "blas(threads=1) 64x64x64 f32", "blas(threads=1) 64x64x64 f32 nn beta=1 batch=8"
    found = results_of(row(alone, 1.0), row(eight, 4.0), row(eight, 6.0))
    assert sorted(found.problem_names) == ["64x64x64 f32 nn", "64x64x64 f32 nn alpha=1 beta=1 batch=8"]
    of = {found.problems[found.problem[i]].batch: i for i in range(len(found))}
    assert found.flops[of[8]] == 8 * found.flops[of[1]]
    assert found.runtime_ms[of[8]] == 5.0
    assert found.share_of_best.tolist() == [1.0, 1.0]


def test_shares_are_of_the_fastest_of_the_problem_on_that_type() -> None:
    found = results_of(
        tiled(8, 2.0),
        tiled(16, 1.0),
        tiled(8, 8.0, shape="64x64x64"),
        tiled(16, 0.5, device_type="other"),
    )
    by_time = dict(zip(found.runtime_ms.tolist(), found.share_of_best.tolist(), strict=True))
    assert by_time == {2.0: 0.5, 1.0: 1.0, 8.0: 1.0, 0.5: 1.0}
    assert sorted(found.runtime_ms[found.fastest].tolist()) == [0.5, 1.0, 8.0]


def test_a_fastest_one_is_one_though_two_take_the_same_time() -> None:
    found = results_of(tiled(8, 1.0, 3.0), tiled(16, 1.0, 3.0))
    assert found.fastest.sum() == 1
    assert found.thriftiest.sum() == 1


def test_figures_are_derived_as_everywhere() -> None:
    found = results_of(tiled(8, 2.0, 100.0))
    flops = 2 * 512**3
    assert found.tflops.tolist() == pytest.approx([flops / 2e-3 / 1e12])
    assert found.gflops_per_w.tolist() == pytest.approx([flops / 0.1 / 1e9])
    assert found.intensity.tolist() == pytest.approx([flops / (3 * 512 * 512 * 4)])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()), min_size=1, max_size=12))
def test_the_front_is_what_nothing_else_beats(kernels: list[tuple[int, int, bool]]) -> None:
    rows = [
        tiled(tile, float(time), float(energy) if known else math.nan)
        for tile, (time, energy, known) in enumerate(kernels, 1)
    ]
    found = results_of(*rows)
    tiles = [dict(found.kernels[kernel].parameters)["tile"] for kernel in found.kernel]
    powered = [(t, e) for t, e, known in kernels if known]
    for point, tile in enumerate(tiles):
        time, energy, known = kernels[tile - 1]
        beaten = any(t <= time and e <= energy and (t, e) != (time, energy) for t, e in powered)
        assert found.on_front[point] == (known and not beaten)


def test_the_roof_is_memory_below_the_ridge_and_computing_above() -> None:
    found = results_of(
        row("cublaslt() 1x4096x4096 f16", 1.0),
        row("cublaslt() 8192x8192x8192 f16", 2.0),
        row("cublaslt() 64x64x64 f16", 1.0, device_type="cpu-x"),
    )
    order = np.argsort(found.flops)
    small, thin, large = (found.roof_tflops[point] for point in order)
    assert math.isnan(small)
    assert thin == pytest.approx(found.intensity[order[1]] * 4.8)
    assert large == 989.4


def test_names_of_kernels_leave_out_what_all_of_the_family_share() -> None:
    kernels = [
        Configuration.parse(f"{text} 64x64x64 f32").kernel
        for text in ("cutlass(tile_m=64)", "cutlass(tile_m=128)", "tiled(tile=8)")
    ]
    assert short_names(kernels) == ["cutlass(tile_m=64)", "cutlass(tile_m=128)", "tiled()"]


def test_nothing_measured_is_no_points_and_no_charts() -> None:
    results = results_of()
    assert len(results) == 0
    assert not results.on_front.any()
    for drawing in (rooflines.rooflines, sizes.sizes, parameter_maps.heat_maps, fronts.fronts, occupancy.occupancies):
        assert drawing(results) == []


# --- pictures --------------------------------------------------------------------------------------------


def swept() -> Results:
    """Three shapes by four tiles; tile 16 is the fastest, tile 32 takes the least energy."""
    times, energies = {4: 4.0, 8: 2.0, 16: 1.0, 32: 1.25}, {4: 40.0, 8: 20.0, 16: 10.0, 32: 8.0}
    return results_of(
        *(
            tiled(tile, size * times[tile], size * energies[tile], f"{512 * size}x512x512", occupancy=tile / 32)
            for size in (1, 2, 4)
            for tile in times
        )
    )


def test_a_roofline_has_every_configuration_and_the_roofs_of_the_card() -> None:
    (chart,) = rooflines.rooflines(swept())
    memory, computing, *shades, best = chart.series
    points = shades[0]
    assert (memory.name, computing.name) == ("memory: 4,800 GB/s", "computing: 66.9 TFLOP/s")
    assert memory.y[-1] == computing.y[0] == 66.9
    assert memory.x[-1] == pytest.approx(66.9 / 4.8)
    assert [len(one.x) for one in shades] == [3, 3, 3, 3]
    assert len(best.x) == 3
    assert points.texts is not None
    assert points.texts.text(0).startswith("tiled(tile=")
    assert (chart.x.scale, chart.x.unit, chart.y.unit) == (Scale.LOG, "flop/byte", "TFLOP/s")
    assert "12 configurations of f32 on nvidia-h200" in chart.message
    assert "The roof is that of the H200 SXM" in chart.message


def test_a_sparse_b_has_the_roof_of_sparse_tensor_cores() -> None:
    dense = row("cublaslt() 4096x4096x4096 bf16 nt", 0.2)
    sparse = row("cusparselt() 4096x4096x4096 bf16 nt sparsity=2:4", 0.12)
    charts = rooflines.rooflines(results_of(dense, sparse))
    assert {chart.title: chart.series[1].name for chart in charts} == {
        "Roofline of nvidia-h200, bf16:bf16:f32": "computing: 989 TFLOP/s",
        "Roofline of nvidia-h200, bf16:bf16:f32 sparsity=2:4": "computing: 1,979 TFLOP/s",
    }
    assert sizes.sizes(results_of(sparse))[0].series[0].name == "at the H200 SXM's peak, 1,979 TFLOP/s"
    assert not any(series.reference for series in sizes.sizes(results_of(dense, sparse))[0].series)


def test_a_card_that_nobody_knows_has_no_roof_and_it_is_said() -> None:
    (chart,) = rooflines.rooflines(results_of(tiled(8, 1.0, device_type="unheard-of")))
    assert [one.reference for one in chart.series] == [False]
    assert "unheard-of is not in the table of cards" in chart.message


def test_families_and_element_types_have_looks_of_their_own() -> None:
    results = results_of(
        tiled(8, 1.0),
        row("tiled(tile=8) 64x64x64 f64", 1.0),
        row("cublaslt() 64x64x64 f64", 1.0),
        row("cublaslt() 64x64x64 f16", 1.0),
    )
    (chart,) = sizes.sizes(results)
    assert [one.name for one in chart.series] == [
        "cublaslt f16:f16:f32 (1)",
        "cublaslt f64 (1)",
        "tiled f32 (1)",
        "tiled f64 (1)",
    ]
    assert len({one.look for one in chart.series}) == 4
    by_types = {c.title.rsplit(" ", 1)[1]: c for c in rooflines.rooflines(results)}
    assert [one.name for one in by_types["f64"].series if not one.reference] == ["cublaslt (1)", "tiled (1)"]
    assert len({one.look for one in by_types["f64"].series if not one.reference}) == 2


def test_one_family_is_shown_by_the_parameter_that_varies() -> None:
    for chart in (*rooflines.rooflines(swept()), *sizes.sizes(swept())):
        shades = [series for series in chart.series if series.shade is not None]
        assert [series.name.rpartition(" ")[0] for series in shades] == ["tile 4", "tile 8", "tile 16", "tile 32"]
        assert [series.shade for series in shades] == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
        assert "Colour and marker show the parameter tile, from 4 to 32." in chart.message


def test_of_several_parameters_the_one_that_matters_most_is_shown_and_the_others_are_named() -> None:
    kernels = [(stages, tile) for stages in (2, 3) for tile in (64, 128)]
    rows = [
        row(f"cutlass(stages={stages},tile_m={tile}) {n}x512x512 f16:f16:f32", stages + tile)
        for stages, tile in kernels
        for n in (512, 1024)
    ]
    found = shading(results_of(*rows), np.arange(len(rows)))
    assert found is not None
    assert (found.parameter, found.values, found.others) == ("tile_m", (64, 128), ("stages",))
    assert "and not stages, which vary too" in found.message


def test_many_values_share_shades_in_ranges_and_each_point_is_in_one() -> None:
    results = results_of(*(tiled(tile, 1.0 + tile) for tile in range(1, 33)))
    found = shading(results, np.arange(len(results)))
    assert found is not None
    assert len(found.shades) == MAX_SHADES
    assert (found.shades[0].label, found.shades[-1].label) == ("tile 1–4", "tile 30–32")
    assert sorted(np.concatenate([one.points for one in found.shades]).tolist()) == list(range(32))


def test_families_and_kernels_without_parameters_are_not_shown_by_one() -> None:
    several = results_of(tiled(8, 1.0), tiled(16, 1.0), row("blas(threads=1) 64x64x64 f32", 1.0))
    assert shading(several, np.arange(3)) is None
    assert not any(series.shade is not None for series in rooflines.rooflines(several)[0].series)
    alone = results_of(tiled(8, 1.0), tiled(8, 1.0, shape="64x64x64"))
    assert shading(alone, np.arange(2)) is None


def test_energy_against_size_is_there_where_power_is() -> None:
    assert [chart.name for chart in sizes.sizes(swept())] == ["time-nvidia-h200", "energy-nvidia-h200"]
    assert [chart.name for chart in sizes.sizes(results_of(tiled(8, 1.0)))] == ["time-nvidia-h200"]


def test_a_single_parameter_stands_against_size() -> None:
    (found,) = parameter_maps.heat_maps(swept())
    assert (found.y.label, found.y.names) == ("tile", ("4", "8", "16", "32"))
    assert found.x.names == ("0.1 – 1 GFLOP", "1 – 10 GFLOP")
    assert found.values[:, 0].tolist() == [25, 50, 100, 80]
    assert found.counts.tolist() == [[2, 1]] * 4
    assert "The best cell is tile 16" in found.message


def test_a_cell_is_the_median_of_its_configurations() -> None:
    times = {8: (1.0, 1.0, 1.0), 16: (2.0, 4.0, 10.0)}
    results = results_of(
        *(tiled(tile, ms, shape=f"{512 + 64 * n}x512x512") for tile in times for n, ms in enumerate(times[tile]))
    )
    (found,) = parameter_maps.heat_maps(results)
    assert found.values.tolist() == [[100.0], [25.0]]
    assert found.counts.tolist() == [[3], [3]]


def test_pairs_that_belong_together_come_first_and_the_most_important_stands_against_size() -> None:
    effects = {"stages": 0.3, "swizzle": 0.01, "tile_m": 0.2, "tile_n": 0.1}
    every = [tuple(sorted((a, b))) for a in effects for b in effects if a < b]
    pairs = parameter_maps.chosen_pairs(effects, dict.fromkeys(every, 1.0))
    assert pairs == [("tile_m", "tile_n"), ("stages", "tile_m"), ("stages", None)]
    # What follows from another parameter says little beside it.
    follows = {**dict.fromkeys(every, 1.0), ("stages", "tile_m"): 0.25}
    assert parameter_maps.chosen_pairs(effects, follows)[1] == ("stages", "tile_n")


def test_the_front_of_a_sweep_and_its_size() -> None:
    results = swept()
    (chart,) = fronts.fronts(results)
    others, front = chart.series
    assert sorted(zip(front.x.tolist(), front.y.tolist(), strict=True)) == [(1.0, 1.25)] * 3 + [(1.25, 1.0)] * 3
    assert len(others.x) == 6
    assert fronts.front_sizes(results) == {2: 3}
    assert "On 0% of the problems one kernel is the fastest and takes the least energy." in chart.message


def test_problems_with_one_energy_have_no_choice_and_the_fastest_is_of_those_with_energy() -> None:
    results = results_of(tiled(4, 1.0), tiled(8, 2.0, 20.0), tiled(16, 4.0, 10.0), tiled(8, 1.0, 5.0, shape="64x64x64"))
    (chart,) = fronts.fronts(results)
    assert [len(one.x) for one in chart.series] == [2]
    assert sorted(chart.series[0].x.tolist()) == [1.0, 2.0]
    assert fronts.front_sizes(results) == {2: 1}


def test_occupancy_is_told_where_enough_configurations_have_one() -> None:
    rows = [
        tiled(tile, 1.0 + tile / 10, shape=f"{64 * m}x64x64", occupancy=tile / 32)
        for m in range(1, 7)
        for tile in (8, 16)
    ]
    (chart,) = occupancy.occupancies(results_of(*rows))
    (series,) = chart.series
    assert series.x.tolist() == [25.0, 50.0]
    assert series.y.tolist() == pytest.approx([100.0, 100 * 1.8 / 2.6])
    assert occupancy.occupancies(swept()) == []


def test_of_too_many_points_some_are_drawn_with_all_that_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_points, "MAX_POINTS", 10)
    points = np.arange(100)
    kept, remark = chart_points.thinned(points, np.array([7, 50, 99]))
    assert {7, 50, 99} <= set(kept.tolist()) <= set(points.tolist())
    assert 10 <= len(kept) <= 13
    assert f"{len(kept)} of 100 points are drawn" in remark
    assert chart_points.thinned(points[:10])[1] == ""


def test_a_column_of_numbers_is_known_by_its_cells() -> None:
    table = Table(
        caption="kernels",
        columns=["problem", "ms", "interval", "version", "least energy", "measured"],
        rows=[
            (
                Cell("8x8x8 f32", 1.0),
                0.5,
                Cell("1.2 (0.9 – 1.5)", 1.2),
                "12.4",
                None,
                datetime(2026, 11, 1, tzinfo=UTC),
            ),
            (Cell("9x9x9 f32", 2.0), math.nan, Cell("–"), "cuda 12.4", None, None),
        ],
    )
    assert table.numbers == {"ms", "interval"}


# --- burst against settled times ---------------------------------------------------------------------------


def test_burst_times_are_drawn_as_shares_of_settled_ones_where_any_differs() -> None:
    alike = tiled(8, 2.0, runtime_burst_ms=1.99, power_limited=0.0)
    assert both_times.burst_ratios(results_of(alike, tiled(16, 1.0))) == []
    limited = tiled(16, 1.0, runtime_burst_ms=0.85, power_limited=1.0)
    (chart,) = both_times.burst_ratios(results_of(alike, limited, tiled(32, 4.0)))
    reference, first, second = chart.series
    assert (first.name, second.name) == ("power-limited (1)", "not power-limited (1)")
    assert (first.x.tolist(), first.y.tolist()) == ([1.0], pytest.approx([85.0]))
    assert (second.x.tolist(), second.y.tolist()) == ([2.0], pytest.approx([99.5]))
    assert reference.x.tolist() == [1.0, 2.0]  # the kernel without a burst time is not there
    assert "in 1 of 2 configurations" in chart.message
    assert "tiled(tile=16) on 512x512x512 f32 nn" in chart.message


def test_both_times_are_shown_from_a_difference_of_two_percent_on() -> None:
    assert burst_apart(0.97, 1.0) == 0.97
    assert burst_apart(1.03, 1.0) == 1.03
    assert burst_apart(0.985, 1.0) is None
    assert burst_apart(None, 1.0) is None
