"""The benchmarks that need cards: what they count, what they ask other tools for, and what they make of the answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import against_tools as tools
from benchmarks import cutlass_examples as examples
from benchmarks import cutlass_profiler as profiler
from benchmarks import cutlass_vs_cublaslt as beside_library
from benchmarks import duty, recordings, referee
from benchmarks import paper_tiled as paper
from benchmarks import plan as plans
from benchmarks import problem_kinds as kinds
from farm.campaign import load
from farm.devices import traits_of_capability
from farm.gemm import ADDED_COLUMNS, Problem
from farm.kernels import Configuration, Kernel, parse_problem
from farm.language_models.layer_gemm import LayerGemm
from support.fake_cuda import FakeCupy
from support.samples import row
from workers.devices.cuda import CudaDevice
from workers.kernels.tiled import TiledKernel

ROOT = Path(__file__).parents[2]


# --- duty ----------------------------------------------------------------------------------------------


def batches(device: int, *spans: tuple[float, float], **columns: Any) -> list[Any]:
    """Batches of ten rows: 0.1 s of window and 0.05 s of other device time for each row."""
    usual = {"jobs": 10, "rows": 10, "cost_s": 1.5, "window_s": 1.0, **columns}
    return [duty.Done(device=device, claimed_s=begin, finished_s=end, **usual) for begin, end in spans]


def test_duty_is_the_time_in_windows_between_the_first_and_the_last_batch():
    found = duty.shares(batches(1, (0, 9), (10, 12), (12.5, 14.5), (15, 40)))
    assert found["device_seconds"] == 5.5  # from 9 to 14.5
    assert found["batches_counted"] == 2
    assert found["rows"] == 20
    assert found["duty_pct"] == pytest.approx(100 * 2 / 5.5, abs=0.01)
    assert found["prepare_verify_pct"] == pytest.approx(100 * 1 / 5.5, abs=0.01)
    assert found["claim_mark_land_pct"] == pytest.approx(100 * 1 / 5.5, abs=0.01)
    assert found["wait_pct"] == pytest.approx(100 * 1.5 / 5.5, abs=0.01)


def test_the_shares_are_the_whole_time_and_sentinels_are_within_them():
    found = duty.shares(batches(1, (0, 1), (1.2, 3.4), (3.5, 5.9), (6, 7), sentinel_s=0.2))
    assert found["of_which_sentinels_pct"] == pytest.approx(100 * 0.4 / 4.9, abs=0.01)
    parts = ("duty_pct", "prepare_verify_pct", "claim_mark_land_pct", "wait_pct")
    assert sum(found[part] for part in parts) == pytest.approx(100, abs=0.05)


def test_rates_of_devices_add_up_and_shares_are_of_all_their_time():
    spans = ((0, 1), (1, 3), (3, 5), (5, 6))
    one, both = (duty.shares([b for device in range(count) for b in batches(device, *spans)]) for count in (1, 2))
    assert both["duty_pct"] == one["duty_pct"] == 50
    assert both["configurations_per_second"] == 2 * one["configurations_per_second"] == 10
    assert both["seconds_per_configuration"] == one["seconds_per_configuration"] == 0.2


def test_a_device_with_a_first_and_a_last_batch_only_does_not_count():
    few = batches(2, (0, 1), (1, 2))
    many = batches(1, (0, 1), (1, 3), (3, 4))
    assert duty.shares(few) == {"devices_counted": 0, "batches_counted": 0}
    assert duty.shares(few + many)["duty_pct"] == duty.shares(many)["duty_pct"]
    assert "does not count" in duty.table([{"devices": 2, "ran_out": False, **duty.shares(few)}])


def exposition(claims: int, seconds: float) -> str:
    lines = [f'gemm_farm_worker_claim_seconds_{kind}{{device="{d}"}} {value}' for d in "ab" for kind, value in (
        ("sum", seconds), ("count", claims), ("created", 1e9))]  # fmt: skip
    return "# TYPE gemm_farm_worker_claim_seconds histogram\n" + "\n".join(sorted(lines)) + "\n"


def test_a_claim_s_mean_is_of_the_claims_between_two_scrapes_on_all_devices():
    before, after = (duty.timed(exposition(*counted)) for counted in ((10, 1.0), (30, 1.2)))
    assert duty.means_ms(before, after) == {"claim_ms": 10.0, "mark_ms": None, "land_ms": None}
    assert duty.means_ms({}, {}) == {"claim_ms": None, "mark_ms": None, "land_ms": None}


@pytest.mark.parametrize("name", ["tiled", "cublaslt"])
def test_with_and_without_power_and_on_each_number_of_devices_are_campaigns_of_their_own(name):
    campaign = load(duty.KNOWN[name], limit=10**5)
    made = [
        duty.variant(campaign, power, count, run) for power in ("none", "all") for count in (1, 2) for run in (1, 2)
    ]
    assert len({one.digest for one in made}) == 8
    assert [one.measure.power for one in made] == ["none"] * 4 + ["all"] * 4
    # Four cards that take 0.1 s for each are busy with it for longer than it is measured.
    assert sum(1 for _ in campaign.expand()) > 4 * 30 / 0.1


def test_runs_share_what_is_left_but_none_is_too_short_to_say_anything():
    assert duty.seconds_each(1000, [1, 1, 2, 2], 12) == 12
    assert duty.seconds_each(52, [1, 1, 2, 2], 12) == (52 - duty.START_SECONDS) / 4 - duty.AROUND_SECONDS
    assert duty.seconds_each(20, [1, 1, 2, 2], 12) == duty.FEWEST_SECONDS


def test_the_figure_of_a_campaign_is_that_of_the_most_devices():
    runs = [
        {"devices": count, "campaign": "tiled", "power": "all", "repetition": run, "duty_pct": pct}
        for count, run, pct in ((4, 1, 90.0), (1, 1, 95.0), (1, 2, 97.0))
    ]
    assert duty.figures(runs, "cuda")["duty_pct"] == {"tiled, power all": 90.0, "tiled, power all, again": 97.0}


# --- paper_tiled ---------------------------------------------------------------------------------------


def exported(uuid: str, driver: str) -> dict[str, Any]:
    return {
        "device_uuid": uuid,
        "clock_policy": "default",
        "environment": json.dumps({"driver": driver, "os": "Linux"}),
    }


def test_a_recording_says_which_cards_versions_clocks_and_command():
    rows = [exported("GPU-2", "580.1"), exported("GPU-1", "580.1"), exported("GPU-2", "580.2")]
    said = recordings.origin("NVIDIA H200", rows, "python benchmarks/paper_tiled.py")
    assert said == (
        "2 x NVIDIA H200 (GPU-1, GPU-2); driver 580.1 and 580.2; clocks: default; python benchmarks/paper_tiled.py"
    )


def tiled_row(tile: int, runtime_ms: float, power_w: float | None) -> Any:
    from farm.analysis.tiles import TiledRow

    problem = Configuration.parse("tiled(tile=1) 512x512x512 f32").problem
    return TiledRow(device_type="nvidia-h200", problem=problem, tile=tile, runtime_ms=runtime_ms, power_w=power_w)


def test_each_problem_tells_its_best_tiles_against_tile_1_beside_the_paper_s():
    from farm.analysis.tiles import analyze

    rows = [tiled_row(1, 8.0, 300.0), tiled_row(16, 1.0, 500.0), tiled_row(32, 1.1, 400.0)]
    (study,) = analyze(rows)
    found = paper.figures({"paper-tiled": study}, {"paper-tiled": {"done": 3, "pending": 1}}, 6.0, 2)
    assert (found["configurations"], found["device_seconds_per_configuration"]) == (3, 4.0)
    (problem,) = found["studies"]["paper-tiled"]["problems"]
    assert problem["fastest"]["tile"] == 16
    assert problem["fastest"]["speed_up"] == 8
    assert problem["fastest"]["energy_change_pct"] == pytest.approx(100 * (500 / 2400 - 1))
    assert problem["thriftiest"]["tile"] == 32
    assert problem["thriftiest"]["power_change_pct"] == pytest.approx(100 / 3)
    assert [b["tile"] for b in found["studies"]["paper-tiled"]["beside_paper"]] == [1, 16, 32]
    table = paper.table(found)
    assert "(1 more were not measured)" in table
    assert "| 512x512x512 f32 nn | 16 | 1 | 500 | 500 | 8 | 66.7 | -79.2 | 32 |" in table


def test_without_power_a_table_has_dashes_and_no_zeros():
    from farm.analysis.tiles import analyze

    (study,) = analyze([tiled_row(1, 8.0, None), tiled_row(16, 1.0, None)])
    found = paper.figures({"paper-tiled": study}, {"paper-tiled": {"done": 2}}, 6.0, 1)
    assert "| 512x512x512 f32 nn | 16 | 1 | - | - | 8 | - | - | - |" in paper.table(found)


# --- against_tools -------------------------------------------------------------------------------------


def test_the_kernels_are_eight_at_least_of_all_sizes_and_both_families():
    parsed = [Configuration.parse(line) for line in tools.KERNELS]
    assert len(set(parsed)) == len(parsed) >= 8
    assert {c.kernel.family for c in parsed} == {"tiled", "cublaslt"}
    flops = sorted(c.problem.flops for c in parsed)
    assert flops[0] < 1e6
    assert flops[-1] > 1e11


@pytest.mark.parametrize("line", ["tiled(tile=8) 96x50x64 f32 tn", "tiled(tile=32) 64x64x64 f64"])
def test_kernel_tuner_gets_the_very_kernel_with_its_grid_and_definitions(line):
    configuration = Configuration.parse(line)
    kernel, problem = TiledKernel.of(configuration), configuration.problem
    call = tools.kernel_tuner_call(configuration, ("a", "b", "d"))
    tuned = {name: value for name, (value,) in call["tune_params"].items()}
    blocks = [-(-size // tuned[f"block_size_{axis}"]) for size, axis in zip(call["problem_size"], "xy", strict=True)]
    assert tuple(blocks) == kernel.grid(problem.shape)
    assert (tuned["block_size_x"], tuned["block_size_y"]) == kernel.block
    assert {*call["compiler_options"], f"-DTILE={tuned['TILE']}"} == set(kernel.options)
    assert call["kernel_source"] == kernel.code
    assert call["kernel_name"] + "(" in kernel.code
    assert arguments_of(kernel.code) == len(call["arguments"])
    assert [type(n) for n in call["arguments"][4:]] == [np.int64] * 3 + [scalar_of(problem)] * 2


def arguments_of(source: str) -> int:
    return source.split("tiled_gemm(", 1)[1].split(")", 1)[0].count(",") + 1


def scalar_of(problem: Problem) -> type:
    return {"f32": np.float32, "f64": np.float64}[str(problem.types.acc)]


def test_kernel_tuner_s_seconds_are_its_own_account_and_no_reading_is_no_power():
    spent = {"compile_time": 100.0, "verification_time": 0.0, "benchmark_time": 1100.0, "framework_time": 50.0}
    answer = tools.kernel_tuner_answer([{"time": 2.5, "nvml_power": 321.0, **spent}])
    assert answer == {"runtime_ms": 2.5, "power_w": 321.0, "seconds": 1.25}
    assert tools.kernel_tuner_answer([{"time": 2.5, "nvml_power": 0, **spent}])["power_w"] is None


@pytest.mark.parametrize("results", [[], [{"__error__": "InvalidConfig"}]])
def test_what_kernel_tuner_could_not_measure_is_an_error(results):
    with pytest.raises(RuntimeError, match=r"kernel_tuner: (InvalidConfig|no result)"):
        tools.kernel_tuner_answer(results)


def nvbench_state(step: int, **means_s: str) -> dict[str, Any]:
    """As nvbench writes it: numbers as text."""
    summaries = [
        {"tag": f"nv/{kind}/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": value}]}
        for kind, value in means_s.items()
    ]
    axis = {"name": "step", "type": "int64", "value": str(step)}
    return {"name": f"Device=0 step={step}", "axis_values": [axis], "summaries": summaries or None}


def test_nvbench_s_cold_and_batched_means_become_two_answers_for_a_kernel():
    states = [nvbench_state(1, cold="0.002", batch="0.0015"), nvbench_state(0, cold="0.001"), nvbench_state(2)]
    found = tools.nvbench_round.summaries({"benchmarks": [{"name": "gemm", "states": states}]})
    answers = tools.nvbench_answers(["x", "y", "z"], 0, found, {"0": 0.7, "1": 1.1})
    told = [(a.tool, a.kernel, a.runtime_ms, a.seconds) for a in answers]
    assert told == [("nvbench", "x", 1.0, 0.7), ("nvbench", "y", 2.0, 1.1), ("nvbench_batched", "y", 1.5, 1.1)]


@pytest.fixture
def judged() -> Iterator[Any]:
    line = tools.KERNELS[0]
    known = [
        tools.Reference(kernel=line, policy=policy, runtime_ms=ms, power_w=200.0)
        for policy, ms in (("cold", 2.0), ("warm", 1.0))
    ]

    def judge(*answers: tuple[str, dict[str, Any]]) -> Any:
        made = [
            tools.Answer(tool=tool, kernel=line, round=n, **{"seconds": 1.0, **said})
            for n, (tool, said) in enumerate(answers)
        ]
        return tools.figures(made, known, {"nvbench": "not here"}, {})

    return judge


def test_a_tool_is_held_against_the_reference_of_its_own_cache_policy(judged):
    said = {"runtime_ms": 1.1, "power_w": 190.0}
    found = judged(("farm", said), ("kernel_tuner", said))["tools"]
    assert found["farm"]["runtime_error_median_pct"] == pytest.approx(45)
    assert found["kernel_tuner"]["runtime_error_median_pct"] == pytest.approx(10)
    assert found["kernel_tuner"]["power_error_worst_pct"] == pytest.approx(5)


def test_the_median_of_the_rounds_counts_and_failed_ones_do_not(judged):
    times = [{"runtime_ms": ms} for ms in (2.0, 2.2, 9.0)]
    found = judged(*(("triton", said) for said in times), ("triton", {"error": "OSError: x", "seconds": 99.0}))
    (kernel,) = found["kernels"]
    assert (kernel["runtime_ms"], kernel["rounds"], kernel["seconds"]) == (2.2, 3, 1.0)
    assert kernel["errors"] == ["OSError: x"]


def test_a_tool_that_only_failed_has_no_figures_and_says_so(judged):
    found = judged(("triton", {"error": "OSError: x"}), ("farm", {"runtime_ms": 2.0, "power_w": 200.0}))
    assert found["tools"]["triton"]["runtime_error_median_pct"] is None
    assert found["tools"]["triton"]["kernels"] == 0
    table = tools.tables(found)
    assert "nvbench is absent: not here." in table
    assert "| +0.0 / +0.0 | failed |" in table


def test_what_a_tool_raises_is_its_answer():
    answer = tools.ask("triton", None, tools.KERNELS[0], 2)
    assert answer.error is not None
    assert answer.runtime_ms is None
    assert tools.why_absent(("json", "no_such_tool")) == "no_such_tool: No module named 'no_such_tool'"


def test_every_round_gives_every_kernel_to_every_tool_that_takes_it_in_an_order_of_its_own():
    first, second = tools.orders(2, 0, ["farm", "kernel_tuner"])
    assert first != second
    assert sorted(first) == sorted(second)
    assert {line for line, tool in first if tool == "farm"} == set(tools.KERNELS)
    assert all(line.startswith("tiled") for line, tool in first if tool == "kernel_tuner")


def test_a_kernel_gets_the_references_that_its_tools_need():
    assert tools.policies_of("tiled(tile=8) 64x64x64 f32", ["farm", "kernel_tuner"]) == ["cold", "warm"]
    assert tools.policies_of("cublaslt(algorithm=0) 64x64x64 f32", ["farm", "kernel_tuner"]) == ["cold"]
    assert tools.policies_of("cublaslt(algorithm=0) 64x64x64 f32", ["nvbench", "nvbench_batched"]) == ["cold", "warm"]


# --- cutlass_profiler ----------------------------------------------------------------------------------


def test_each_kernel_of_the_profiler_is_one_of_the_farm_s_and_runs_on_an_h200():
    hopper = traits_of_capability((9, 0))
    for name, size in product(profiler.KERNELS, profiler.SIZES):
        configuration = profiler.configuration(name, size)
        assert configuration.why_invalid(hopper) is None, name
        # 128x128_32x4 has stages; 128x128x64 has none, or after its cluster.
        tile = re.search(r"_(\d+)x(\d+)(?:_(\d+)x(\d+)|x(\d+)_\d+x\d+x\d+_(\d+))_", name)
        assert tile is not None
        p = dict(configuration.kernel.parameters)
        turned = (p["tile_n"], p["tile_m"])  # the profiler's D lies by columns
        assert (int(tile[1]), int(tile[2])) == turned
        assert int(tile[3] or tile[5]) == p["tile_k"]
        assert int(tile[4] or tile[6]) == p["stages"]


def test_the_profiler_s_table_is_read_and_what_did_not_run_left_out():
    rows = [
        {"Operation": "a", "Runtime": "0.25"},
        {"Operation": "b", "Runtime": "0"},
        {"Operation": "c", "Runtime": ""},
    ]
    assert profiler.times_of(rows) == {"a": 0.25}


def test_tools_are_held_against_each_other_by_medians_over_the_rounds():
    name = next(iter(profiler.KERNELS))
    said = {"farm": [1.0, 1.1, 1.02], "profiler": [1.0, 2.0, 1.0], "steps_graph": [1.03, 1.01, 1.02]}
    rows = [
        {"round": number, "tool": tool, "kernel": name, "size": 512, "ms": ms, "held": tool == "farm" and number == 2}
        for tool, times in said.items()
        for number, ms in enumerate(times)
    ]
    found = profiler.compared(rows)
    one = next(one for one in found if "farm_ms" in one)
    assert (one["kernel"], one["size"], one["held"]) == (name, 512, True)
    assert one["farm_spread_pct"] == pytest.approx(100 * 0.1 / 1.02)
    assert (one["farm / profiler %"], one["farm / steps_graph %"]) == (pytest.approx(2), 0)
    said = profiler.summary(found)
    assert list(said) == ["farm beside steps_graph, held", "farm beside profiler, held"]
    assert said["farm beside profiler, held"]["signed_median_pct"] == pytest.approx(2)
    assert name in profiler.table({"summary": said, "kernels": found})


# --- cutlass_vs_cublaslt -------------------------------------------------------------------------------


def recorded(line: str, runtime_ms: float, *, rse: float = 0.01) -> dict[str, Any]:
    columns = Configuration.parse(line).columns()
    times = dict.fromkeys(("runtime_ms", "runtime_q1_ms", "runtime_q3_ms"), runtime_ms)
    more = {"runtime_rse": rse, "cost_s": 0.5, "device_type": "nvidia-h200"}
    return {**columns, **times, **more, "parameters": json.dumps(columns["parameters"])}


def test_the_best_of_a_recording_is_held_against_the_library_problem_by_problem():
    sweep = [
        recorded("tiled(tile=8) 64x64x64 f32", 2.0),
        recorded("tiled(tile=16) 64x64x64 f32", 1.0, rse=0.003),
        recorded("tiled(tile=16) 64x64x64 f32 beta=1", 4.0),
    ]
    library = [recorded("cublaslt(algorithm=0) 64x64x64 f32", 0.5, rse=0.004)]
    found = beside_library.beside([*sweep, *library])
    plain, added = found
    assert (plain.best.kernel, plain.tried, plain.speed_up) == ("tiled(tile=16)", 2, 0.5)
    low, high = plain.speed_up_95
    assert np.log(high / low) == pytest.approx(2 * 1.96 * 0.005)
    assert (added.baseline, added.speed_up) == (None, None)
    run = {"seconds": 2.0, "gpus": 1, "jobs": {"done": 1}, "sweep": "earlier.parquet"}
    figures = beside_library.figures(found, run)
    assert figures["median_ratio"] == {"f32:f32:f32": 0.5}
    shown = beside_library.table(figures)
    assert "earlier.parquet" in shown
    assert shown.count("64x64x64 f32") == 1  # the other has a beta


def test_where_the_library_is_best_the_best_other_kernel_is_told():
    rows = [recorded("cublaslt(algorithm=0) 64x64x64 f32", 1.0), recorded("tiled(tile=8) 64x64x64 f32", 2.0)]
    (found,) = beside_library.beside(rows)
    assert (found.best.kernel, found.tried, found.speed_up) == ("tiled(tile=8)", 1, 0.5)


def test_a_recording_is_compared_without_a_card():
    recording = ROOT / "examples" / "datasets" / "nvidia-h200-hopper-f16.parquet"
    run = beside_library.of_recording(recording)
    figures = beside_library.figures(beside_library.beside(pq.read_table(recording).to_pylist()), run)
    assert len(figures["problems"]) == 38
    assert {p["kernel"].split("(")[0] for p in figures["problems"]} == {"cutlass3x"}
    assert run["measured"] in beside_library.table(figures)


def test_the_library_is_asked_for_the_problems_of_a_sweep_alone():
    sweep = load(ROOT / "examples" / "campaigns" / "paper-cutlass.yaml", limit=10**5)
    asked = list(beside_library.only_cublaslt(sweep).expand())
    assert len(asked) == 16 * 36
    assert {str(c.kernel) for c in asked} == {"cublaslt(algorithm=0)"}
    assert {c.problem for c in asked} == {c.problem for c in sweep.expand()}


# --- kinds of problems -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_of_problem_exists_on_hopper(kind: str) -> None:
    for line in kinds.KINDS[kind]:
        runnable = [c for c in kinds.candidates(kind, line) if c.why_invalid(traits_of_capability((9, 0))) is None]
        assert len(runnable) >= (7 if kind == "groups" else 1)
        columns = runnable[0].columns()
        added = [name for name, value in ADDED_COLUMNS.items() if columns[name] != value]
        assert added in ([{"sparse": "sparsity"}.get(kind, kind)], ["scale", "groups"])


@pytest.mark.parametrize(("types", "wanted"), [("bf16", None), ("f8e4m3", "bfloat16")])
def test_pytorch_is_told_the_type_of_a_sparse_product_in_8_bits_alone(types: str, wanted: str | None) -> None:
    """It refuses one with 16-bit operands."""
    given: list[object] = []
    torch = SimpleNamespace(
        **{name: name for name in ("float32", "float16", "bfloat16", "float8_e4m3fn")},
        _cslt_sparse_mm=lambda b, a, *, out_dtype, transpose_result, alg_id: given.append(out_dtype),
    )
    problem = Configuration.parse(f"cusparselt() 64x4096x4096 {types} nt sparsity=2:4").problem
    kinds.call_of(torch, problem)(SimpleNamespace(t=lambda: None), None)
    assert given == [wanted]


def test_only_times_of_the_same_kernel_must_agree() -> None:
    def row(ratio: float, *, same: bool = True) -> dict[str, Any]:
        return {"ratio": ratio, "same_kernel": same}

    found = kinds.figures({"batch": [row(0.98), row(1.01), row(1.5, same=False)], "fused": [row(0.5, same=False)]})
    assert found["batch"] == {
        "problems": 3,
        "same_kernel": 2,
        "worst_pct": 2.0,
        "median_pct": 1.5,
        "close": 2,
        "median_ratio": 1.01,
    }
    assert found["fused"] == {
        "problems": 1,
        "same_kernel": 0,
        "worst_pct": None,
        "median_pct": None,
        "close": 0,
        "median_ratio": 0.5,
    }
    assert kinds.summary({**found, "groups": {"problems": 0}}).splitlines()[2:] == [
        "| batches | `bmm` | 3 | 2 | 1.5% | 2 | 2% |",
        "| fused operations | `addmm` with an activation | 1 | 0 | – | 0 | – |",
    ]


# --- examples of CUTLASS -----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", examples.EXAMPLES, ids=lambda one: f"{one.number}: {one.about}")
def test_the_farm_measures_every_problem_of_the_examples_on_hopper(example: examples.Example) -> None:
    for problem in example.problems:
        configuration = example.configuration(problem)
        assert configuration.why_invalid(traits_of_capability((9, 0))) is None
        assert configuration.binary(traits_of_capability((9, 0))) == example.binary


@pytest.mark.parametrize("example", examples.EXAMPLES, ids=lambda one: f"{one.number}: {one.about}")
def test_what_is_compiled_of_an_example_has_its_changes_and_none_of_its_own_launches(example: examples.Example) -> None:
    library = pytest.importorskip("cutlass_library")
    place = Path(library.__path__[0], "source", "examples", examples.FOLDERS[example.number])
    source = (place / f"{examples.FILES[example.number]}.cu").read_text()
    made = examples.source_of(example, source)
    assert all(after in made for _, after in example.changes)
    assert "int main(" in source
    assert "int main(" not in made
    of_farm = made[made.index("namespace of_farm {") :]
    assert "using Kernel = cutlass::gemm::kernel::GemmUniversal" in of_farm
    assert 'extern "C" __global__' not in of_farm  # the farm's kernel is not compiled again
    assert "namespace cute {" not in of_farm  # it would hide CUTLASS's
    for before, _ in example.changes:
        with pytest.raises(ValueError, match="0 times, not once"):
            examples.source_of(example, source.replace(before, "else"))


def test_the_operands_of_an_example_lie_as_its_library_reads_them() -> None:
    (struct,) = re.findall(r"^struct Given \{\n(.*?)^\};", examples.ENTRIES.read_text(), re.DOTALL | re.MULTILINE)
    names = re.findall(r"[*\s](\w+)(?=[,;])", re.sub(r"//.*", "", struct))
    assert names == [name for name, _ in examples.Given._fields_]


def test_an_example_has_the_farm_s_kernel_where_all_parts_are_its_own() -> None:
    same = dict.fromkeys(examples.SAME, True)
    assert examples.kernel_of({"same": same}) == "yes"
    other = {**same, "main loop": False, "epilogue": False}
    assert examples.kernel_of({"same": other}) == "closest: other main loop and epilogue"
    one, another = Counter({"HGMMA": 6, "MOV": 2}), Counter({"HGMMA": 6, "MOV": 4, "BRA": 2})
    assert examples.shared_code(one, another) == 0.8


# --- referee -------------------------------------------------------------------------------------------


def test_the_kernels_of_the_referee_can_be_launched_and_every_cheat_is_in_the_file(tmp_path: Path) -> None:
    hopper, cheats = traits_of_capability((9, 0)), referee.cheats()
    written = set(map(int, re.findall(r"^#(?:el)?if CHEAT == (\d+)", cheats.code, re.M)))
    assert written == set(referee.CHEATS)
    assert len(written) >= 20
    for number in (0, *referee.CHEATS):
        assert referee.cheat(number, cheats).why_invalid(hopper) is None
    assert list(load(referee.campaign_of(cheats, tmp_path), limit=1).definitions) == [cheats.id]
    in_triton = referee.cheats_in_triton()
    assert set(map(int, re.findall(r"if CHEAT == (\d+)", in_triton.code))) == set(referee.CHEATS_IN_TRITON)
    for number in (0, *referee.CHEATS_IN_TRITON):
        assert referee.cheat(number, in_triton, referee.CHEATING_IN_TRITON).why_invalid(hopper) is None
    example = referee.triton_example()
    for honest in referee.HONEST_IN_TRITON:
        assert honest.built_in.why_invalid(hopper) is honest.as_own(example).why_invalid(hopper) is None
    assert len(referee.HONEST) >= 5
    for pair in referee.HONEST:
        definition = referee.tiled(pair.built_in.problem.types.ab)
        macros = {option.partition("=")[0][2:] for option in TiledKernel.of(pair.built_in).options if "=" in option}
        known = {*definition.parameters, *re.findall(r"^#define (\w+) ", definition.code, re.M)}
        assert {name for name in macros if name.isupper()} <= known
        assert pair.as_own(definition).why_invalid(hopper) is None
        launch = definition.launch(pair.built_in.problem, dict(pair.as_own(definition).kernel.parameters))
        assert launch.grid[:2] == TiledKernel.of(pair.built_in).grid(pair.built_in.problem.shape)


def test_the_table_of_the_referee_has_cheats_and_honest_kernels() -> None:
    cheated = [{"cheat": "writes zeros", "kind": "refused", "check": "result", "message": "it does"}]
    honest = [{"configuration": "tiled", "built_in_ms": 1.0, "own_ms": 1.001, "difference_pct": 0.1, "referee_ms": 1.0}]
    table = referee.table(cheated, honest)
    assert "| writes zeros | refused | result | it does |" in table
    assert "| tiled | 1 | 1 | 0.1 | 1 |" in table


# --- plans of language models ---------------------------------------------------------------------------


def test_a_plan_is_compared_with_its_chain_in_time_and_energy() -> None:
    gemms = plans.gemms_of("llama-3.1-8b", 512)
    assert [(one.name, one.count) for one in gemms][-1] == ("lm_head", 1)
    rows = {
        one.problem: plans.measured_row(plans.configuration_of(one.problem), row(0.1, power_w=500.0)) for one in gemms
    }
    plan, missing = plans.plan_of("nvidia-h200", gemms, 512, rows=rows)
    assert not missing
    line = plans.line_of("rows", plan, 12.0, 7.0)
    # 129 GEMMs of 0.1 ms at 500 W.
    assert (line["error_pct"], line["energy_error_pct"], line["holds"]) == (7.5, -7.86, False)
    none, missing = plans.plan_of("nvidia-h200", gemms, 512, rows=dict(list(rows.items())[1:]))
    assert (none, len(missing)) == (None, 1)
    found = plans.figures([line, plans.line_of("rows", plan, 13.0, None), plans.line_of("rows", none, 1.0, 1.0)])
    assert found == {
        "chains": 2, "median_error_pct": 4.135, "worst_error_pct": 7.5, "energy_median_error_pct": 7.86,
        "energy_worst_error_pct": 7.86, "bounds_hold_pct": 50.0,
    }  # fmt: skip


def test_tables_of_another_tool_are_read_between_their_rows(tmp_path: Path) -> None:
    rows = [("bfloat16", m, n, 1024, 1e-9 * m * n * 1024) for m in (64, 256) for n in (1024, 4096)]
    table = pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"])
    table.to_parquet(tmp_path / "gemm_perf.parquet")
    found = plans.Tables(tmp_path / "gemm_perf.parquet")
    problems = [parse_problem(f"{m}x{n}x1024 bf16 nt") for m, n in ((128, 1024), (64, 2048), (256, 8192))]
    for one in problems:
        s = one.shape
        assert found.ms([LayerGemm("", one, 2)]) == pytest.approx(2e-9 * s.m * s.n * s.k)
    assert found.ms([LayerGemm("", parse_problem("64x64x64 f8e4m3 nt"), 1)]) is None


def test_a_chain_runs_each_layer_on_weights_of_its_own(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "configuration_of", lambda problem: Configuration(problem, Kernel.of("tiled", tile=16)))
    for name, value in (("SETS", 2), ("SETTLING_SECONDS", 0.01), ("POWER_SECONDS", 0.3)):
        monkeypatch.setattr(plans, name, value)
    gemms = [LayerGemm(name, parse_problem(f"16x16x{k} f32"), count) for name, k, count in (("a", 16, 3), ("b", 32, 1))]
    with plans.Chain(device, gemms) as chain:
        begin = len(cupy.launches)
        ms, joules = chain.measured(0.01)
    first, other, second, third = cupy.launches[begin : begin + 4]
    assert len({first, other, second}) == 3
    assert third == first  # there are two sets
    assert ms > 0
    assert joules == pytest.approx(600 * ms / 1e3, rel=0.01)
