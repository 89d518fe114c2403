"""What a study of tiles says: medians, ratios, what is best, and what it says where something was not measured."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm.analysis import tile_charts
from farm.analysis.paper import PAPER_TILES, compare_with_paper
from farm.analysis.tile_recording import read_recording
from farm.analysis.tiles import DeviceTiles, TiledRow, analyze
from farm.charts.matplotlib_renderer import need_matplotlib
from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadInput, BadRecording, MissingColumns, ServiceUnavailable
from farm.gemm import ElementTypes, Layout, Problem, Shape, added_columns
from farm.kernels.families import TILE_STUDY
from farm.provenance import METADATA_KEY, Provenance

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "gpperf"

CUBE = Problem(Shape(512, 512, 512), ElementTypes.parse("f32"))
FLAT = Problem(Shape(16, 512, 512), ElementTypes.parse("f32"))


def row(tile: int, runtime_ms: float, power_w: float | None = None, **more: Any) -> TiledRow:
    return TiledRow(
        **{"device_type": "card", "problem": CUBE, "tile": tile, "runtime_ms": runtime_ms, "power_w": power_w, **more}
    )


def study(*rows: TiledRow, baseline: int = 1) -> DeviceTiles:
    (found,) = analyze(rows, baseline=baseline)
    return found


# --- one problem -------------------------------------------------------------------------------------


def test_time_power_and_energy_are_held_against_the_baseline() -> None:
    (problem,) = study(row(1, 8.0, 100.0), row(16, 2.0, 150.0)).problems
    point = problem.points[1]
    assert (point.energy_mj, problem.speed_up(point)) == (300.0, 4.0)
    assert (problem.power_change_pct(point), problem.energy_change_pct(point)) == (50.0, -62.5)
    assert point.tflops == pytest.approx(2 * 512**3 / 2e-3 / 1e12)
    assert point.gflops_per_w == pytest.approx(1000 * point.tflops / 150)


def test_energy_is_that_of_the_time_in_which_power_was_read() -> None:
    rows = (row(1, 8.0, 100.0), row(16, 2.0, 150.0, runtime_settled_ms=2.5), row(32, 2.2, 150.0))
    (problem,) = study(*rows).problems
    point = problem.points[1]
    assert (point.runtime_ms, point.energy_mj) == (2.0, 375.0)
    assert point.tflops == pytest.approx(2 * 512**3 / 2e-3 / 1e12)
    assert point.gflops_per_w == pytest.approx(2 * 512**3 / 1e9 / 0.375)
    assert problem.fastest is point
    assert problem.thriftiest is problem.points[2]


def test_energy_of_a_tile_is_the_median_of_its_rows() -> None:
    times = ((1.0, 1.5), (1.0, None), (3.0, 4.0))
    (point,) = study(*(row(8, t, 100.0, runtime_settled_ms=s) for t, s in times)).problems[0].points
    assert (point.runtime_ms, point.energy_mj) == (1.0, 150.0)


def test_rows_become_the_median_of_their_device_and_devices_the_median_of_these() -> None:
    rows = [
        row(8, ms, device_uuid=uuid) for uuid, times in (("a", (1, 2, 3)), ("b", (4,)), ("c", (9,))) for ms in times
    ]
    ((point,),) = (problem.points for problem in study(*rows).problems)
    assert (point.runtime_ms, point.rows, point.devices) == (4.0, 5, 3)


def test_what_a_kernel_takes_is_one_of_the_values_that_rows_say() -> None:
    rows = [row(8, 1.0, registers=n, shared_bytes=512, occupancy=o) for n, o in ((32, 1.0), (40, 0.5))]
    (point,) = study(*rows).problems[0].points
    assert (point.registers, point.shared_bytes, point.occupancy) == (32, 512, 0.75)


def test_the_tile_of_least_energy_may_be_another_than_the_fastest() -> None:
    (problem,) = study(row(16, 1.0, 200.0), row(32, 1.1, 100.0)).problems
    assert problem.fastest is problem.points[0]
    assert problem.thriftiest is problem.points[1]
    assert problem.trade is not None
    assert asdict(problem.trade) == {
        "fastest": 16,
        "thriftiest": 32,
        "time_change_pct": pytest.approx(10),
        "energy_change_pct": pytest.approx(-45),
    }


def test_without_power_nothing_is_said_of_energy() -> None:
    (problem,) = study(row(1, 2.0), row(8, 1.0)).problems
    point = problem.points[1]
    assert (point.power_w, point.energy_mj, point.gflops_per_w) == (None, None, None)
    assert (problem.power_change_pct(point), problem.thriftiest, problem.trade) == (None, None, None)
    assert problem.speed_up(point) == 2.0


def test_one_tile_is_best_at_nothing() -> None:
    found = study(row(8, 1.0, 100.0))
    assert (found.problems[0].fastest, found.problems[0].thriftiest) == (None, None)
    assert (found.summary[0].fastest, found.summary[0].thriftiest) == (0, 0)


@pytest.mark.parametrize(
    ("types", "layout", "tile", "size"),
    [("f32", "nn", 16, 2048), ("f32", "nn", 1, 8), ("f64", "nn", 32, 16384), ("f32", "tn", 16, 2112), ("f64", "tt", 8, 1152)],
)  # fmt: skip
def test_shared_memory_is_two_tiles_and_a_column_for_each_transposed_operand(
    types: str, layout: str, tile: int, size: int
) -> None:
    problem = Problem(Shape(64, 64, 64), ElementTypes.parse(types), Layout(layout))
    assert TILE_STUDY.tile_shared_bytes(problem, tile) == size
    assert study(row(tile, 1.0, problem=problem)).problems[0].points[0].shared_bytes == size


def test_rows_of_different_operands_are_different_problems() -> None:
    found = study(row(8, 1.0, 200.0), row(8, 1.0, 100.0, distribution="zeros"))
    assert [problem.label for problem in found.problems] == ["512x512x512 f32 nn", "512x512x512 f32 nn zeros"]


def test_a_label_says_what_is_unusual_and_tells_any_two_problems_apart() -> None:
    scaled = Problem(CUBE.shape, ElementTypes.parse("f64"), Layout.TN, 1.0, 0.1 + 0.2)
    assert study(row(8, 1.0, problem=scaled)).problems[0].label == "512x512x512 f64 tn alpha=1 beta=0.30000000000000004"
    batches = study(row(8, 2.0, problem=replace(CUBE, batch=8)), row(8, 1.0)).problems
    assert [one.label for one in batches] == ["512x512x512 f32 nn", "512x512x512 f32 nn batch=8"]


# --- all problems ------------------------------------------------------------------------------------


def test_the_summary_counts_the_best_and_takes_geometric_means() -> None:
    found = study(
        row(1, 8.0, 100.0), row(16, 4.0, 150.0), row(32, 1.0, 160.0),
        row(1, 8.0, 110.0, problem=FLAT), row(16, 1.0, 120.0, problem=FLAT), row(32, 2.0, 50.0, problem=FLAT),
    )  # fmt: skip
    _, sixteen, thirty_two = found.summary
    assert (sixteen.fastest, sixteen.thriftiest, thirty_two.fastest, thirty_two.thriftiest) == (1, 0, 1, 2)
    assert sixteen.speed_up == pytest.approx((2 * 8) ** 0.5)
    assert thirty_two.energy_ratio == pytest.approx((160 / 800 * 100 / 880) ** 0.5)
    assert (sixteen.power_min_w, sixteen.power_max_w) == (120.0, 150.0)


def test_device_types_are_kept_apart() -> None:
    found = analyze([row(8, 1.0), row(8, 2.0, device_type="another")])
    assert [(kind.device_type, kind.rows) for kind in found] == [("another", 1), ("card", 1)]


def test_a_baseline_that_nobody_measured_is_the_smallest_tile() -> None:
    found = study(row(4, 3.0), row(8, 1.0))
    assert (found.baseline, found.off_baseline, found.summary[1].speed_up) == (4, 0, pytest.approx(3))
    assert study(row(4, 3.0), row(8, 1.0), baseline=8).summary[0].speed_up == pytest.approx(1 / 3)


def test_a_problem_without_the_baseline_is_left_out_of_the_means() -> None:
    found = study(row(1, 4.0), row(8, 1.0), row(4, 9.0, problem=FLAT), row(8, 3.0, problem=FLAT))
    assert (found.baseline, found.off_baseline) == (1, 1)
    flat = next(problem for problem in found.problems if problem.problem == FLAT)
    assert (flat.baseline, flat.speed_up(flat.points[1])) == (4, 3.0)
    by_tile = {summary.tile: summary for summary in found.summary}
    assert (by_tile[8].speed_up, by_tile[8].problems, by_tile[4].speed_up) == (4.0, 2, None)


def test_problems_with_the_power_of_some_tiles_only_are_counted() -> None:
    found = study(row(1, 4.0, 100.0), row(8, 1.0), row(1, 1.0, problem=FLAT), row(8, 2.0, problem=FLAT))
    assert found.partly_powered == 1


# --- the paper ---------------------------------------------------------------------------------------


def test_the_papers_figures_are_those_of_its_published_tables() -> None:
    if not PUBLISHED.exists():
        pytest.skip(f"the published tables are not in {PUBLISHED}")
    key = ["M", "N", "K", "Tile Size"]
    table = pd.read_csv(PUBLISHED / "rtx4070_tiled_runtime.csv").merge(
        pd.read_csv(PUBLISHED / "rtx4070_tiled_power.csv"), on=key
    )
    large = table[(table["M"] >= 8192) & (table["N"] >= 8192)]
    rows = [
        row(int(tile), time, power, problem=Problem(Shape(int(m), int(n), int(k)), CUBE.types))
        for m, n, k, tile, time, power in large.itertuples(index=False)
    ]
    assert [asdict(s) for s in study(*rows).summary] == [
        pytest.approx(asdict(known), rel=1e-5) for known in PAPER_TILES
    ]


def test_the_paper_is_held_against_the_same_baseline() -> None:
    beside = compare_with_paper(study(row(8, 4.0), row(16, 2.0), row(20, 1.0), baseline=8).summary, 8)
    assert [b.here.tile for b in beside] == [8, 16]
    assert beside[1].paper_speed_up == pytest.approx(184.051 / 108.746)
    assert beside[1].paper_energy_ratio == pytest.approx(0.00418046 / 0.00805205)
    assert compare_with_paper(study(row(2, 4.0), row(16, 2.0)).summary, 2) == []


# --- recordings --------------------------------------------------------------------------------------

COLUMNS: dict[str, Any] = {
    "m": 64, "n": 32, "k": 16, "ab": "f32", "cd": "f32", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0,
    "family": "tiled", "parameters": '{"tile": 8}', "runtime_ms": 2.0,
}  # fmt: skip
FROM = Provenance(
    device_type="card",
    device_name="Card",
    traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**30),
    provenance="measured by hand",
)


def recorded(path: Path, *rows: dict[str, Any], provenance: Provenance | None = FROM) -> Path:
    metadata = None if provenance is None else {METADATA_KEY: json.dumps(provenance.to_json())}
    pq.write_table(pa.Table.from_pylist(list(rows)).replace_schema_metadata(metadata), path)
    return path


def test_a_recording_with_nothing_but_times_is_read(tmp_path: Path) -> None:
    rows, said = read_recording(recorded(tmp_path / "r.parquet", COLUMNS))
    assert said == FROM
    problem = Problem(Shape(64, 32, 16), ElementTypes.parse("f32"))
    assert rows == [TiledRow(device_type="card", problem=problem, tile=8, runtime_ms=2.0)]


def test_a_recording_says_what_it_knows_of_power_device_and_kernel(tmp_path: Path) -> None:
    details = {
        "occupancy": 0.5,
        "registers": 32,
        "static_shared_bytes": 512,
        "waves": 1.5,
        "blocks_per_multiprocessor": 4,
    }
    more = {
        "device_type": "mine",
        "device_uuid": "GPU-1",
        "power_w": 90.0,
        "distribution": "ones",
        "runtime_settled_ms": 2.5,
    }
    path = recorded(tmp_path / "r.parquet", {**COLUMNS, **more, "details": json.dumps(details)})
    ((found,), _) = read_recording(path)
    said = (found.device_type, found.device_uuid, found.power_w, found.distribution, found.runtime_settled_ms)
    assert said == tuple(more.values())
    kernel = (found.occupancy, found.registers, found.shared_bytes, found.waves, found.blocks_per_multiprocessor)
    assert kernel == tuple(details.values())


def test_a_recording_says_which_batch_scale_factors_and_fused_operations_a_problem_has(tmp_path: Path) -> None:
    added = {"batch": 8, "scale": "row", "fused": "bias+relu", "groups": "none", "sparsity": "none"}
    ((found,), _) = read_recording(recorded(tmp_path / "r.parquet", COLUMNS | added))
    assert added_columns(found.problem) == added


def test_other_families_and_missing_power_are_no_rows_and_no_power(tmp_path: Path) -> None:
    blas = {**COLUMNS, "family": "blas", "parameters": '{"threads": 1}', "power_w": 10.0}
    path = recorded(tmp_path / "r.parquet", blas, {**COLUMNS, "power_w": None}, {**COLUMNS, "power_w": float("nan")})
    rows, _ = read_recording(path)
    assert [found.power_w for found in rows] == [None, None]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": '{"tile": 40}'}, "row 2 of the family tiled: tiled does not accept tile=40"),
        ({"parameters": "tile 8"}, "row 2"),
        ({"parameters": "[8]"}, "row 2"),
        ({"layout": "xx"}, "row 2"),
        ({"runtime_ms": 0.0}, "runtime_ms is 0.0"),
        ({"runtime_ms": None}, "row 2"),
        ({"power_w": -3.0}, "power_w is -3.0"),
        ({"runtime_settled_ms": -3.0}, "runtime_settled_ms is -3.0"),
        ({"details": "[1]"}, "row 2"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    good = {**COLUMNS, "power_w": 1.0, "runtime_settled_ms": None, "details": "{}"}
    path = recorded(tmp_path / "r.parquet", good, {**good, **change})
    with pytest.raises(BadRecording, match=r"r\.parquet") as refused:
        read_recording(path)
    assert says in str(refused.value)


def test_what_is_no_recording_is_refused_with_why(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="no such file"):
        read_recording(tmp_path / "nothing.parquet")
    (tmp_path / "text.parquet").write_text("tile,ms\n")
    with pytest.raises(BadRecording, match="magic bytes"):
        read_recording(tmp_path / "text.parquet")
    with pytest.raises(BadRecording, match="name the device"):
        read_recording(recorded(tmp_path / "nobody.parquet", COLUMNS, provenance=None))
    with pytest.raises(MissingColumns, match="lacks the columns runtime_ms"):
        read_recording(recorded(tmp_path / "untimed.parquet", {k: v for k, v in COLUMNS.items() if k != "runtime_ms"}))


# --- charts ------------------------------------------------------------------------------------------


def drawn(path: Path) -> bool:
    """Whether the file is a PNG of some size that is not all of one colour."""
    from matplotlib.image import imread

    picture = imread(path)
    return path.suffix == ".png" and min(picture.shape[:2]) > 200 and picture[..., :3].std() > 0.05


def test_each_problem_and_each_device_type_gets_its_chart(tmp_path: Path) -> None:
    scaled = Problem(CUBE.shape, ElementTypes.parse("f64"), Layout.TN, 2.0, 0.5)
    rows = [row(1, 400.0, 90.0, occupancy=0.5), row(8, 2.0, 100.0, occupancy=1.0), row(8, 1.0, device_type="b/c")]
    rows += [row(tile, 1.0 + tile / 100, problem=scaled) for tile in range(1, 33)]
    paths = list(tile_charts.write(analyze(rows), tmp_path / "new" / "folder"))
    assert [path.name for path in paths] == [
        "b_c_512x512x512_f32_nn.png",
        "b_c_tiles.png",
        "card_512x512x512_f32_nn.png",
        "card_512x512x512_f64_tn_alpha=2_beta=0.5.png",
        "card_tiles.png",
    ]
    assert all(drawn(path) for path in paths)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file"):
        list(tile_charts.write(analyze([row(8, 1.0)]), tmp_path / "file"))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ServiceUnavailable, match=r"pip install .*\[web\]"):
        need_matplotlib()
