"""The best CUTLASS kernel of each shape and type beside cuBLASLt's own choice, in one campaign on the cards of this host.

    farm kernels build examples/campaigns/cutlass-tuned.yaml --arch sm_90a -o kernels     anywhere; then here:
    python -m benchmarks.cutlass_vs_cublaslt --kernels kernels [--campaign FILE] [--seconds 540]
    python -m benchmarks.cutlass_vs_cublaslt --campaign FILE --sweep RECORDING      what was measured of it before
    python -m benchmarks.cutlass_vs_cublaslt --recording RECORDING                  what such a run left, without a card

Every kernel of the campaign is measured and verified for every problem, and `cublaslt`, whose heuristic chooses, in the same
run on the same cards, in one shuffled order. With `--sweep` the kernels' times are those of a recording, and only `cublaslt`
is measured now; the table has the problems without alpha and beta, the JSON file all. With `--recording` nothing is measured.

A ratio is cuBLASLt's time over that of the best kernel: above 1 the kernel is faster. Its interval is of the two standard
errors alone (95%); the best of many, each off by its error, looks a little better than it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.common import RESULTS, end_like_interrupted, markdown, write
from benchmarks.farms import measured, store
from benchmarks.paper_cutlass import add_kernels
from benchmarks.recordings import configuration_of, export
from farm.campaign import Campaign, load
from farm.campaign.strategies import Grid
from farm.devices import DeviceKind
from farm.kernels import BASELINES, Kernel
from farm.provenance import METADATA_KEY
from farm.report.best import BestKernel, ProblemOnType, TimedKernel

CAMPAIGN = Path(__file__).parents[1] / "examples" / "campaigns" / "cutlass-tuned.yaml"


def only_cublaslt(campaign: Campaign) -> Campaign:
    """The campaign's problems by the library alone, under its rules for the time."""
    asked = {
        **campaign.document,
        "name": f"{campaign.name}-cublaslt",
        "kernels": [{"family": BASELINES[DeviceKind.CUDA].family}],
    }
    measure = {**campaign.measure.model_dump(mode="json"), "power": "none"}
    return Campaign.from_document({**asked, "constraints": [], "measure": measure})


def timed(row: Mapping[str, Any], kernel: Kernel) -> TimedKernel:
    """A row of a recording."""
    times = {name: row[name] for name in ("runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_rse")}
    return TimedKernel(kernel=str(kernel), rows=1, **times)


def beside(rows: Iterable[Mapping[str, Any]]) -> list[BestKernel]:
    """The best kernel of each problem and device type of recordings, beside the library's choice where there is one."""
    groups: dict[ProblemOnType, list[tuple[TimedKernel, float]]] = {}
    baselines: dict[ProblemOnType, tuple[TimedKernel, float]] = {}
    for row in rows:
        what = configuration_of(row)
        where, answer = (what.problem, row["device_type"]), (timed(row, what.kernel), row["cost_s"] or 0.0)
        if what.kernel == BASELINES[DeviceKind.CUDA]:
            baselines[where] = answer
        else:
            groups.setdefault(where, []).append(answer)
    found = []
    for where, answers in groups.items():
        baseline, spent = baselines.get(where, (None, 0.0))
        one = BestKernel(
            problem=where[0],
            device_type=where[1],
            best=min((answer for answer, _ in answers), key=lambda answer: answer.runtime_ms),
            baseline=baseline,
            tried=len(answers),
            grid=len(answers),
            device_s=sum(cost for _, cost in answers),
            baseline_device_s=spent,
        )
        found.append(one)
    return sorted(found, key=lambda one: (one.device_type, str(one.problem)))


def of_problem(one: BestKernel) -> dict[str, Any]:
    return {
        "problem": f"{one.problem.shape} {one.problem.types} {one.problem.layout}",
        "alpha": one.problem.alpha,
        "beta": one.problem.beta,
        "types": str(one.problem.types),
        "layout": str(one.problem.layout),
        "device_type": one.device_type,
        "kernel": one.best.kernel,
        "runtime_ms": one.best.runtime_ms,
        "tflops": one.problem.flops / one.best.runtime_ms / 1e9,
        "cublaslt_ms": None if one.baseline is None else one.baseline.runtime_ms,
        "ratio": one.speed_up,
        "ratio_95": one.speed_up_95,
        "kernels": one.tried,
    }


