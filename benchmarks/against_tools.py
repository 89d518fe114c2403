"""The same kernels measured by the farm and by the tools of the field: seconds for each, and how far off.

    python -m benchmarks.against_tools [--rounds 3] [--seconds 200] [--reference-seconds 5]
    python -m benchmarks.against_tools --tools farm,kernel_tuner,triton      without nvbench, the slowest

On the first card of this host, each tool with its own defaults:
  farm          `measure` of workers/devices/cuda.py with power: verified, cold L2, a captured graph
  kernel_tuner  tune_kernel of one configuration with its NVMLObserver: 7 launches, then a second of launches for the
                power; warm L2. It gets the very source of workers/kernels/tiled.cu, with the same definitions
  triton        triton.testing.do_bench: the L2 is flushed before each launch; no power
  nvbench       cuda.bench: its cold measurement flushes the L2, its batched one does not; no power
Kernel Tuner compiles source, so it gets the tiled kernels; Triton and nvbench are given the farm's own launches of all.
The farm and the references have a process of their own, as a worker has.

The reference of a kernel is what it settles at, by the same cache policy as the tool's: `cold`, the farm's rotation over
operand sets of twice the L2, or `warm`, one operand set. A captured graph is replayed without a gap; the power is the
energy counter's difference over the last four of five seconds, and the runtime that of events around the replays of the
half second that follows. A flushed L2 and a rotated one are not the same thing: both are cold.

Kernels and tools come in shuffled order, anew in each round, and for a tool and a kernel the median over the rounds counts. Seconds
are those of the tool's own call: for Kernel Tuner its own account of compiling, benchmarking and framework, without the
warm-up that it does once in a tuning; for the farm everything, for Triton and nvbench without preparing operands and
kernel, which they leave to their caller. nvbench runs a process of its own for each round, which begins when the others
are done. A tool that cannot be imported is told as absent, and what failed is told with its error.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import nvbench_round
from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.power_windows import SETTLING_SECONDS, counter_power_w, windows_of
from farm.errors import first_line
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.operands import OperandRules
from workers.devices import open_device
from workers.devices.cards import find_cards
from workers.kernels.tiled import TILED_ENTRY, TiledKernel
from workers.measure.elements import STORAGE
from workers.measure.replay import Runs, replays_in_batch, runs_of

KERNELS = [
    "tiled(tile=16) 64x64x64 f32",
    "tiled(tile=32) 256x256x256 f32",
    "tiled(tile=8) 512x512x512 f32",
    "tiled(tile=4) 1024x1024x1024 f32",
    "tiled(tile=16) 2048x2048x2048 f32",
    "tiled(tile=32) 4096x4096x4096 f32",
    "cublaslt(algorithm=0) 512x512x512 f16:f16:f32",
    "cublaslt(algorithm=0) 4096x4096x4096 f16:f16:f32",
]

POLICIES = {"farm": "cold", "kernel_tuner": "warm", "triton": "cold", "nvbench": "cold", "nvbench_batched": "warm"}
"""Which reference a tool's answer is held against."""

REFERENCE_TIMING_SECONDS = 0.5

