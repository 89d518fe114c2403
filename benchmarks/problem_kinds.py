"""Do batches, FP8 with scale factors, fused operations, groups of rows and sparse weights take as long in the farm as in PyTorch on the same card?

    python -m benchmarks.problem_kinds [--rounds 7] [--kinds batch,scale,fused,groups,sparse]  on a card, with PyTorch 2.10 or newer

The farm measures cuBLASLt's own choice, and of groups the fastest of cuBLASLt's choice and some kernels of Triton, which are compiled
first: FARM_TRITON_VERSION is the version that is installed. Of cuSPARSELt it measures PyTorch's algorithm. PyTorch computes the same problem with

  batch    torch.bmm
  scale    torch._scaled_mm, without fast accumulation: by tensor, by row, and by blocks of 1x128 and 128x128
  fused    torch.addmm with a bias, and torch._addmm_activation with a bias and relu or gelu. It fuses no activation without a bias.
  groups   torch._grouped_mm in bf16, and torch._scaled_grouped_mm in FP8 with factors of rows, with the ends of groups on the card. PyTorch
           2.11 has kernels of CUTLASS for them, not cuBLASLt.
  sparse   torch._cslt_sparse_mm, of weights that torch._cslt_compress has compressed

from a graph over as many operand sets as cover the L2 twice, and prefers cuBLASLt. In each round, in shuffled order, both measure each
problem once, in random order: the burst time after a rest. The ratio of a problem is the farm's time over PyTorch's, median over
rounds, with the smallest and the largest. torch.profiler names the kernels of both: only where they are the same must the
times agree. A problem that one of both lacks is told with its error.

Figures: for each kind, `problems`, `same_kernel`, and over problems with the same kernel `worst_pct` and `median_pct`, the distance of
the ratio from 1, and `close`, how many are within 3%. `median_ratio` is that of all problems of the kind. Results of some kinds alone are
written under a name of their own.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from typing import Any

from benchmarks.common import first_card, markdown, write
from benchmarks.torch_graph import TorchGraph, cold_sets
from farm.errors import FarmError
from farm.fusion import Activation
from farm.gemm import Problem
from farm.groups import Groups
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules
from farm.scale import Blocks
from farm.sparsity import Sparsity

BATCHES = (
    "128x128x128 f16 nt batch=1024",
    "512x512x128 bf16 nt batch=64",
    "512x128x512 bf16 nn batch=64",
    "8x2048x128 bf16 nt batch=512",
    "16x1536x2048 bf16 nt batch=128",
    "256x256x256 f32 nn batch=64",
)

SCALED = tuple(
    f"{shape} f8e4m3 nt scale={scale}"
    for shape in ("64x4096x7168", "512x7168x2048", "4096x4096x7168", "4096x28672x8192")
    for scale in ("tensor", "row", "1x128", "1x128:128x128")
)

FUSED = tuple(
    f"{shape} nt fused={fused}"
    for shape in ("64x16384x4096 bf16", "512x4096x4096 f16", "4096x16384x4096 bf16", "1024x1024x1024 f32")
    for fused in ("bias", "bias+relu", "bias+gelu")
)

SIZES = ((64,) * 32, (512,) * 8, (300, 12, 0, 0, 40, 200, 1, 15), (4,) * 128)

GROUPED = tuple(
    f"{sum(sizes)}x{n}x{k} {kind} groups={Groups.of(sizes)}"
    for kind, several in (("bf16 nt", SIZES), ("f8e4m3 nt scale=row", SIZES[:3]))
    for n, k in ((1536, 2048), (4096, 7168))
    for sizes in several
)

CUBLASLT = ("cublaslt(algorithm=0)",)

KERNELS = {
    "groups": (
        *CUBLASLT,
        "triton(tile_m=16,tile_n=64,tile_k=128,group_m=1,warps=4,stages=4)",
        "triton(tile_m=16,tile_n=128,tile_k=128,group_m=1,warps=4,stages=4)",
        "triton(tile_m=64,tile_n=128,tile_k=64,warps=4,stages=4)",
        "triton(tile_m=64,tile_n=128,tile_k=128,warps=4,stages=3)",
        "triton(tile_m=64,tile_n=256,tile_k=64,warps=4,stages=4)",
        "triton(tile_m=128,tile_n=128,tile_k=64,warps=8,stages=4)",
        "triton(tile_m=128,tile_n=128,tile_k=128,warps=8,stages=3)",
        "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3)",
    ),
    "sparse": ("cusparselt(algorithm=1)",),  # PyTorch's choice, algorithm 0
}
"""What the farm measures the fastest of, by kind; of other kinds cuBLASLt's choice."""

