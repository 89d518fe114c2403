"""Are the burst and the settled time of a row what an independent tool sees, and what does each protocol say?

    python -m benchmarks.two_times [--rounds 3] [--kernels 14] [--seconds 5]         on a card, with PyTorch

Each kernel is cuBLASLt's own choice. PyTorch runs the same GEMM, from a graph over as many operand sets as cover the L2 twice:

  burst reference     1 s of rest, then the median of replays between 2 and 20 ms
  settled reference   then `--seconds` of load: the mean time after its first second

and between these, in each round in shuffled order, the farm measures it: under `farm` without and with power, and under the other
protocols that this card can follow; `fixed-power`, which takes 5 s, in the first round alone. Errors are in percent: of the median
over rounds, and of every row. A kernel is held where its settled reference is 2% above its burst reference.

Figures: `burst_median_error_pct` and `settled_median_error_pct` (against the references, over kernels), `settled_worst_error_pct`,
`settled_against_fixed_power_pct`, `agreement_pct` (burst, runtime and settled of the kernels that are not held: the largest
distance of two), `seconds` of each way of measuring (medians), and `power_limited_wrong` rows.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.common import first_card, markdown, write
from benchmarks.torch_graph import TorchGraph, cold_sets
from farm.errors import FarmError
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.protocols import ProtocolName
from workers.measure.explain import Explanation

KERNELS = (
    "512x4096x4096 bf16:bf16:f32",
    "2048x4096x14336 bf16:bf16:f32",
    "2048x6144x4096 bf16:bf16:f32",
    "4096x4096x4096 f16:f16:f32",
    "8192x8192x8192 bf16:bf16:f32",
    "1024x8192x8192 bf16:bf16:f32",
    "4096x4096x4096 f8e4m3:bf16:f32 nt",
    "4096x4096x4096 i8:i32:i32 nt",
    "4096x4096x4096 tf32:f32:f32",
    "4096x4096x4096 f64",
    "4096x4096x4096 f32",
    "8x8192x8192 bf16:bf16:f32",
    "512x512x512 f16:f16:f32",
    "128x8192x512 f16:f16:f32",
)

HELD = 0.02
"""A settled time that is so much above the burst time is that of a kernel that the limiter holds."""

ONCE = (ProtocolName.FIXED_POWER,)
"""Protocols of the first round alone."""

WAYS: dict[str, MeasuringRules] = {
    "farm": MeasuringRules(),
    "farm, power": MeasuringRules(power="all"),
    **{
        name: MeasuringRules(protocol=name)
        for name in ProtocolName
        if name not in (ProtocolName.FARM, ProtocolName.FIXED_FREQUENCY)
    },
}


def torch_gemm(torch: Any, configuration: Configuration, l2_bytes: int) -> TorchGraph:
    """The same GEMM of PyTorch's."""
    types, s = configuration.problem.types, configuration.problem.shape
    kind = types.ab.of_a.value
    made_as = {
        "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64, "f8e4m3": torch.float8_e4m3fn,
        "i8": torch.int8,
    }.get(kind, torch.float32)  # fmt: skip
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    torch.backends.cuda.preferred_blas_library("cublaslt")  # whose heuristic the farm asks, too

    def filled(*extents: int) -> Any:
        if made_as is torch.int8:
            return torch.randint(-127, 128, extents, device="cuda", dtype=torch.int8)
        wide = torch.rand(extents, device="cuda", dtype=torch.float64 if kind == "f64" else torch.float32)
        return (wide * 2 - 1).to(made_as)

    transposed = configuration.problem.layout.b_transposed
    operands = [
        (filled(s.m, s.k), filled(s.n, s.k).t() if transposed else filled(s.k, s.n))
        for _ in range(cold_sets(configuration.problem.operand_bytes, l2_bytes))
    ]
    return TorchGraph(torch, _call(torch, kind), operands)


def _call(torch: Any, kind: str) -> Callable[[Any, Any], Any]:
    if kind == "f8e4m3":
        one = torch.ones((), device="cuda")
        return lambda a, b: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    multiply: Callable[[Any, Any], Any] = torch._int_mm if kind == "i8" else torch.matmul
    return multiply


def off(found: float | None, truth: float) -> float | None:
    """Percent from the truth."""
    return None if found is None else 100 * (found / truth - 1)