NVBENCH_START_SECONDS = 15.0
"""What a process of nvbench may take to start, and to write its results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool said of a kernel. None: it does not say that."""

    tool: str
    kernel: str
    round: int
    seconds: float
    runtime_ms: float | None = None
    power_w: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a kernel settles at."""

    kernel: str
    policy: str  # cold | warm
    runtime_ms: float
    power_w: float | None


# --- a process for the farm and the references -------------------------------------------------------


@cache
def alone() -> ProcessPoolExecutor:
    """The process that measures for the farm, and the references: in it no other tool is imported, as in a worker."""
    return ProcessPoolExecutor(1, get_context("spawn"))


@cache
def _opened() -> Any:
    """The card, in the process that asks."""
    device = open_device(find_cards()[0])
    device.open()
    return device


# --- references --------------------------------------------------------------------------------------


def settled(device: Any, runs: Runs, gemm_ms: float, seconds: float) -> tuple[float, float | None]:
    """Runtime in ms and power in W of these runs after `seconds` without a gap, of which the first one is left out."""
    window = windows_of(device.meter, lambda: runs.keep_busy(gemm_ms), seconds)
    runs.drain()
    batch = replays_in_batch(gemm_ms * runs.launches)
    samples: list[float] = []
    until = time.perf_counter() + REFERENCE_TIMING_SECONDS
    while time.perf_counter() < until or len(samples) < 3:
        samples += runs.sample(batch)
    return statistics.fmean(samples), counter_power_w(window, SETTLING_SECONDS, seconds + 1)


def references(line: str, policies: Sequence[str], seconds: float) -> list[Reference]:
    """The references of a kernel by these cache policies, on the card of this process."""
    import cupy

    device, found = _opened(), []
    with device.replaying(Configuration.parse(line), OperandRules()) as work:
        for policy in policies:
            runs = work.runs
            if policy == "warm":
                stream, kernel = cupy.cuda.get_current_stream(), work.kernel
                runs = runs_of(cupy, stream, kernel.launch, 1, work.gemm_ms, capturable=kernel.capturable)
            gemm_ms = statistics.median(runs.sample())
            runtime_ms, power_w = settled(device, runs, gemm_ms, seconds)
            found.append(Reference(kernel=line, policy=policy, runtime_ms=runtime_ms, power_w=power_w))
    return found


# --- tools that are called ---------------------------------------------------------------------------


def farm(_: Any, line: str) -> dict[str, float | None]:
    return alone().submit(_measured, line).result()


def _measured(line: str) -> dict[str, float | None]:
    row = _opened().measure(Configuration.parse(line), MeasuringRules(power="all"))
    return {"runtime_ms": row.runtime_ms, "power_w": row.power_w}


def kernel_tuner_call(configuration: Configuration, operands: Sequence[Any]) -> dict[str, Any]:
    """What tune_kernel is called with for one configuration of the tiled family; `operands` are A, B and D.

    Tunable parameters become definitions in the source, as TILE is; the others are the compiler's options.
    """
    kernel, p = TiledKernel.of(configuration), configuration.problem
    a, b, d = operands
    scalar, extents = STORAGE[p.types.acc], (p.shape.m, p.shape.n, p.shape.k)
    columns, rows = kernel.block
    return {
        "kernel_name": TILED_ENTRY,
        "kernel_source": kernel.code,
        "problem_size": (p.shape.n, p.shape.m),
        "arguments": [a, b, d, d, *map(np.int64, extents), scalar(p.alpha), scalar(p.beta)],  # beta is 0: C is not read
        "tune_params": {"block_size_x": [columns], "block_size_y": [rows], "TILE": [kernel.tile]},
        "lang": "CUPY",
        "compiler_options": [option for option in kernel.options if not option.startswith("-DTILE=")],
        "quiet": True,
    }


def kernel_tuner_answer(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What Kernel Tuner says of its one configuration. Raises `RuntimeError` where it could not measure it."""
    if len(results) != 1 or "__error__" in results[0]:
        raise RuntimeError(f"kernel_tuner: {results[0]['__error__'] if results else 'no result'}")
    (result,) = results
    spent_ms = sum(float(result[f"{part}_time"]) for part in ("compile", "verification", "benchmark", "framework"))
    return {
        "runtime_ms": float(result["time"]),
        "power_w": float(result["nvml_power"]) or None,
        "seconds": spent_ms / 1e3,
    }


def kernel_tuner(device: Any, line: str) -> dict[str, float | None]:
    import cupy
    from kernel_tuner import tune_kernel
    from kernel_tuner.observers.nvml import NVMLObserver

    configuration = Configuration.parse(line)
    p = configuration.problem
    s, dtype = p.shape, STORAGE[p.types.ab]
    numbers = np.random.default_rng(0)  # as the farm's operands: uniform on [-1, 1]
    a, b = (cupy.asarray(numbers.uniform(-1, 1, size).astype(dtype)) for size in ((s.m, s.k), (s.k, s.n)))
    operands = (a, b, cupy.empty((s.m, s.n), dtype))
    observer = NVMLObserver(["nvml_power", "nvml_energy"], device=nvml_index(device.identity.uuid))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not know the types index_t and ELEMENT
        results, _ = tune_kernel(**kernel_tuner_call(configuration, operands), observers=[observer])
    return kernel_tuner_answer(results)


def nvml_index(uuid: str) -> int:
    """NVML's number of a card: Kernel Tuner asks for CUDA's UUID, which lacks NVML's prefix."""
    from workers.measure.nvml import Nvml

    with Nvml() as nvml:
        return int(nvml.ask("nvmlDeviceGetIndex", nvml.ask("nvmlDeviceGetHandleByUUID", uuid)))


