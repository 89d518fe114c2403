"""Tables of GPPerf and AIConfigurator: what their rows are in the farm's words, and what of them is left out."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import farm
from benchmarks.cutlass_profiler import KERNELS, configuration
from farm.db.imports import ImportedRow
from farm.devices import Backend
from farm.errors import BadRecording, MissingColumns, RowNotImported
from farm.gpus import traits_of_type
from farm.importers import aiconfigurator, files, gpperf
from farm.importers.landing import LeftOut, Reader, Table
from farm.importers.profiler import kernel_named
from farm.measurement import Source
from support.foreign_tables import AICONFIGURATOR, LAYER, RAN, SGEMM, TILED, layers, sheet
from support.training_tables import GPPERF

ROOT = Path(farm.__file__).parent.parent

AS_THE_FARM_HAS_IT = (
    "cutlass(align=0,split_k=1,stages=2,swizzle=8,tile_k=8,tile_m=128,tile_n=128,warp_m=32,warp_n=64) "
    "1024x512x2048 f32:f32:f32 nt alpha=0.5 beta=1"
)
"""The profiler's C lies by columns: m and n change places, and so do the letters of the layout."""


def read(table: Table) -> tuple[list[ImportedRow], Reader[Any]]:
    reader = table.reader()
    return list(reader.rows(lambda _: None)), reader


# --- the names of CUTLASS's profiler -----------------------------------------------------------------


def test_a_name_of_the_profiler_is_the_kernel_that_the_benchmark_measures() -> None:
    names = [name for name in KERNELS if "sgemm" in name]
    assert len(names) == 3
    for name in names:
        found = kernel_named(name)
        assert found is not None
        assert found.configuration(512, 512, 512, 1.0, 0.0) == configuration(name, 512)


