"""GEMM tables for NVIDIA AIConfigurator: what is in them, and that the package loads them where it is installed."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from farm.api.models import PredictQuery
from farm.api.results import Identity, Results, conditions
from farm.both_times import time_in
from farm.cli import exporting
from farm.cli.app import app
from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadInput, NothingToExport, NotPredictable, OtherConsumerVersion
from farm.exporters import aiconfigurator as exporter
from farm.exporters.exporter import Export
from farm.kernels import Configuration
from farm.schema.results import EXPORTED

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "aiconfigurator" / "core-0.12.0.json").read_text())
TRAITS = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=141 * 2**30, compute_capability=(9, 0))
H200 = Identity(uuid="GPU-1", type="nvidia-h200", name="NVIDIA H200", backend="cuda", traits=TRAITS.to_json())
LINEAR = "cublaslt() 512x4096x1024 bf16 nt"


def row(configuration: str = LINEAR, **more: Any) -> dict[str, Any]:
    known = {
        "campaign": "layers", "host": "box", "source": "measured", "protocol": "farm", "device_type": "nvidia-h200",
        "runtime_ms": 0.030, "runtime_burst_ms": 0.025, "runtime_settled_ms": 0.030, "power_w": 600.0, "power_limit_w": 700.0,
        "measured_at": datetime(2026, 11, 26, tzinfo=UTC),
    }  # fmt: skip
    return {**dict.fromkeys(EXPORTED), **Configuration.parse(configuration).columns(), **known, **more}


class FakeFarm:
    """A farm with these rows, and a champion that knows one type of inputs and answers the same for everything."""

    rows_at_once = 1000

    def __init__(self, rows: Sequence[dict[str, Any]], knows: str = " bf16") -> None:
        self.rows, self.knows = rows, knows

    def ask(self, operation: Callable[..., Any], *args: Any, **query: Any) -> Any:
        if operation is not exporter.models.predict:
            conditions(where=query["where"], source=query["source"], since=None, until=None)
            assert query["where"] == ["layout == 'nt'"]
            assert query["source"] == ["measured", "recorded"]
            return Results.model_construct(rows=list(self.rows), identity=H200, commands=None, next=None)
        (asked,) = args
        assert isinstance(asked, PredictQuery)
        if any(self.knows not in line for line in asked.configurations):
            raise NotPredictable(why="it knows other types")
        answer = SimpleNamespace(power_w=500.0, at=lambda time: SimpleNamespace(ms=2.0 if time == "settled" else 1.0))
        return SimpleNamespace(model="gemm-forest", version="3", predictions=[answer] * len(asked.configurations))


def exported(*rows: dict[str, Any], fill: bool = False, knows: str = " bf16", **more: Any) -> Export:
    query = {"type": "nvidia-h200", "family": more.pop("family", None)}
    given = {"time": "burst", "backend": exporter.Backend.VLLM, **more}
    return exporter.export(FakeFarm(rows, knows), query, fill=fill, **given)


def table_of(export: Export) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(export.files[1].content)).to_pylist()
    return found


def test_a_table_has_the_columns_and_types_that_the_package_reads() -> None:
    export = exported(row())
    schema = pq.read_schema(io.BytesIO(export.files[1].content))
    read = RECORDED["columns"] | RECORDED["more_columns"]
    assert {name: str(schema.field(name).type) for name in read} == read
    (line,) = table_of(export)
    known = {
        "framework": "VLLM", "version": "0.24.0", "device": "NVIDIA H200", "op_name": "gemm", "gemm_dtype": "bfloat16",
        "kernel_source": "gemm_farm:measured:cublaslt(algorithm=0)", "m": 512, "n": 4096, "k": 1024, "latency": 0.025,
        "power": 600.0, "power_limit": 700.0, "time": "burst", "source": "measured", "power_source": "measured", "rows": 1,
    }  # fmt: skip
    assert line == known
    assert [file.name for file in export.files] == [
        "nvidia_h200_farm.yaml",
        "data/nvidia_h200_farm/gemm/vllm/0.24.0/gemm_perf.parquet",
        "data/nvidia_h200_farm/gemm/vllm/0.24.0/collection_meta.yaml",
    ]


def test_the_system_has_the_required_figures_and_no_network_is_made_up(tmp_path: Path) -> None:
    system = yaml.safe_load(exported(row()).files[0].content)
    assert all(name in system[section] for section, names in RECORDED["system"].items() for name in names)
    assert (system["gpu"]["bfloat16_tc_flops"], system["gpu"]["power"]) == (989.4e12, 700.0)
    assert system["node"]["inter_node_bw"] != system["node"]["inter_node_bw"]  # NaN
    own = tmp_path / "h200_sxm.yaml"
    own.write_text("data_dir: data/h200_sxm\ngpu: {mem_bw: 1}\nnode: {intra_node_bw: 2}\n")
    system = yaml.safe_load(exported(row(), system_file=own).files[0].content)
    assert system == {"data_dir": "data/nvidia_h200_farm", "gpu": {"mem_bw": 1}, "node": {"intra_node_bw": 2}}
    own.write_text("- 1\n")
    with pytest.raises(BadInput, match="needs data_dir"):
        exported(row(), system_file=own)


def test_metadata_say_which_time_it_is_and_where_rows_come_from() -> None:
    meta = yaml.safe_load(exported(row(), time="settled").files[2].content)
    assert meta["tables"] == {"gemm_perf": {"status": "partial"}}
    assert {name: meta["gemm_farm"][name] for name in ("time", "shapes", "campaign", "measured")} == {
        "time": "settled", "shapes": {"measured": 1}, "campaign": ["layers"], "measured": ["2026-11-26", "2026-11-26"],
    }  # fmt: skip


def test_names_of_types_and_frameworks_are_those_of_the_package() -> None:
    assert set(exporter.LAYER_TYPES) == set(RECORDED["gemm_dtypes"])
    frameworks = {one.value: [of.name, of.current] for one, of in exporter._FRAMEWORKS.items()}
    assert frameworks == RECORDED["frameworks"]
    grid = RECORDED["grid"]
    assert (list(exporter.GRID_M), list(exporter.GRID_NK)) == (grid["m"], grid["n"])
    assert len(exporter.GRID_M) * (len(exporter.GRID_NK) ** 2 - 1) == grid["shapes"]


def test_figures_are_medians_of_the_rows_of_the_library_s_own_choice() -> None:
    rows = [row(runtime_burst_ms=ms, power_w=watts) for ms, watts in ((0.02, 500.0), (0.03, None), (0.07, 700.0))]
    other = row("cublaslt(algorithm=3) 512x4096x1024 bf16 nt", runtime_burst_ms=0.001)
    export = exported(*rows, other)
    (line,) = table_of(export)
    assert (line["latency"], line["power"], line["rows"]) == (0.03, 600.0, 3)
    assert "1 rows are of other kernels than cublaslt's own choice" in export.remarks[0]


def test_medians_over_several_conditions_are_remarked_on() -> None:
    rows = [row(clock_policy="default"), row(clock_policy="locked:1500")]
    (remark,) = (one for one in exported(*rows).remarks if "clock_policy" in one)
    assert remark.startswith("Rows differ in clock_policy (default, locked:1500), and medians are over all of them.")
    assert exported(rows[0], row(LINEAR + " beta=1", clock_policy="locked:1500")).remarks == [
        f"1 rows are no linear layers in {', '.join(exporter.LAYER_TYPES)}, and are left out."
    ]


def test_of_a_chosen_family_the_fastest_kernel_counts() -> None:
    rows = [row(f"triton(tile_m={m}) 512x4096x1024 bf16 nt", runtime_settled_ms=m / 1000) for m in (128, 64)]
    (line,) = table_of(exported(*rows, family="triton", time="settled"))
    assert (line["latency"], "tile_m=64" in line["kernel_source"]) == (0.064, True)


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        ("cublaslt() 512x4096x1024 f8e4m3 nt scale=tensor", "fp8"),
        ("cublaslt() 512x4096x1024 f8e4m3 nt scale=1x128:128x128", "fp8_block"),
        ("cublaslt() 512x4096x1024 f16 nt", None),
        ("cublaslt() 512x4096x1024 f8e4m3 nt", None),
        ("cublaslt() 512x4096x1024 bf16 nt fused=bias", None),
        ("cublaslt() 512x4096x1024 bf16 nt beta=1", None),
    ],
)
def test_layers_of_eight_bits_have_the_names_of_their_scale_factors(configuration: str, name: str | None) -> None:
    assert exporter.layer_type_of(Configuration.parse(configuration)) == name


def test_the_time_is_the_one_of_the_protocol_where_no_other_is_stored() -> None:
    settled = row(runtime_ms=0.03, runtime_settled_ms=None)
    assert (time_in(settled, "settled"), time_in(settled, "burst")) == (0.03, 0.025)
    assert time_in(row(protocol="do-bench", runtime_settled_ms=None), "settled") is None


def test_shapes_without_power_would_count_as_0_w_and_are_left_out() -> None:
    export = exported(row(), row("cublaslt() 8x4096x1024 bf16 nt", power_w=None))
    assert [line["m"] for line in table_of(export)] == [512]
    assert "1 shapes without power are left out" in export.remarks[-1]
    none = exported(row(power_w=None))
    assert "power" not in table_of(none)[0]
    assert "energy of every answer of aiconfigurator-core is 0" in none.remarks[-1]


def test_a_model_fills_the_grid_and_power_and_every_entry_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "GRID_M", (8, 16))
    monkeypatch.setattr(exporter, "GRID_NK", (1024, 4096))
    rows = [row("cublaslt() 8x4096x1024 bf16 nt", power_w=None), row("cublaslt() 16x4096x1024 f8e4m3 nt scale=tensor")]
    export = exported(*rows, fill=True)
    lines = {(line["gemm_dtype"], line["m"], line["n"], line["k"]): line for line in table_of(export)}
    products = list(itertools.product((8, 16), ((1024, 1024), (1024, 4096), (4096, 1024))))
    assert set(lines) == {("bfloat16", m, *weight) for m, weight in products} | {("fp8", 16, 4096, 1024)}
    old = lines["bfloat16", 8, 4096, 1024]
    assert (old["latency"], old["power"], old["source"], old["power_source"]) == (0.025, 500.0, "measured", "predicted")
    new = lines["bfloat16", 16, 4096, 1024]
    assert (new["latency"], new["kernel_source"]) == (1.0, "gemm_farm:predicted:cublaslt(algorithm=0)")
    assert yaml.safe_load(export.files[2].content)["gemm_farm"]["model"] == "gemm-forest/3"
    assert [line["source"] for line in table_of(export)] == ["measured"] * 2 + ["predicted"] * 5
    assert any("fp8 is not filled" in remark for remark in export.remarks)
    with pytest.raises(NotPredictable):
        exported(row(), fill=True, knows=" f16")


def test_a_prediction_is_not_below_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package raises such times itself, and keeps their energy."""
    monkeypatch.setattr(exporter, "GRID_M", (32768,))
    monkeypatch.setattr(exporter, "GRID_NK", (16384, 51200))
    predicted = [line for line in table_of(exported(row(), fill=True)) if line["source"] == "predicted"]
    bound_ms = [2e-9 * line["m"] * line["n"] * line["k"] / 989.4 for line in predicted]
    assert [line["latency"] for line in predicted] == pytest.approx(bound_ms)