def triton(device: Any, line: str) -> dict[str, float | None]:
    import cupy
    import torch
    from triton.testing import do_bench

    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)  # whose events Triton records
    with device.replaying(Configuration.parse(line), OperandRules()) as work, stream:
        began = time.perf_counter()
        runtime_ms = do_bench(lambda: work.kernel.launch(0))
        seconds = time.perf_counter() - began
    return {"runtime_ms": float(runtime_ms), "seconds": seconds}


Tool = Callable[[Any, str], dict[str, float | None]]

TOOLS: dict[str, tuple[Tool, tuple[str, ...], tuple[str, ...]]] = {
    "farm": (farm, (), ("tiled", "cublaslt")),
    "kernel_tuner": (kernel_tuner, ("kernel_tuner", "kernel_tuner.observers.nvml", "pynvml"), ("tiled",)),
    "triton": (triton, ("torch", "triton.testing"), ("tiled", "cublaslt")),
}
"""Each tool with the modules that it needs and the families that it can be given."""

NVBENCH = "cuda.bench"


def why_absent(modules: Sequence[str]) -> str | None:
    """Why a tool cannot be imported; None where it can."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a foreign module raises when it is imported
            return f"{name}: {first_line(error) or type(error).__name__}"
    return None


def why_nvbench_absent() -> str | None:
    """As `why_absent`, without loading it: its own process does."""
    try:
        return None if importlib.util.find_spec(NVBENCH) else f"{NVBENCH} is not installed"
    except ModuleNotFoundError as error:
        return f"{NVBENCH}: {first_line(error)}"


def ask(name: str, device: Any, line: str, number: int) -> Answer:
    """One answer of a tool, or its error; a tool that has seconds of its own says them."""
    began = time.perf_counter()
    try:
        said = TOOLS[name][0](device, line)
    except Exception as error:  # what a foreign tool raises is its answer
        seconds = time.perf_counter() - began
        return Answer(
            tool=name, kernel=line, round=number, seconds=seconds, error=f"{type(error).__name__}: {first_line(error)}"
        )
    return Answer(
        tool=name,
        kernel=line,
        round=number,
        seconds=said.get("seconds") or time.perf_counter() - began,
        runtime_ms=said["runtime_ms"],
        power_w=said.get("power_w"),
    )


# --- nvbench, in a process of its own ----------------------------------------------------------------


def nvbench_answers(
    kernels: Sequence[str], number: int, found: Mapping[int, Mapping[str, float]], seconds: Mapping[str, float]
) -> list[Answer]:
    """Both of nvbench's measurements of each kernel; they are taken by one call, so they have its seconds."""
    answers = []
    for step, line in enumerate(kernels):
        for kind, tool in (("cold", "nvbench"), ("batch", "nvbench_batched")):
            runtime_ms = found.get(step, {}).get(kind)
            if runtime_ms is not None and str(step) in seconds:
                answers.append(
                    Answer(tool=tool, kernel=line, round=number, seconds=seconds[str(step)], runtime_ms=runtime_ms)
                )
    return answers


def nvbench(kernels: Sequence[str], number: int, seconds: float) -> list[Answer]:
    """A round of nvbench that begins nothing after so many seconds. Raises `RuntimeError` with its last words."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / f"{name}.json") for name in ("results", "seconds")}
        asked = Path(folder) / "asked.json"
        asked.write_text(json.dumps({"kernels": list(kernels), "end": time.time() + seconds, **files}))
        command = [sys.executable, "-m", nvbench_round.__name__, str(asked)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + 2 * NVBENCH_START_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError("nvbench did not end in its time") from None
        if not Path(files["results"]).exists():
            words = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise RuntimeError(f"nvbench ended with {done.returncode}: {' '.join(words)}")
        results = json.loads(Path(files["results"]).read_text())
        took = json.loads(seconds_file.read_text()) if (seconds_file := Path(files["seconds"])).exists() else {}
    return nvbench_answers(kernels, number, nvbench_round.summaries(results), took)


# --- judging -----------------------------------------------------------------------------------------


def median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def error_pct(value: float | None, reference: float | None) -> float | None:
    return None if value is None or reference is None else 100 * (value / reference - 1)


def by_kernel(answers: Sequence[Answer], known: Sequence[Reference]) -> list[dict[str, Any]]:
    """For each tool and kernel: medians over the rounds, and their error against the reference of the tool's policy."""
    truth = {(reference.kernel, reference.policy): reference for reference in known}
    groups = defaultdict[tuple[str, str], list[Answer]](list)
    for answer in answers:
        groups[answer.tool, answer.kernel].append(answer)
    found = []
    for (tool, kernel), group in groups.items():
        good = [answer for answer in group if answer.error is None]
        runtime_ms, power_w = (median_of([getattr(a, name) for a in good]) for name in ("runtime_ms", "power_w"))
        reference = truth.get((kernel, POLICIES[tool]))
        found.append(
            {
                "tool": tool,
                "kernel": kernel,
                "rounds": len(good),
                "seconds": median_of([answer.seconds for answer in good]),
                "runtime_ms": runtime_ms,
                "power_w": power_w,
                "runtime_error_pct": error_pct(runtime_ms, None if reference is None else reference.runtime_ms),
                "power_error_pct": error_pct(power_w, None if reference is None else reference.power_w),
                "errors": sorted({answer.error for answer in group if answer.error is not None}),
            }
        )
    return sorted(found, key=lambda one: (list(POLICIES).index(one["tool"]), KERNELS.index(one["kernel"])))