def test_every_sgemm_that_cutlass_generates_has_its_warps() -> None:
    generator = pytest.importorskip("cutlass_library.generator", reason="CUTLASS is not installed: the extra build")
    library = pytest.importorskip("cutlass_library.library")

    class Manifest:
        def __init__(self) -> None:
            self.made: list[Any] = []
            self.kernel_filter = "*"

        def append(self, operation: Any) -> None:
            self.made.append(operation)

    manifest = Manifest()
    generator.GenerateSM50_Simt(manifest, "12.8")
    generator.GenerateSM80_Simt_f32(manifest, "12.8")
    of = {o.procedural_name(): o for o in manifest.made if o.operation_kind == library.OperationKind.Gemm}
    sgemm = {name: operation for name, operation in of.items() if "_sgemm_" in name}
    assert len(sgemm) == 4 * (6 + 11)
    for name, operation in sgemm.items():
        found = kernel_named(name)
        assert found is not None, name
        tile, given = operation.tile_description, dict(found.kernel.parameters)
        assert tile.threadblock_shape == [given[f"tile_{axis}"] for axis in "mnk"]
        assert tile.warp_count[:2] == [given[f"tile_{axis}"] // given[f"warp_{axis}"] for axis in "mn"]
        assert tile.stages == given["stages"]
        assert operation.swizzling_functor.name == f"Identity{given['swizzle']}"


def test_letters_and_extents_change_places() -> None:
    layouts = {letters: kernel_named(RAN.replace("_tn_", f"_{letters}_")) for letters in ("nn", "nt", "tn", "tt")}
    assert {letters: found and found.layout for letters, found in layouts.items()} == {
        **{"nn": "nn", "nt": "tn", "tn": "nt", "tt": "tt"},
    }
    found = kernel_named("cutlass_simt_sgemm_128x32_8x2_nn_align1")
    assert found is not None
    assert str(found.configuration(100, 200, 300, 1, 0)) == (
        "cutlass(align=0,split_k=1,stages=2,swizzle=8,tile_k=8,tile_m=128,tile_n=32,warp_m=64,warp_n=32) "
        "200x100x300 f32:f32:f32 nn alpha=1 beta=0"
    )


@pytest.mark.parametrize(
    "name",
    [
        "cutlass_simt_hgemm_128x128_8x2_nn_align1",
        "cutlass_simt_dgemm_128x128_8x2_nn_align1",
        "cutlass_tensorop_s1688gemm_128x128_16x4_nn_align4",
        "cutlass_simt_sgemm_96x128_8x2_nn_align1",
        "cutlass_simt_sgemm_128x128_8x2_nn_align1_more",
        "",
    ],
)
def test_other_kernels_have_no_name_here(name: str) -> None:
    assert kernel_named(name) is None


# --- GPPerf ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgemm.csv", "sgemm.csv.gz"])
def test_a_row_is_of_the_kernel_that_ran_and_not_of_what_was_asked_for(tmp_path: Path, name: str) -> None:
    asked = [{}, {"layout": "tt"}, {"block_m": "256", "block_k": "8"}, {"stages": "5"}, {"timestamp": ""}]
    table = gpperf.look(sheet(tmp_path / name, [SGEMM | changes for changes in asked]))
    rows, reader = read(table)
    assert table.rows == 5
    assert [str(row.configuration) for row in rows] == [AS_THE_FARM_HAS_IT] * 5
    assert [row.number for row in rows] == [1, 2, 3, 4, 5]
    assert [row.measured_at for row in rows] == [datetime(2024, 11, 12, 0, 54, 4, tzinfo=UTC)] * 4 + [None]
    measured = rows[0].measurement
    assert (measured.source, measured.runtime_ms, measured.power_limit_w) == (Source.IMPORTED, 0.04352, 200.0)
    assert (measured.l2, measured.distribution) == ("unknown", "unknown")
    assert measured.details == {"kernel": RAN}
    (device,) = reader.devices()
    assert device.identity.uuid == f"IMP-{table.content[:16]}-nvidia-geforce-rtx-4070"
    assert (device.identity.name, device.identity.backend, device.rows) == (SGEMM["gpu"], Backend.CUDA, 5)


def test_what_was_read_after_the_kernel_is_left_out_and_counted(tmp_path: Path) -> None:
    rows, reader = read(gpperf.look(sheet(tmp_path / "s.csv", [SGEMM, SGEMM, SGEMM | {"power_w": ""}])))
    for row in rows:
        measured = row.measurement
        assert (measured.power_w, measured.sm_clock_mhz, measured.temperature_c) == (None, None, None)
    assert reader.left_out() == [
        LeftOut(rows=2, what="power_w", whole=False, why="it was read after the kernel had ended")
    ]


def test_a_kernel_without_a_family_is_left_out_and_counted(tmp_path: Path) -> None:
    half = "cutlass_simt_hgemm_128x128_8x2_nn_align1"
    bare = SGEMM | {"power_w": ""}
    rows, reader = read(
        gpperf.look(sheet(tmp_path / "s.csv", [bare | {"kernel": half}, bare, bare | {"kernel": half}]))
    )
    assert [row.number for row in rows] == [2]
    why = "no kernel family of the farm has a kernel of that name"
    assert reader.left_out() == [LeftOut(rows=2, what=half, whole=True, why=why)]
    assert [device.rows for device in reader.devices()] == [1]


def test_the_tiled_kernel_is_the_farms_and_its_card_is_that_of_the_paper_or_another(tmp_path: Path) -> None:
    path = sheet(tmp_path / "tiled.csv", [TILED])
    (row,), reader = read(gpperf.look(path))
    assert str(row.configuration) == "tiled(tile=8) 512x1024x2048 f32:f32:f32 nn alpha=1 beta=0"
    assert (row.measurement.runtime_ms, row.measured_at) == (6.5, None)
    assert [device.identity.type for device in reader.devices()] == ["nvidia-geforce-rtx-4070"]
    _, other = read(gpperf.look(path, device="NVIDIA L4"))
    assert [device.identity.type for device in other.devices()] == ["nvidia-l4"]


@pytest.mark.parametrize(
    ("table", "changes", "why"),
    [
        (SGEMM, {"m": "big"}, "m is 'big', which is not a whole number"),
        (SGEMM, {"m": "0"}, "not a shape"),
        (SGEMM, {"alpha": "nan"}, "alpha is 'nan', which is not a number"),
        (SGEMM, {"beta": ""}, "beta is missing"),
        (SGEMM, {"runtime_ms": ""}, "runtime_ms is missing"),
        (SGEMM, {"runtime_ms": "-1"}, "runtime_ms is -1, and must be above 0 and finite"),
        (SGEMM, {"runtime_ms": "inf"}, "runtime_ms is 'inf', which is not a number"),
        (SGEMM, {"gpu": "\t\n"}, "gpu is missing"),
        (SGEMM, {"gpu": "A\0B"}, "cannot be the name of a card"),
        (SGEMM, {"gpu": "G" * 201}, "cannot be the name of a card"),
        (SGEMM, {"timestamp": "yesterday"}, "timestamp is 'yesterday'"),
        (SGEMM, {"timestamp": "9" * 30}, "which is not seconds since 1970"),
        (TILED, {"Tile Size": "33"}, "tile goes from 1 to 32"),
        (TILED, {"Execution Time": "0"}, "Execution Time is 0, and must be above 0"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, str], changes: dict[str, str], why: str
) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 2)
    path = sheet(tmp_path / "bad.csv", [table, table, table, table | changes, table])
    with pytest.raises(RowNotImported) as refused:
        read(gpperf.look(path))
    assert f"{path}: row 4 cannot be imported: " in str(refused.value)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [("512,512,512", "Tile Size is missing"), ("512,512,512,8,6.5,7", "more cells than the header has columns")],
)
def test_a_row_of_another_length_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "ragged.csv"
    path.write_text(f"M,N,K,Tile Size,Execution Time\n512,512,512,8,6.5\n\n{line}\n")
    with pytest.raises(RowNotImported, match=f"row 2 cannot be imported: .*{why}"):
        read(gpperf.look(path))