def figures(found: Sequence[BestKernel], run: Mapping[str, Any]) -> dict[str, Any]:
    """All of it; `run` says of what, and how it was measured."""
    problems = [of_problem(one) for one in found]
    by_types: dict[str, list[float]] = {}
    for problem in problems:
        if problem["ratio"] is not None:
            by_types.setdefault(problem["types"], []).append(problem["ratio"])
    return {
        **run,
        "median_ratio": {types: statistics.median(ratios) for types, ratios in by_types.items()},
        "best_ratio": {types: max(ratios) for types, ratios in by_types.items()},
        "problems": problems,
    }


def table(found: Mapping[str, Any]) -> str:
    rows = [
        [
            p["problem"], p["kernel"], p["runtime_ms"], p["tflops"], "-" if p["cublaslt_ms"] is None else p["cublaslt_ms"],
            "-" if p["ratio"] is None else f"{p['ratio']:.3f} ({p['ratio_95'][0]:.3f} – {p['ratio_95'][1]:.3f})", p["kernels"],
        ]
        for p in found["problems"]
        if found["sweep"] is None or (p["alpha"], p["beta"]) == (1, 0)
    ]  # fmt: skip
    names = [
        "problem",
        "best CUTLASS kernel",
        "ms",
        "TFLOP/s",
        "cuBLASLt ms",
        "times cuBLASLt's speed (95%)",
        "of kernels",
    ]
    if found["seconds"] is None:
        said = f"The rows of {found['recording']}: {found['measured']}."
    else:
        said = f"{found['jobs']['done']:,} configurations in {found['seconds']:g} s on {found['gpus']} cards"
        said += "." if found["sweep"] is None else f", beside the kernels' times in {found['sweep']}."
    return (
        f"{said}\n\n"
        + markdown(["types", "median ratio", "best ratio"], [
            [types, ratio, found["best_ratio"][types]] for types, ratio in found["median_ratio"].items()
        ])
        + "\n\n" + markdown(names, rows)
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaign", type=Path, default=CAMPAIGN)
    parser.add_argument("--kernels", type=Path, help="folder of the built kernels")
    parser.add_argument("--sweep", type=Path, help="a recording of the campaign, whose kernels are not measured again")
    parser.add_argument("--recording", type=Path, help="the rows of an earlier run: nothing is measured")
    parser.add_argument("--seconds", type=float, default=540.0, help="of measuring at the most")
    parser.add_argument("--gpus", type=int, default=64, help="cards to use at the most")
    parser.add_argument("--recordings", type=Path, default=RESULTS, help="folder of the recording")
    parser.add_argument(
        "--device", choices=("cuda", "recorded"), default="cuda", help="recorded: a trial, made-up answers"
    )
    parser.add_argument("--result", default="cutlass_vs_cublaslt", help="name of the files in results/")
    asked = parser.parse_args()
    end_like_interrupted()
    if asked.recording is None:
        rows, run = measure(asked)
    else:
        rows, run = pq.read_table(asked.recording).to_pylist(), of_recording(asked.recording)
    result = figures(beside(rows), run)
    write(asked.result, result, table(result), repetitions=1)


def of_recording(recording: Path) -> dict[str, Any]:
    """What a recording says of its rows."""
    said = json.loads((pq.read_schema(recording).metadata or {})[METADATA_KEY])
    unknown = dict.fromkeys(("seconds", "gpus", "jobs", "sweep"))
    return {**unknown, "recording": recording.name, "measured": said["provenance"]}


def measure(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measures the campaign, or the library beside a sweep of it: rows of recordings, and how the run went."""
    campaign = load(asked.campaign, limit=10**5)
    campaign = campaign.changed(search=Grid()) if asked.sweep is None else only_cublaslt(campaign)
    most = asked.gpus if asked.device == "cuda" else min(asked.gpus, 2)
    on = {"kind": asked.device, "most": most, "seconds": asked.seconds, "files": [asked.campaign], "job_seconds": 0.01}
    with measured(
        lambda engine: store(engine, campaign), prepare=lambda engine: add_kernels(engine, asked.kernels), **on
    ) as done:
        recording = export(campaign.name, asked.recordings)
    sources = [source for source in (asked.sweep, recording) if source is not None]
    run = {"seconds": round(done.seconds, 1), "gpus": done.devices, "jobs": dict(done.counts)}
    run["sweep"] = None if asked.sweep is None else asked.sweep.name
    return [row for source in sources for row in pq.read_table(source).to_pylist()], run


if __name__ == "__main__":
    main()