def by_tool(kernels: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each tool over its kernels: seconds for one, and median and worst size of its errors."""
    found: dict[str, dict[str, Any]] = {}
    for tool in dict.fromkeys(one["tool"] for one in kernels):
        own = [one for one in kernels if one["tool"] == tool]
        said: dict[str, Any] = {"cache": POLICIES[tool], "kernels": sum(one["runtime_ms"] is not None for one in own)}
        seconds = [one["seconds"] for one in own if one["seconds"] is not None]
        said["seconds_median"] = median_of(seconds)
        said["seconds_mean"] = statistics.fmean(seconds) if seconds else None
        for quantity in ("runtime", "power"):
            sizes = [abs(e) for one in own if (e := one[f"{quantity}_error_pct"]) is not None]
            said[f"{quantity}_error_median_pct"] = median_of(sizes)
            said[f"{quantity}_error_worst_pct"] = max(sizes, default=None)
        found[tool] = said
    return found


def figures(
    answers: Sequence[Answer], known: Sequence[Reference], absent: Mapping[str, str], versions: Mapping[str, str]
) -> dict[str, Any]:
    kernels = by_kernel(answers, known)
    return {
        "tools": by_tool(kernels),
        "absent": dict(absent),
        "versions": dict(versions),
        "kernels": kernels,
        "references": [asdict(reference) for reference in known],
        "answers": [asdict(answer) for answer in answers],
    }


def _cells(values: Sequence[Any]) -> list[Any]:
    return ["-" if value is None else value for value in values]


def tables(found: Mapping[str, Any]) -> str:
    tools = [_cells([name, *said.values()]) for name, said in found["tools"].items()]
    said = markdown(
        [
            "tool", "L2", "kernels", "seconds: median", "mean", "runtime error %: median", "worst",
            "power error %: median", "worst",
        ],
        tools,
    )  # fmt: skip
    for name, why in found["absent"].items():
        said += f"\n\n{name} is absent: {why}."
    references = {(r["kernel"], r["policy"]): r for r in found["references"]}
    names = list(found["tools"])
    rows = []
    for line in dict.fromkeys(kernel for kernel, _ in references):
        cold, warm = (references.get((line, policy), {}) for policy in ("cold", "warm"))
        cells: list[Any] = [line, *(r.get(key) for key in ("runtime_ms", "power_w") for r in (cold, warm))]
        for name in names:
            one: Mapping[str, Any] = next((o for o in found["kernels"] if (o["tool"], o["kernel"]) == (name, line)), {})
            error, power = one.get("runtime_error_pct"), one.get("power_error_pct")
            signed = [f"{value:+.1f}" for value in (error, power) if value is not None]
            cells.append(" / ".join(signed) or ("failed" if one.get("errors") else None))
        rows.append(_cells(cells))
    said += "\n\nErrors in percent, of runtime / of power, against the reference of the tool's own cache policy:\n\n"
    return said + markdown(["kernel", "cold ms", "warm ms", "cold W", "warm W", *names], rows)


def versions_of(names: Sequence[str]) -> dict[str, str]:
    """The versions of the packages that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# --- running -----------------------------------------------------------------------------------------


def policies_of(line: str, tools: Sequence[str]) -> list[str]:
    """The references that these tools' answers on a kernel need."""
    given = [t for t in tools if t not in TOOLS or family_of(line) in TOOLS[t][2]]
    return sorted({POLICIES[tool] for tool in given})


def orders(rounds: int, seed: int, tools: Sequence[str]) -> list[list[tuple[str, str]]]:
    """For each round every kernel with every tool that can be given it, in a shuffled order."""
    shuffled = random.Random(seed)
    pairs = [(line, tool) for line in KERNELS for tool in tools if family_of(line) in TOOLS[tool][2]]
    return [shuffled.sample(pairs, len(pairs)) for _ in range(rounds)]


def family_of(line: str) -> str:
    return Configuration.parse(line).kernel.family


class Report:
    """What is known so far, written again whenever something is added."""

    def __init__(self, result: str, rounds: int, absent: Mapping[str, str]) -> None:
        self.answers: list[Answer] = []
        self.references: list[Reference] = []
        self.absent = dict(absent)
        self._result, self._rounds = result, rounds
        packages = ("kernel-tuner", "triton", "torch", "cuda-bench", "cupy-cuda13x", "cupy-cuda12x", "nvmath-python")
        self._versions = versions_of(packages)

    def write(self, *, show: bool = False) -> None:
        found = figures(self.answers, self.references, self.absent, self._versions)
        write(self._result, found, tables(found), repetitions=self._rounds, show=show)


def measure(report: Report, tools: Sequence[str], asked: argparse.Namespace) -> None:
    """References, then the rounds of the tools that are called here, then those of nvbench; until the time is over."""
    end = time.monotonic() + asked.seconds
    with alone() as farm_process:
        for line in KERNELS:
            asking = farm_process.submit(references, line, policies_of(line, tools), asked.reference_seconds)
            report.references += asking.result()
        report.write()
        print(f"references: {asked.seconds - (end - time.monotonic()):.0f} s", file=sys.stderr)
        for number, order in enumerate(orders(asked.rounds, asked.seed, [name for name in tools if name in TOOLS])):
            for line, name in order:
                if time.monotonic() <= end:
                    report.answers.append(ask(name, _opened(), line, number))
            report.write()
            print(f"round {number + 1}: {asked.seconds - (end - time.monotonic()):.0f} s", file=sys.stderr)
        if time.monotonic() > end:
            print(f"The time was over after {len(report.answers)} answers.", file=sys.stderr)
    if "nvbench" in tools:
        measure_nvbench(report, asked)


def measure_nvbench(report: Report, asked: argparse.Namespace) -> None:
    end = time.monotonic() + asked.nvbench_seconds
    for number in range(asked.rounds):
        left = end - time.monotonic()
        if left < NVBENCH_START_SECONDS:
            print(f"no time left for round {number + 1} of nvbench", file=sys.stderr)
            return
        order = random.Random(asked.seed + number).sample(KERNELS, len(KERNELS))
        try:
            report.answers += nvbench(order, number, left)
        except RuntimeError as error:
            report.absent["nvbench"] = str(error)
            return
        report.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default="farm,kernel_tuner,triton,nvbench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no kernel is begun, nvbench's aside")
    parser.add_argument("--nvbench-seconds", type=float, default=90.0, help="after which nvbench begins no kernel")
    parser.add_argument(
        "--reference-seconds", type=float, default=5.0, help="of each reference, the first one left out"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the orders")
    parser.add_argument("--result", default="against_tools", help="name of the files in results/")
    asked = parser.parse_args()
    end_like_interrupted()
    os.environ["CUDA_VISIBLE_DEVICES"] = find_cards()[0].uuid  # before any tool can start CUDA on another card
    wanted = asked.tools.split(",")
    whys = {name: why_absent(TOOLS[name][1]) if name in TOOLS else why_nvbench_absent() for name in wanted}
    absent = {name: why for name, why in whys.items() if why is not None}
    tools = [name for name in wanted if name not in absent]
    if "nvbench" in tools:
        tools.append("nvbench_batched")
    report = Report(asked.result, asked.rounds, absent)
    try:
        measure(report, tools, asked)
    except KeyboardInterrupt:
        print("Interrupted: reporting what was answered.", file=sys.stderr)
    finally:
        report.write(show=True)


if __name__ == "__main__":
    main()