SPARSE = tuple(
    f"{shape} {types} nt sparsity=2:4"
    for shape in ("64x4096x4096", "512x28672x4096", "4096x4096x14336", "4096x8192x8192")
    for types in ("bf16", "f8e4m3")
)

KINDS = {"batch": BATCHES, "scale": SCALED, "fused": FUSED, "groups": GROUPED, "sparse": SPARSE}

NAMES = {
    "batch": ("batches", "`bmm`"), "scale": ("scale factors", "`_scaled_mm`"),
    "fused": ("fused operations", "`addmm` with an activation"), "groups": ("groups", "`_grouped_mm`"),
    "sparse": ("sparse weights", "`_cslt_sparse_mm`"),
}  # fmt: skip
"""What the summary calls a kind, and PyTorch's function for it."""

CLOSE_PCT = 3

ALGORITHM = ("tile", "stages", "cluster", "split_k", "algorithm_id", "config_id")
"""Details of a row that say what the library chose."""

BEGAN = time.perf_counter()
REST_SECONDS = 0.5
LOAD_SECONDS = 0.05
BRIEF = MeasuringRules(timing=TimingRules(min_samples=5, max_seconds=0.05, warmup_seconds=0.01))
"""How the fastest kernel is found."""


def torch_types(torch: Any) -> Mapping[str, Any]:
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn}


def factors(torch: Any, blocks: Blocks, lines: int, k: int) -> Any:
    """[blocks of lines, blocks along k], as `_scaled_mm` wants them: those of 1x128 lie line by line, others along k."""
    across, along = blocks.counts(lines, k)
    numbers = torch.rand((across, along), device="cuda") * 1.5 + 0.5
    return numbers.t().contiguous().t() if blocks == Blocks(1, 128) else numbers


