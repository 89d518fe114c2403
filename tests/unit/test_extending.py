"""The examples in docs/extending.md work: each is executed, and then used as a user would."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from starlette.datastructures import QueryParams
from typer.testing import CliRunner

from farm.api import (
    OPERATIONS,  # all of them: a test puts it back as it is here
    Direct,
)
from farm.api.results import Results
from farm.broker.queues import queue_of_type
from farm.campaign import KnownDevice, load, plan
from farm.campaign.strategies import STRATEGIES
from farm.charts import matplotlib_renderer, plotly_renderer
from farm.cli import imports
from farm.cli.results import format_of
from farm.cli.tables import TABLES
from farm.compare.health import HealthQuery
from farm.compare.health.assessment import Member
from farm.compare.health.diagnosis import diagnose
from farm.compare.health.fleet_rows import Fleet, FleetRows
from farm.compare.health.rules import RULES
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import CampaignFileError
from farm.exporters import EXPORTERS
from farm.kernels import Configuration
from farm.report.sections import SECTIONS
from farm.traces.formats import LOGS, read_trace
from farm.vendors import NVIDIA, VENDORS, kind_named_by, vendor_of_type
from farm.vendors.cpu import Cpu
from farm.web.pages.forms import Form
from support.quick import QUICK
from support.result_rows import results_of, tiled
from support.screens import printed
from workers.devices.cpu import CpuDevice, identify

EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)

CPU = KnownDevice(
    "CPU-1", "cpu-x", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=8), Backend.CPU
)


def run_example(section: str) -> dict[str, Any]:
    """Executes the Python blocks of a section; returns the names that they define."""
    body = re.split(r"^## ", EXTENDING.read_text(), flags=re.M)
    (text,) = (part for part in body if part.startswith(f"{section}\n"))
    names: dict[str, Any] = {"__name__": "example"}
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    exec(compile(code, str(EXTENDING), "exec", dont_inherit=True), names)
    return names


@contextmanager
def unchanged_after(registry: Any) -> Iterator[None]:
    """Forgets what an example registers, in a list or dictionary."""
    before = registry.copy()
    try:
        yield
    finally:
        registry.clear()
        registry.update(before) if isinstance(registry, dict) else registry.extend(before)


def test_the_files_to_touch_exist() -> None:
    named = set(re.findall(r"^\| `([^`]+)` \|", EXTENDING.read_text(), re.M))
    files = {name for name in named if "/" in name}
    assert files
    assert [name for name in sorted(files) if not (EXTENDING.parents[1] / name).exists()] == []


def test_a_search_strategy_of_one_s_own_is_read_and_used(tmp_path: Path) -> None:
    with unchanged_after(STRATEGIES):
        run_example("Add a search strategy")
        file = tmp_path / "thinned.yaml"
        text = (
            "name: thinned\nproblems: {shapes: 64x64x64, types: f32}\nkernels: {family: blas, threads: 1..8}\nsearch: "
        )
        file.write_text(f"{text}{{strategy: thinned, step: 4}}\n")
        campaign = load(file, limit=100)
        jobs = plan(campaign, [CPU], allow_missing=False).jobs()
        assert [str(job.configuration.kernel) for job in jobs] == ["blas(threads=1)", "blas(threads=5)"]
        assert campaign.document["search"] == {"strategy": "thinned", "step": 4}
        file.write_text(f"{text}{{strategy: thinned, keep: 0.5}}\n")
        with pytest.raises(
            CampaignFileError, match=r"4: search.keep: thinned does not read it; remove it, or use halving"
        ):
            load(file, limit=100)
        file.write_text(f"{text}{{strategy: best}}\n")
        with pytest.raises(CampaignFileError, match=r"write grid or .* or thinned \(all kernels, .* or every n-th\)"):
            load(file, limit=100)


def rows_of(counts: list[int]) -> FleetRows:
    """So many rows of each device, all of different cells."""
    device = np.repeat(np.arange(len(counts)), counts)
    cells = np.arange(len(device))
    same = np.zeros(len(device), np.int64)
    floats = dict.fromkeys(
        ("runtime_ms", "power_w", "runtime_settled_ms", "temperature_c", "power_limit_w"), np.ones(len(device))
    )
    return FleetRows(
        device=device,
        cell=cells,
        clocks=same,
        environment=same,
        when=cells + NOW.timestamp(),
        reasons=same,
        power_limited=same,
        **floats,
    )


def test_a_health_rule_of_one_s_own_is_used() -> None:
    held = rows_of([20, 1])
    fleet = Fleet(
        rows=held,
        sentinels=rows_of([0, 0]),
        shapes=np.arange(len(held)),
        configurations=np.arange(len(held)),
        environments=[{}],
        clocks=["default"],
    )
    members = [Member(id=n, uuid=f"GPU-{n}", type="nvidia-h200", host="gpu01") for n in range(2)]

    def verdicts() -> list[str]:
        found = diagnose(members, fleet, HealthQuery(), since=NOW - timedelta(days=1), until=NOW + timedelta(days=1))
        return [device.verdict.value for device in found.devices]

    with unchanged_after(RULES):
        assert verdicts() == ["unknown", "unknown"]
        run_example("Add a health rule")
        assert verdicts() == ["unknown", "differs"]


def test_a_device_vendor_of_one_s_own_is_known_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with unchanged_after(VENDORS):
        assert kind_named_by("amd-instinct-mi300x") is None
        run_example("Add a device vendor")
        assert kind_named_by("amd-instinct-mi300x") is DeviceKind.CUDA
        assert kind_named_by("recorded-amd-instinct-mi300x") is DeviceKind.CUDA
        vendor = vendor_of_type("amd-instinct-mi300x")
        monkeypatch.setattr(type(vendor), "queue_prefix", "amd.")
        assert queue_of_type("amd-instinct-mi300x") == "amd.amd-instinct-mi300x"
        assert queue_of_type("nvidia-h200") == "gpu.nvidia-h200"
        assert vendor.is_named_by("amd-7f0c")
        assert "rocm-smi" in vendor.advice_on_power_limit("AMD-7f0c", "box", 750)
        assert vendor_of_type("nvidia-h200") is NVIDIA


def test_a_power_source_of_one_s_own_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("example_power")
    vars(module).update(run_example("Add a power source"))
    monkeypatch.setitem(sys.modules, "example_power", module)
    monkeypatch.setattr(Cpu, "power_source", "example_power:ConstantPower")
    device = CpuDevice(identify())
    device.open()
    row = device.measure(device.canary(), QUICK.model_copy(update={"power": "all"}))
    device.close()
    assert (row.power_w, row.power_source, row.power_rse) == (150.0, "data-sheet", None)


def test_an_importer_of_one_s_own_reads_rows(tmp_path: Path) -> None:
    file = tmp_path / "squares.csv"
    file.write_text("card,n,ms\nNVIDIA H200,512,0.01\nNVIDIA H200,8,0.002\nNVIDIA H200,1024,0.03\n")
    importer = run_example("Add an importer")["IMPORTER"]
    table = importer.look(file)
    reader = table.reader()
    found = list(reader.rows(lambda _rows: None))
    assert [(str(row.configuration.problem.shape), row.measurement.runtime_ms) for row in found] == [
        ("512x512x512", 0.01),
        ("1024x1024x1024", 0.03),
    ]
    assert [(device.identity.type, device.rows) for device in reader.devices()] == [("nvidia-h200", 2)]
    assert [(one.rows, one.what) for one in reader.left_out()] == [(1, "small products")]


def test_an_importer_of_one_s_own_has_a_command() -> None:
    with unchanged_after(imports.app.registered_commands):
        imports.add_command(run_example("Add an importer")["IMPORTER"])
        shown = CliRunner().invoke(imports.app, ["squares", "--help"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    assert "Import tables of square products." in shown.output
    assert "CSV of square products." in shown.output


def test_a_format_of_traces_of_one_s_own_is_told_by_its_lines(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("hello\ngemm 8 64 32\ngemm 8 64 32\n")
    with unchanged_after(LOGS):
        run_example("Add a format of traces")
        trace = read_trace(tmp_path / "trace")
    assert [(trace.format, str(one.problem.shape), one.count) for one in trace.gemms] == [("plain", "8x64x32", 2)]


def test_an_exporter_of_one_s_own_is_chosen_by_its_name_and_writes_rows() -> None:
    row = {**Configuration.parse("tiled(tile=16) 64x64x64 f32").columns(), "runtime_ms": 0.25}
    with unchanged_after(EXPORTERS):
        run_example("Add an exporter")
        assert format_of(None, Path("rows.md"), as_json=False) == "md"
        content = EXPORTERS["md"].content(Results.model_construct(rows=[row], identity=None, commands=None))
    assert content.decode().splitlines()[2:] == ["| tiled(tile=16) 64x64x64 f32 nn | 0.25 |"]


def test_a_chart_of_one_s_own_is_in_the_report() -> None:
    with unchanged_after(SECTIONS):
        run_example("Add a chart")
        data = SimpleNamespace(results=results_of(tiled(8, 1.0, 150.0), tiled(16, 2.0, 500.0)))
        section = SECTIONS[-1](data)
    assert section is not None
    (chart,) = section.charts
    assert chart.message == "The highest power is 250 W."
    assert [trace["y"] for trace in plotly_renderer.figure(chart)["data"]] == [[150], [250], [150]]
    assert matplotlib_renderer.png(chart).startswith(b"\x89PNG")


def test_an_operation_of_one_s_own_is_a_command_with_a_table_and_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.cli.options.farm_of", lambda _settings: nullcontext(Direct(Mock())))
    with unchanged_after(OPERATIONS), unchanged_after(TABLES):
        names = run_example("Add an operation")
        shown = CliRunner().invoke(names["app"], ["--help"], env={"COLUMNS": "100"})
        assert "Maximum number of parameters." in shown.output
        lines = printed(lambda: names["app"](["-n", "1"], standalone_mode=False), None)
        assert [line.split() for line in lines if line.startswith(("family", "blas"))] == [
            ["family", "parameters"],
            ["blas", "threads"],
        ]
        found = json.loads(CliRunner().invoke(names["app"], ["-n", "1", "--json"]).output)
        assert {"name": "tiled", "parameters": ["tile"]} in found
        form = Form(names["families"], QueryParams("max_parameters=1"))
        assert form["max_parameters"].attributes == {"type": "number", "min": 0, "max": 20, "step": None}
        assert form.arguments(names["families"]) == {"max_parameters": 1}