def test_nothing_is_written_for_another_version_or_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OtherConsumerVersion, match=r"aiconfigurator-core 0\.12\.0, not for 0\.13\.0"):
        exported(row(), consumer_version="0.13.0")
    with pytest.raises(NothingToExport, match="no burst time"):
        exported(row(runtime_burst_ms=None))

    class Opened(FakeFarm):
        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(exporting, "farm_of", lambda _: Opened([row()]))
    folder = tmp_path / "systems"
    command = ["export", "aiconfigurator", "--type", "nvidia-h200", "-o", str(folder)]
    assert isinstance(CliRunner().invoke(app, [*command, "--consumer-version", "1"]).exception, OtherConsumerVersion)
    assert not folder.exists()
    assert CliRunner().invoke(app, command).exit_code == 0
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert written == sorted(file.name for file in exported(row()).files)
    assert "add --force" in str(CliRunner().invoke(app, command).exception)


def test_the_package_answers_with_the_rows_and_their_energy(tmp_path: Path) -> None:
    """Runs where `aiconfigurator-core` is installed; `benchmarks.exports` runs it on datasets."""
    pytest.importorskip("aiconfigurator_core")
    from benchmarks.exports import loaded_by_aiconfigurator

    rows = [row(f"cublaslt() {m}x{n}x1024 bf16 nt") for m in (8, 512) for n in (1024, 4096)]
    result = loaded_by_aiconfigurator(exported(*rows), tmp_path)
    assert result["rows"] == 4
    assert result["max_difference_pct"] < 0.1
    assert result["min_energy_mj"] > 0