def figures(rows: list[dict[str, Any]], references: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of the document, from rows and references by kernel."""
    by = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
    for row in rows:
        by[row["kernel"], row["way"]].append(row)
    burst, settled, fixed, agreement, wrong = [], [], [], [], 0
    for kernel, known in references.items():
        for way in ("farm", "farm, power"):
            own = by[kernel, way]
            if not own:
                continue
            burst.append(abs(off(statistics.median(r["burst_ms"] for r in own), known["burst_ms"]) or 0.0))
            settled.append(abs(off(statistics.median(r["settled_ms"] for r in own), known["settled_ms"]) or 0.0))
            for other in by[kernel, ProtocolName.FIXED_POWER]:
                fixed += [abs(off(r["settled_ms"], other["runtime_ms"]) or 0.0) for r in own]
            wrong += sum(r["power_limited"] != known["held"] for r in own)
            if not known["held"]:
                agreement += [
                    100 * (max(times) / min(times) - 1)
                    for r in own
                    if (times := [r["burst_ms"], r["runtime_ms"], r["settled_ms"]])
                ]
    ways = {way: [row["seconds"] for row in rows if row["way"] == way] for way in WAYS}
    return {
        "burst_median_error_pct": round(statistics.median(burst), 2),
        "burst_worst_error_pct": round(max(burst), 2),
        "settled_median_error_pct": round(statistics.median(settled), 2),
        "settled_worst_error_pct": round(max(settled), 2),
        "settled_against_fixed_power_pct": round(statistics.median(fixed), 2) if fixed else None,
        "agreement_pct": round(max(agreement), 2) if agreement else None,
        "agreement_median_pct": round(statistics.median(agreement), 2) if agreement else None,
        "power_limited_wrong": wrong,
        "seconds": {way: round(statistics.median(spent), 3) for way, spent in ways.items() if spent},
    }


def row_of(
    kernel: str, way: str, number: int, row: Measurement, seconds: float, explanation: Explanation
) -> dict[str, Any]:
    return {
        "kernel": kernel, "way": way, "round": number, "runtime_ms": row.runtime_ms, "burst_ms": row.runtime_burst_ms,
        "settled_ms": row.runtime_settled_ms, "settled_rse": row.runtime_settled_rse, "power_w": row.power_w,
        "power_limited": row.power_limited, "throttle_reasons": row.throttle_reasons, "sm_clock_mhz": row.sm_clock_mhz,
        "rested_s": row.details.get("rested_s"), "seconds": seconds,
        "notes": explanation.notes,
    }  # fmt: skip


def table(rows: list[dict[str, Any]], references: dict[str, dict[str, Any]]) -> str:
    columns = ["kernel", "burst ms", "settled ms", "held", *(f"{way}: {time} %" for way in ("farm", "farm, power") for time in ("burst", "settled")), *(f"{way} %" for way in WAYS if not way.startswith("farm"))]  # fmt: skip
    found = []
    for kernel, known in references.items():
        line: list[Any] = [kernel, known["burst_ms"], known["settled_ms"], "yes" if known["held"] else "no"]
        for way in WAYS:
            own = [row for row in rows if row["kernel"] == kernel and row["way"] == way]
            times = ("burst_ms", "settled_ms") if way.startswith("farm") else ("runtime_ms",)
            for name in times:
                truth = known["burst_ms" if name == "burst_ms" or way == ProtocolName.AICONFIGURATOR else "settled_ms"]
                value = off(statistics.median(row[name] for row in own), truth) if own else None
                line.append("" if value is None else f"{value:+.1f}")
        found.append(line)
    return markdown(columns, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=len(KERNELS), help="the first so many")
    parser.add_argument("--seconds", type=float, default=5.0, help="load of the settled reference")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    references: dict[str, dict[str, Any]] = {}
    chance = random.Random(7)
    began = time.perf_counter()
    with first_card() as device:
        import torch

        configurations = {
            line: Configuration.parse(f"cublaslt(algorithm=0) {line}") for line in KERNELS[: asked.kernels]
        }
        for line, configuration in configurations.items():
            gemm = torch_gemm(torch, configuration, device.identity.traits.l2_bytes)
            bursts = [gemm.times(0.05)[0] for _ in range(2)]
            burst_ms, settled_ms = gemm.times(asked.seconds)
            assert settled_ms is not None
            burst_ms = statistics.median([*bursts, burst_ms])
            references[line] = {
                "burst_ms": burst_ms, "settled_ms": settled_ms, "held": settled_ms > (1 + HELD) * burst_ms,
            }  # fmt: skip
            del gemm
            torch.cuda.empty_cache()
        print(f"references: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        for number in range(asked.rounds):
            for way, rules in WAYS.items():
                if number and way in ONCE:
                    continue
                for line in chance.sample(list(configurations), len(configurations)):
                    start, explanation = time.perf_counter(), Explanation()
                    try:
                        row = device.measure(configurations[line], rules, explanation)
                    except FarmError as error:
                        print(f"{way}, {line}: {error}", file=sys.stderr)
                        continue
                    rows.append(row_of(line, way, number, row, time.perf_counter() - start, explanation))
            print(f"round {number}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    said = {**figures(rows, references), "references": references, "rows": rows}
    write("two_times", said, table(rows, references), repetitions=asked.rounds)


if __name__ == "__main__":
    main()