def test_a_file_that_is_no_table_of_gpperf_is_refused_with_what_would_be_right(tmp_path: Path) -> None:
    power = {name: value for name, value in TILED.items() if name != "Execution Time"}
    whole = sheet(tmp_path / "whole.csv.gz", [SGEMM] * 50).read_bytes()
    (tmp_path / "half.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\xb5\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bare.csv").write_text(",".join(TILED) + "\n")
    cases: list[tuple[Path, str]] = [
        (tmp_path / "none.csv", "there is no such file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "half.csv.gz", "it is not CSV"),
        (tmp_path / "bytes.csv", "it is not CSV"),
        (tmp_path / "empty.csv", "it has no rows"),
        (tmp_path / "bare.csv", "it has no rows"),
        (
            sheet(tmp_path / "other.csv", [{"a": "1", "b": "2"}]),
            "m, n, k, kernel, alpha, beta, runtime_ms, gpu or M, N",
        ),
        (sheet(tmp_path / "power.csv", [{**power, "Average Power Usage (W)": "33"}]), "it has powers and no times"),
    ]
    for path, why in cases:
        with pytest.raises(BadRecording) as refused:
            gpperf.look(path)
        assert why in str(refused.value)
        assert str(path) in str(refused.value)
    less = {name: value for name, value in SGEMM.items() if name not in ("gpu", "runtime_ms")}
    with pytest.raises(MissingColumns, match="lacks the columns runtime_ms, gpu"):
        gpperf.look(sheet(tmp_path / "less.csv", [less]))
    with pytest.raises(MissingColumns, match="lacks the columns Execution Time"):
        gpperf.look(sheet(tmp_path / "timeless.csv", [power]))


# --- AIConfigurator ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["torch.nn.functional.linear", "vllm_default"])
def test_a_linear_layer_in_bf16_is_the_choice_of_the_library(tmp_path: Path, source: str) -> None:
    table = aiconfigurator.look(layers(tmp_path / "l40s.parquet", [LAYER | {"kernel_source": source}]))
    (row,), reader = read(table)
    assert str(row.configuration) == "cublaslt(algorithm=0) 16x4096x1024 bf16:bf16:f32 nt alpha=1 beta=0"
    assert (row.measurement.runtime_ms, row.measurement.source, row.measured_at) == (0.25, Source.IMPORTED, None)
    assert row.measurement.environment == {"framework": "VLLM", "version": "0.24.0", "kernel_source": source}
    (device,) = reader.devices()
    assert device.identity.uuid == f"IMP-{table.content[:16]}-nvidia-l40s"
    assert (device.identity.traits.compute_capability, device.host) == ((8, 9), "imported:unknown")
    assert row.configuration.why_invalid(device.identity.traits) is None
    assert reader.left_out() == []


@pytest.mark.parametrize("source", ["CutlassFP8ScaledMMLinearKernel", "vllm_default"])
def test_a_linear_layer_in_fp8_is_a_product_with_a_factor_for_each_matrix_that_nothing_here_runs(
    tmp_path: Path, source: str
) -> None:
    path = layers(tmp_path / "l40s.parquet", [LAYER | {"gemm_dtype": "fp8", "kernel_source": source}])
    (row,), reader = read(aiconfigurator.look(path))
    assert str(row.configuration) == "layer() 16x4096x1024 f8e4m3:bf16:f32 nt alpha=1 beta=0 scale=tensor"
    assert (row.measurement.runtime_ms, row.measurement.environment["kernel_source"]) == (0.25, source)
    (device,) = reader.devices()
    assert row.configuration.why_invalid(device.identity.traits) == "nothing here runs layer: its rows are imported"


@pytest.mark.parametrize(
    ("changes", "what", "why"),
    [
        ({"gemm_dtype": "fp8"}, "gemm in fp8 by torch.nn.functional.linear", "others are not known"),
        ({"gemm_dtype": "fp8_block"}, "gemm in fp8_block", "without a CUDA graph"),
        ({"gemm_dtype": "nvfp4"}, "gemm in nvfp4", "4-bit floats"),
        ({"gemm_dtype": "int3"}, "gemm in int3", "no element type of that name"),
        ({"kernel_source": "magic"}, "gemm in bfloat16 by magic", "other kernels are not named"),
        ({"op_name": "moe"}, "moe in bfloat16", "it is no GEMM"),
    ],
    ids=str,
)
def test_other_layers_are_left_out_and_counted(tmp_path: Path, changes: dict[str, str], what: str, why: str) -> None:
    table = aiconfigurator.look(layers(tmp_path / "a.parquet", [LAYER | changes, LAYER, LAYER | changes]))
    rows, reader = read(table)
    assert [row.number for row in rows] == [2]
    (left_out,) = reader.left_out()
    assert (left_out.rows, left_out.whole) == (2, True)
    assert what in left_out.what
    assert why in left_out.why


def test_power_counts_where_the_gemm_took_long_enough(tmp_path: Path) -> None:
    given = [
        {"latency": 0.0999, "power": 300.0, "power_limit": 1200.0},
        {"latency": 0.1, "power": 400.0, "power_limit": 1200.0},
        {"latency": 9.0, "power": math.nan, "power_limit": None},
    ]
    rows, reader = read(aiconfigurator.look(layers(tmp_path / "gb200.parquet", [LAYER | row for row in given])))
    assert [(row.measurement.power_w, row.measurement.power_source) for row in rows] == [
        (None, None),
        (400.0, "aiconfigurator"),
        (None, None),
    ]
    assert [row.measurement.power_limit_w for row in rows] == [1200.0, 1200.0, None]
    (left_out,) = reader.left_out()
    assert (left_out.rows, left_out.what, left_out.whole) == (1, "power", False)


def test_a_table_of_several_cards_has_a_device_for_each(tmp_path: Path) -> None:
    cards = ["NVIDIA L40S", "NVIDIA B200", "NVIDIA L40S", "NVIDIA Z900"]
    _, reader = read(aiconfigurator.look(layers(tmp_path / "a.parquet", [LAYER | {"device": card} for card in cards])))
    found = reader.devices()
    assert [(d.key, d.rows) for d in found] == [("nvidia-l40s", 2), ("nvidia-b200", 1), ("nvidia-z900", 1)]
    assert [d.identity.name for d in found] == ["NVIDIA L40S", "NVIDIA B200", "NVIDIA Z900"]
    assert [d.identity.traits for d in found] == [traits_of_type(d.key) for d in found]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"m": 0}, "not a shape"),
        ({"latency": 0.0}, "latency is 0, and must be above 0 and finite"),
        ({"latency": math.inf}, "latency is inf, and must be above 0 and finite"),
        ({"latency": math.nan}, "latency is missing"),
        ({"power": -3.0}, "power is -3, and must be above 0 and finite"),
        ({"device": None}, "device is missing"),
        ({"device": " "}, "cannot be the name of a card"),
    ],
    ids=str,
)
def test_a_layer_that_cannot_be_read_is_named(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    other = LAYER | {"gemm_dtype": "nvfp4", "power": None}
    path = layers(tmp_path / "bad.parquet", [other, LAYER | {"power": 1.0}, LAYER | changes])
    with pytest.raises(RowNotImported) as refused:
        read(aiconfigurator.look(path))
    assert f"{path}: row 3 cannot be imported: " in str(refused.value)
    assert why in str(refused.value)


def test_a_parquet_without_the_columns_is_refused(tmp_path: Path) -> None:
    less = {name: value for name, value in LAYER.items() if name not in ("k", "latency")}
    with pytest.raises(MissingColumns, match="lacks the columns k, latency"):
        aiconfigurator.look(layers(tmp_path / "less.parquet", [less]))
    (tmp_path / "text.parquet").write_text("m,n,k\n")
    with pytest.raises(BadRecording, match="Parquet"):
        aiconfigurator.look(tmp_path / "text.parquet")


# --- whole files in the published formats ------------------------------------------------------------


def test_repeats_of_an_sgemm_point_are_rows_of_one_configuration() -> None:
    rows, reader = read(gpperf.look(GPPERF / "rtx4070_sgemm.csv.gz"))
    repeats = Counter(row.configuration for row in rows)
    assert (len(rows), len(repeats), set(repeats.values())) == (448, 16, {28})
    (device,) = reader.devices()
    assert {of.why_invalid(device.identity.traits) for of in repeats} == {None}
    assert [left_out.what for left_out in reader.left_out()] == ["power_w"]


def test_a_table_of_tiled_times_is_read_whole() -> None:
    rows, reader = read(gpperf.look(GPPERF / "rtx4070_tiled_runtime.csv"))
    assert (len(rows), len({row.configuration for row in rows}), reader.left_out()) == (141, 141, [])


@pytest.mark.parametrize(
    ("name", "fp8", "left_out"),
    [
        ("a100_sxm_vllm-0.14.0.parquet", 0, 0),
        ("l40s_vllm-0.24.0.parquet", 8, 8),
        ("h100_sxm_vllm-0.24.0.parquet", 8, 9),
        ("b200_sxm_vllm-0.24.0.parquet", 8, 17),
        ("gb200_vllm-0.22.0.parquet", 8, 15),
    ],
)
def test_of_a_table_of_layers_those_in_bf16_and_fp8_come_in(name: str, fp8: int, left_out: int) -> None:
    found, reader = read(aiconfigurator.look(AICONFIGURATOR / name))
    assert len(found) == len({row.configuration for row in found})
    products = [row for row in found if row.configuration.kernel.family == "cublaslt"]
    assert {str(row.configuration.problem.types.ab) for row in products} == {"bf16"}
    assert (len(products), len(found) - len(products)) == (140, fp8)
    assert sum(one.rows for one in reader.left_out() if one.whole) == left_out
    (device,) = reader.devices()
    assert {row.configuration.why_invalid(device.identity.traits) for row in products} == {None}
    with_power = [row for row in products if row.measurement.power_w is not None]
    assert len(with_power) == (50 if name.startswith("gb200") else 0)