def operand_set(torch: Any, problem: Problem) -> tuple[Any, ...]:
    """What `call_of` takes: A, B, and factors or a bias. A sparse B is compressed."""
    s, types, scale = problem.shape, torch_types(torch), problem.scale
    batch = () if problem.batch == 1 else (problem.batch,)
    of_b = batch if problem.groups is None else (problem.matrices_of_b,)

    def filled(kind: str, *extents: int) -> Any:
        wide = types[kind] if kind in ("f32", "f16") else torch.float16  # a matrix of each expert takes gigabytes
        return torch.rand(extents, device="cuda", dtype=wide).mul_(2).sub_(1).to(types[kind])

    a = filled(problem.types.ab, *batch, s.m, s.k)
    lying = (s.n, s.k) if problem.layout.b_transposed else (s.k, s.n)
    b = filled(problem.types.ab, *of_b, *lying)
    if problem.sparsity is Sparsity.TWO_OF_FOUR:
        # Of each four numbers along k, the two with the lowest random scores are left out.
        scores = torch.rand((s.n, s.k // 4, 4), device="cuda")
        kept = scores.argsort(dim=2).argsort(dim=2) >= 2
        return a, torch._cslt_compress(torch.where(kept.reshape(s.n, s.k), b.float(), 0.0).to(b.dtype))
    b = b.mT if problem.layout.b_transposed else b
    if problem.groups is not None:
        ends = torch.tensor([*accumulate(problem.groups.sizes)], dtype=torch.int32, device="cuda")
        of_rows = () if scale.of_a is None else (filled("f32", s.m), filled("f32", *of_b, s.n))
        return (a, b, ends, *of_rows)
    if scale.of_a is not None and scale.of_b is not None:
        return a, b, factors(torch, scale.of_a, s.m, s.k), factors(torch, scale.of_b, s.n, s.k).t()
    return (a, b, filled(problem.types.cd, s.n)) if problem.fused.bias else (a, b)


def call_of(torch: Any, problem: Problem) -> Callable[..., Any]:
    """PyTorch's function for a problem of this benchmark."""
    out = torch_types(torch)[problem.types.cd]
    if problem.batch != 1:
        batched: Callable[..., Any] = torch.bmm
        return batched
    if problem.groups is not None and problem.scale.of_a is None:
        return lambda a, b, ends: torch._grouped_mm(a, b, offs=ends)
    if problem.groups is not None:
        return lambda a, b, ends, of_a, of_b: torch._scaled_grouped_mm(a, b, of_a, of_b, offs=ends, out_dtype=out)
    if problem.sparsity is Sparsity.TWO_OF_FOUR:
        # The transposed product, whose result lies as D does. Of 16-bit operands D has their type, and none may be given.
        given = None if problem.types.ab == problem.types.cd else out
        return lambda a, b: torch._cslt_sparse_mm(b, a.t(), out_dtype=given, transpose_result=True, alg_id=0)
    if problem.scale.of_a is not None:
        return lambda a, b, of_a, of_b: torch._scaled_mm(a, b, scale_a=of_a, scale_b=of_b, out_dtype=out)
    if problem.fused.activation is None:
        return lambda a, b, bias: torch.addmm(bias, a, b)
    gelu = problem.fused.activation is Activation.GELU
    return lambda a, b, bias: torch._addmm_activation(bias, a, b, use_gelu=gelu)


def kernels_of(torch: Any, launch: Callable[[], object]) -> list[str]:
    """The names of the kernels that it launches."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        launch()
        torch.cuda.synchronize()
    on_card = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sorted({name for name in on_card if not name.startswith(("Memset", "Memcpy"))})


def candidates(kind: str, line: str) -> list[Configuration]:
    """What the farm may measure of a problem."""
    return [Configuration.parse(f"{kernel} {line}") for kernel in KERNELS.get(kind, CUBLASLT)]


def fastest(device: Any, given: Sequence[Configuration]) -> Configuration:
    """The fastest of several in a brief measurement. Raises the `FarmError` of the last where the card runs none."""
    times: dict[Configuration, float] = {}
    for configuration in given:
        try:
            times[configuration] = device.measure(configuration, BRIEF).runtime_ms
        except FarmError as error:
            print(f"{configuration}: {error}", file=sys.stderr)
            last = error
    if not times:
        raise last
    return min(times, key=times.__getitem__)


def prepare(device: Any, given: Sequence[Configuration]) -> None:
    """Compiles kernels at once. What cannot be compiled says so when it is measured."""

    def prepared(configuration: Configuration) -> None:
        with suppress(FarmError):
            device.prepare(configuration)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(prepared, given))


class Pair:
    """A problem, measured by the farm and by what a graph launches."""

    def __init__(self, device: Any, configuration: Configuration, graph: TorchGraph) -> None:
        self.configuration = configuration
        self._device, self._graph = device, graph
        self.farm_ms: list[float] = []
        self.other_ms: list[float] = []
        self.algorithm: dict[str, Any] = {}

    def measure(self, chance: random.Random) -> None:
        """Both, once, in random order. Raises `FarmError` and keeps neither."""
        other_first = chance.random() < 0.5
        other_ms = self._other() if other_first else None
        row = self._farm()
        self.other_ms.append(self._other() if other_ms is None else other_ms)
        self.farm_ms.append(row.runtime_burst_ms)
        self.algorithm = {name: row.details.get(name) for name in ALGORITHM}

    def _farm(self) -> Any:
        """After a rest, as the other: the farm does not know what the graph has drawn."""
        time.sleep(REST_SECONDS)
        self._device.tiers.needs_rest()
        return self._device.measure(self.configuration, MeasuringRules())

    def _other(self) -> float:
        return self._graph.times(LOAD_SECONDS, REST_SECONDS)[0]

    def times(self, other: str) -> dict[str, Any]:
        """The kernel and the medians. `other` names the time of the graph."""
        ratios = [farm / other for farm, other in zip(self.farm_ms, self.other_ms, strict=True)]
        return {
            "kernel": str(self.configuration.kernel), "farm_ms": statistics.median(self.farm_ms), other: statistics.median(self.other_ms),
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        }  # fmt: skip


class TorchPair(Pair):
    """A problem, measured by the farm and by PyTorch."""

    def __init__(self, torch: Any, device: Any, line: str, given: Sequence[Configuration]) -> None:
        self.line = line
        configuration = given[0] if len(given) == 1 else fastest(device, given)
        problem = configuration.problem
        call = call_of(torch, problem)
        # A sparse B is there compressed alone.
        set_bytes = problem.operand_bytes if problem.sparsity is Sparsity.NONE else problem.bytes
        sets = cold_sets(set_bytes, device.identity.traits.l2_bytes)
        operands = [operand_set(torch, problem) for _ in range(sets)]
        super().__init__(device, configuration, TorchGraph(torch, call, operands))
        self.torch_kernels = kernels_of(torch, lambda: call(*operands[0]))
        with device.replaying(configuration, OperandRules()) as work:
            self.farm_kernels = kernels_of(torch, lambda: work.kernel.launch(0))

    def row(self) -> dict[str, Any]:
        return {
            "problem": self.line, **self.times("torch_ms"),
            "same_kernel": self.farm_kernels == self.torch_kernels, "farm_kernels": self.farm_kernels,
            "torch_kernels": self.torch_kernels, "algorithm": self.algorithm,
        }  # fmt: skip


def in_rounds(pairs: Sequence[Pair], rounds: int, chance: random.Random) -> None:
    """Measures every pair once in each round, in shuffled order."""
    for number in range(rounds):
        for pair in chance.sample(pairs, len(pairs)):
            try:
                pair.measure(chance)
            except FarmError as error:
                print(f"round {number}, {pair.configuration}: {error}", file=sys.stderr)
        print(f"round {number}: {time.perf_counter() - BEGAN:.0f} s", file=sys.stderr)


def figures(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Of each kind."""
    said: dict[str, Any] = {}
    for kind, of_kind in rows.items():
        off = [100 * abs(row["ratio"] - 1) for row in of_kind if row["same_kernel"]]
        said[kind] = {
            "problems": len(of_kind),
            "same_kernel": len(off),
            "worst_pct": round(max(off), 2) if off else None,
            "median_pct": round(statistics.median(off), 2) if off else None,
            "close": sum(one <= CLOSE_PCT for one in off),
            "median_ratio": round(statistics.median(row["ratio"] for row in of_kind), 3) if of_kind else None,
        }
    return said


def summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of the kinds that were measured, as docs/problems.md shows them."""

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{value:.2g}%"

    columns = ["kind", "PyTorch", "problems", "same kernel", "median difference", f"within {CLOSE_PCT}%", "worst"]
    return markdown(
        columns,
        [
            [
                *NAMES[kind], of["problems"], of["same_kernel"], percent(of["median_pct"]), of["close"], percent(of["worst_pct"]),
            ]
            for kind, of in found.items()
            if of["problems"]
        ],
    )  # fmt: skip


def table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    columns = ["problem", "kernel", "farm ms", "PyTorch ms", "ratio", "smallest", "largest", "same kernel"]
    return markdown(
        columns,
        [
            [
                row["problem"], row["kernel"], f"{row['farm_ms']:.5f}", f"{row['torch_ms']:.5f}",
                *(f"{row[name]:.3f}" for name in ("ratio", "ratio_min", "ratio_max")), "yes" if row["same_kernel"] else "no",
            ]
            for of_kind in rows.values()
            for row in of_kind
        ],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="of batch, scale, fused, groups and sparse, separated by commas"
    )
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}: use {', '.join(KINDS)}")
    chance = random.Random(7)
    pairs: dict[str, list[TorchPair]] = {kind: [] for kind in kinds}
    failed: dict[str, str] = {}
    with first_card() as device:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.preferred_blas_library("cublaslt")  # whose heuristic the farm asks, too
        lines = {line: candidates(kind, line) for kind in kinds for line in KINDS[kind]}
        prepare(device, [one for given in lines.values() if len(given) > 1 for one in given])
        for kind in kinds:
            for line in KINDS[kind]:
                try:
                    pairs[kind].append(TorchPair(torch, device, line, lines[line]))
                except (FarmError, RuntimeError, ValueError) as error:
                    failed[line] = str(error).splitlines()[0]
                    print(f"{line}: {failed[line]}", file=sys.stderr)
        print(f"prepared: {time.perf_counter() - BEGAN:.0f} s", file=sys.stderr)
        in_rounds([pair for of_kind in pairs.values() for pair in of_kind], asked.rounds, chance)
        version = torch.__version__
    rows = {kind: [pair.row() for pair in of_kind if pair.farm_ms] for kind, of_kind in pairs.items()}
    found = figures(rows)
    said = {**found, "torch": version, "failed": failed, "rows": rows}
    name = "_".join(("problem_kinds", *(kinds if len(kinds) < len(KINDS) else ())))
    write(name, said, f"{summary(found)}\n\n{table(rows)}", repetitions=asked.rounds)


if __name__ == "__main__":
    main()
