"""Do the kernels of CUTLASS's examples take as long in the farm as when their own code launches them, on the same card?

    python -m benchmarks.cutlass_examples [--rounds 5] [--examples 55,57]   on a card, with nvcc and PyTorch
    python -m benchmarks.cutlass_examples --build FOLDER                    where there is nvcc: whether they are the farm's kernels

Examples 55 (weights of fewer bits), 57 (groups), 67 (FP8 with factors of blocks) and 68 (the same in groups) come with the wheel of
CUTLASS. Of a source file, the declarations of types and kernels are compiled, with cutlass_examples.cu behind them: it launches the
example's kernel, through the example's class, on operands that PyTorch allocates. `EXAMPLES` says what is changed in a source first,
and why. An example without changes has no equal in the farm, which measures the closest kernel.

The compiler says whether an example's main loop, epilogue and tile scheduler are the types of the farm's kernel: then the kernel is the
same one, and the times must agree. Both are compiled apart, and a compiler may order their instructions otherwise: `code` is the share
of machine instructions, by their numbers, that both have.

The example's launches are timed in a graph over as many operand sets as cover the L2 twice, as `problem_kinds` times PyTorch, and its
result is compared with PyTorch's. In each round, in shuffled order, both are measured once, in random order: the burst time after a rest.
The ratio of a problem is the farm's time over the example's, median over rounds.

Figures: for each example `problems`, `same_kernel`, and over problems with the same kernel `worst_pct`, `median_pct` and `close`, as in
`problem_kinds`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.common import first_card, markdown, write
from benchmarks.problem_kinds import BEGAN, CLOSE_PCT, Pair, figures, in_rounds, prepare, torch_types
from benchmarks.torch_graph import TorchGraph, cold_sets
from farm.devices import traits_of_capability
from farm.errors import FarmError
from farm.gemm import Problem
from farm.kernels import Configuration
from farm.kernels.binary import Binary, text_of
from farm.scale import Blocks
from farm.settings import settings
from workers.kernels.sources import own_kernels
from workers.kernels.toolchains.nvcc import Nvcc

FOLDERS = {
    "55": "55_hopper_mixed_dtype_gemm",
    "57": "57_hopper_grouped_gemm",
    "67": "67_hopper_fp8_warp_specialized_gemm_with_blockwise_scaling",
    "68": "68_hopper_fp8_warp_specialized_grouped_gemm_with_blockwise_scaling",
}

FILES = {
    **FOLDERS,
    # Its blocks are 1x128 and 128x128. Those of the other file are 128x128 for both, which the farm does not have.
    "67": "67_hopper_fp8_warp_specialized_gemm_with_groupwise_scaling",
}


@dataclass(frozen=True)
class Example:
    """An example's kernel and the farm's."""

    number: str
    about: str
    problems: tuple[str, ...]
    kernel: str
    types: str
    gemm: str = "Gemm"
    # Replacements in its source. Each text is there once.
    changes: tuple[tuple[str, str], ...] = ()
    # D lies by columns of what the example calls A·B, and the farm computes no transposed product.
    by_columns: bool = False
    fused: bool = False
    factors_by_columns: bool = False  # those of blocks of B, blocks of columns contiguous
    output: str = ""  # the type of D where it is not the farm's
    weights: str = ""  # the same of B
    max_error: float = 0.02  # of D, as a share of its largest element

    def configuration(self, problem: str) -> Configuration:
        shape, *rest = problem.split(maxsplit=1)
        return Configuration.parse(" ".join((self.kernel, shape, self.types, *rest)))

    @cached_property
    def binary(self) -> Binary:
        """The farm's kernel for Hopper."""
        found = self.configuration(self.problems[0]).binary(traits_of_capability((9, 0)))
        assert found is not None
        return found


E4M3, E5M2, F16 = ("cutlass::float_e4m3_t", "cutlass::float_e5m2_t", "cutlass::half_t")
LOW_BIT = "cutlass3x(tile_m=128,tile_n=128,tile_k=64,swap=1)"
FAST = "KernelPtrArrayTmaWarpSpecialized{}FP8FastAccum"
GROUPS = "cutlass3x(tile_m=128,tile_n=128,tile_k=128,cluster_m=2,swap=1)"
PINGPONG = "cutlass3x(tile_m=128,tile_n=128,tile_k=64,cluster_n=2,swap=1,schedule=1)"
BLOCKS = "cutlass3x(tile_m=128,tile_n=128,tile_k=128,cluster_m=2,swap=1,stream_k=1)"
GROUPED_BLOCKS = "cutlass3x(tile_m=128,tile_n=128,tile_k=128,cluster_n=2)"
WEIGHTS = f"using QuantType = {E4M3}"

EXAMPLES = (
    Example(
        number="55", about="weights in i8", problems=("512x8192x4096", "4096x8192x4096"), kernel=LOW_BIT, types="f16i8 nt",
        gemm="GemmConvertOnly", changes=((WEIGHTS, "using QuantType = int8_t"),),
    ),
    Example(
        number="55", about="weights in i4, a factor for 128 elements", problems=("512x8192x4096", "4096x8192x4096"),
        kernel=LOW_BIT, types="f16i4 nt scale=none:1x128", gemm="GemmScaleOnly",
        changes=((WEIGHTS, "using QuantType = cutlass::int4b_t"),),
    ),
    Example(
        number="55", about="unchanged: weights in e4m3, a type that the farm's pairs lack", problems=("4096x8192x4096",),
        kernel=LOW_BIT, types="f16i8 nt", gemm="GemmConvertOnly", weights="f8e4m3",
    ),
    Example(
        # Without fast accumulation, the registers of a tile of 256 x 128 do not suffice.
        number="57", about="cooperative, sums in 32 bits, tile 128x128", problems=("4096x4096x4096 groups=128*32", "3000x4096x4096 groups=700,12,0,1088,40,200,900,60"),
        kernel=GROUPS, types="f8e5m2e4m3:f16:f32 nt",
        changes=(
            (FAST.format("Cooperative"), FAST.format("Cooperative").removesuffix("FP8FastAccum")),
            ("Shape<_256,_128,_128>", "Shape<_128,_128,_128>"),
        ),
    ),
    Example(
        # Those of two tiles of 128 x 128 do not either, with sums in 32 bits.
        number="57", about="pingpong in f16", problems=("4096x4096x4096 groups=128*32", "3000x4096x4096 groups=700,12,0,1088,40,200,900,60"),
        kernel=PINGPONG, types="f16 nt", gemm="GemmPingpong",
        changes=(
            (FAST.format("Pingpong"), FAST.format("Pingpong").removesuffix("FP8FastAccum")),
            (FAST.format("Cooperative"), FAST.format("Cooperative").removesuffix("FP8FastAccum")),
            (f"using ElementA = {E4M3}", f"using ElementA = {F16}"), (f"using ElementB = {E5M2}", f"using ElementB = {F16}"),
            ("Shape<_128,_128,_128>", "Shape<_128,_128,_64>"), ("Shape<_256,_128,_128>", "Shape<_256,_128,_64>"),
        ),
    ),
    Example(
        number="57", about="unchanged: cooperative, fast accumulation, tile 256x128", problems=("4096x4096x4096 groups=128*32",),
        kernel=GROUPS, types="f8e5m2e4m3:f16:f32 nt", max_error=0.05,
    ),
    Example(
        number="67", about="nothing fused", problems=("4096x4096x4096", "2048x7168x2048"), kernel=BLOCKS,
        types="f8e4m3:f32:f32 nt scale=128x128:1x128",
        changes=(
            ("    EpilogueSchedule,\n    FusionOperation\n", "    EpilogueSchedule\n"),
            ("using ElementAmax       = typename EpilogueOutputOp::ElementAmax;\n", ""),
            ("using ActivationFunctor = typename EpilogueOutputOp::ActivationFn;\n", ""),
        ),
    ),
    Example(
        number="67", about="unchanged: ReLU, factors and maxima of D in the epilogue", problems=("4096x4096x4096",), kernel=BLOCKS,
        types="f8e4m3:f32:f32 nt scale=128x128:1x128", fused=True,
    ),
    Example(
        number="68", about="D in bf16 by rows, factors of B by blocks along k", problems=("4096x4096x4096 groups=128*32", "4096x7168x2048 groups=512*8"),
        kernel=GROUPED_BLOCKS, types="f8e4m3 nt scale=1x128:128x128",
        changes=(
            (f"ElementC    = {E4M3}", "ElementC    = cutlass::bfloat16_t"),
            ("LayoutC     = cutlass::layout::ColumnMajor", "LayoutC     = cutlass::layout::RowMajor"),
            ("ScaleGranularityK>;", "ScaleGranularityK, cute::GMMA::Major::MN, cute::GMMA::Major::K>;"),
        ),
    ),
    Example(
        number="68", about="unchanged: D in e4m3 by columns", problems=("4096x4096x4096 groups=128*32",), kernel=GROUPED_BLOCKS,
        types="f8e4m3 nt scale=1x128:128x128", by_columns=True, factors_by_columns=True, output="f8e4m3",
        max_error=0.08,
    ),
)  # fmt: skip

# --- building ----------------------------------------------------------------------------------------

UNNEEDED = ("reference/device/tensor_fill.h", "mixed_dtype_utils.hpp")
"""Includes that need headers of cuRAND: operands come from PyTorch."""

END_OF_DECLARATIONS = "/// Testbed utility types"
END_OF_KERNEL = "// A problem, where its operands lie"
ENTRIES = Path(__file__).with_suffix(".cu")
SAME = ("main loop", "epilogue", "scheduler")
_HOST_COUNT = re.compile(r"namespace cute \{.*?\}  // namespace cute\n", re.DOTALL)
_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


def source_of(example: Example, source: str) -> str:
    """What is compiled of an example whose file has that text. Raises `ValueError` where a change has no place in it."""
    declared = source.partition(END_OF_DECLARATIONS)[0]
    for before, after in example.changes:
        if declared.count(before) != 1:
            raise ValueError(f"{FILES[example.number]}.cu has {before!r} {declared.count(before)} times, not once")
        declared = declared.replace(before, after)
    lines = [line for line in declared.splitlines(keepends=True) if not any(name in line for name in UNNEEDED)]
    farm = _HOST_COUNT.sub("", text_of(example.binary.template).partition(END_OF_KERNEL)[0])
    defined = {**dict(example.binary.definitions), "GEMM": example.gemm, "FUSED": int(example.fused)}
    return "".join(
        [
            *lines,
            "\n#include <memory>\n#include <vector>\n",
            *_INCLUDE.findall(farm),
            *(f"#define {name} {value}\n" for name, value in defined.items()),
            f"namespace of_farm {{\n{_INCLUDE.sub('', farm)}}}\n",
            ENTRIES.read_text(),
        ]
    )


def build(example: Example, folder: Path, compiler: Nvcc) -> Path:
    """The library of an example in a folder. Raises `RuntimeError` with the compiler's last lines."""
    root = compiler.headers.parent
    place = root / "examples" / FOLDERS[example.number]
    name = folder / f"{example.number}-{EXAMPLES.index(example)}"
    text, made = name.with_suffix(".cu"), name.with_suffix(".so")
    text.write_text(source_of(example, (place / f"{FILES[example.number]}.cu").read_text()))
    options = [one for one in example.binary.options if not one.startswith("-D") or one == "-DNDEBUG"]
    include = (compiler.headers, root / "tools" / "util" / "include", root / "examples" / "common", place)
    toolkit = compiler.nvcc.parents[1] / "lib"
    command: list[str | Path] = [compiler.nvcc, *options, *(f"-I{one}" for one in include)]
    command += [f"-L{toolkit}"] if toolkit.is_dir() else []
    done = subprocess.run([*command, "-o", made, text], capture_output=True, text=True, check=False)
    if done.returncode:
        wrong = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line]
        raise RuntimeError(f"example {example.number}, {example.about}: {' '.join(wrong[:2]) or done.returncode}")
    return made


def same_parts(library: ctypes.CDLL) -> dict[str, bool]:
    """Which parts of the example's kernel are the farm's."""
    return dict(zip(SAME, map(bool, (c_int * len(SAME)).in_dll(library, "example_same")), strict=True))


def disassembler() -> Path | None:
    """The `cuobjdump` that comes with Triton; None without."""
    spec = find_spec("triton")
    place = Path(spec.submodule_search_locations[0], "backends/nvidia/bin/cuobjdump") if spec and spec.submodule_search_locations else None  # fmt: skip
    return place if place is not None and place.exists() else None


def instructions(library: Path, tool: Path) -> Counter[str]:
    """How often a library has each machine instruction, without what it works on."""
    said = subprocess.run([tool, "-sass", library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", said)
    return Counter(found)


def shared_code(one: Counter[str], other: Counter[str]) -> float:
    """The share of instructions that both have."""
    return 2 * (one & other).total() / (one.total() + other.total())


def built(examples: Sequence[Example], folder: Path) -> tuple[dict[Example, dict[str, Any]], dict[str, str]]:
    """Compiles all at once, the farm's kernels too: of each example its library, the `same` parts, and the share of `code`; and errors."""
    compiler, tool, kernels = Nvcc.find(), disassembler(), own_kernels(settings())
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[Example, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiling = {example: pool.submit(build, example, folder, compiler) for example in examples}
        binaries = {one: pool.submit(kernels.get, one) for one in {example.binary for example in examples}}
    for example, building in compiling.items():
        try:
            library, code = building.result(), binaries[example.binary].result().code
        except (FarmError, RuntimeError, ValueError) as error:
            failed[f"{example.number}, {example.about}"] = str(error)
            print(f"{example.number}, {example.about}: {error}", file=sys.stderr)
            continue
        made[example] = {"library": library, "same": same_parts(ctypes.CDLL(str(library))), "code": None}
        if tool is not None:
            beside = library.with_suffix(".farm.so")
            beside.write_bytes(code)
            made[example]["code"] = shared_code(instructions(library, tool), instructions(beside, tool))
    print(f"compiled: {time.perf_counter() - BEGAN:.0f} s", file=sys.stderr)
    return made, failed


# --- operands ----------------------------------------------------------------------------------------


class Given(ctypes.Structure):
    """`Given` of cutlass_examples.cu."""

    _fields_ = (
        *((name, c_int64) for name in "mnk"),
        *((name, c_void_p) for name in ("left", "right", "d", "factors_left", "factors_right")),
        *((name, c_int64) for name in ("factor_k", "groups")),
        *((name, c_void_p) for name in ("extents", "leading_left", "leading_right", "leading_d")),
    )


def types_of(torch: Any) -> Mapping[str, Any]:
    return {**torch_types(torch), "f8e5m2": torch.float8_e5m2}


class Operands:
    """An operand set of a problem in the farm's terms, where the example reads and writes it."""

    def __init__(self, torch: Any, example: Example, problem: Problem) -> None:
        self._torch, self._example, self._problem = torch, example, problem
        s, types, count = problem.shape, types_of(torch), problem.matrices_of_b
        self._blocks_a, self._blocks_b = problem.scale.of_a, problem.scale.of_b
        kinds = (problem.types.ab.of_a, example.weights or problem.types.ab.of_b)
        self._a, self._b = self._filled(kinds[0], s.m, s.k), self._filled(kinds[1], count, s.n, s.k)
        packed = self._b[..., 0::2] & 15 | self._b[..., 1::2] << 4 if kinds[1] == "i4" else self._b
        self._factors_a: Any = None
        self._factors_b: Any = None
        self._d = torch.empty(s.m * s.n, dtype=types[example.output or problem.types.cd], device="cuda")
        self._lying = {"a": self._a, "b": packed.contiguous(), "d": self._d}
        if (blocks := self._blocks_a) is not None:
            self._factors_a = torch.rand(blocks.counts(s.m, s.k), device="cuda") * 1.5 + 0.5
            groups = [self._factors_a[rows] for _, rows in self._groups()]
            self._lying["factors_a"] = torch.cat([(one.t() if blocks.lines == 1 else one).flatten() for one in groups])
        if (blocks := self._blocks_b) is not None:
            self._factors_b = torch.rand((count, *blocks.counts(s.n, s.k)), device="cuda") * 1.5 + 0.5
            if problem.scale.of_weights:
                self._factors_b = self._factors_b.half()
            columns = blocks.lines == 1 or example.factors_by_columns
            self._lying["factors_b"] = (self._factors_b.mT if columns else self._factors_b).contiguous()
        self._tables: list[Any] = []
        self.given = self._place()
        self.bytes = sum(one.nbytes for one in self._lying.values())

    def _filled(self, kind: str, *extents: int) -> Any:
        torch = self._torch
        limit = {"i8": 127, "i4": 8}.get(kind)
        if limit is not None:
            return torch.randint(-limit, limit + (kind == "i8"), extents, device="cuda", dtype=torch.int8)
        return torch.rand(extents, device="cuda", dtype=torch.float16).mul_(2).sub_(1).to(types_of(torch)[kind])

    def _groups(self) -> list[tuple[int, slice]]:
        """The number and the rows of each group: of one product, all of them."""
        groups = self._problem.groups
        sizes = (self._problem.shape.m,) if groups is None else groups.sizes
        return [(number, slice(end - size, end)) for number, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True))]  # fmt: skip

    def _place(self) -> Given:
        """Where the example finds them: addresses, and of groups those of tables of addresses."""
        s, groups, by_columns = self._problem.shape, self._groups(), self._example.by_columns
        swap = bool(dict(self._example.configuration(self._example.problems[0]).kernel.parameters)["swap"])
        firsts = [rows.start for _, rows in groups]
        steps = {
            "a": [first * s.k * self._lying["a"].element_size() for first in firsts],
            "d": [first * s.n * self._lying["d"].element_size() for first in firsts],
            "factors_a": [first * -(-s.k // 128) * 4 for first in firsts],
            "b": [number * self._lying["b"][0].nbytes for number, _ in groups],
        }
        if "factors_b" in self._lying:
            steps["factors_b"] = [number * self._lying["factors_b"][0].nbytes for number, _ in groups]
        addresses = {name: [one.data_ptr() + step for step in steps[name]] for name, one in self._lying.items()}
        grouped = self._problem.groups is not None
        places = {name: self._table(found) if grouped else found[0] for name, found in addresses.items()}
        places = {"factors_a": 0, "factors_b": 0, **places}
        left, right = ("b", "a") if swap else ("a", "b")
        of_b = self._problem.scale.of_b
        made = Given(
            m=s.n if swap else s.m, n=s.m if swap else s.n, k=s.k, left=places[left], right=places[right], d=places["d"],
            factors_left=places[f"factors_{left}"], factors_right=places[f"factors_{right}"],
            factor_k=(of_b and of_b.inner) or s.k, groups=len(groups) if grouped else 0,
        )  # fmt: skip
        if grouped:
            sizes = [rows.stop - rows.start for _, rows in groups]
            extents = [(s.n, size, s.k) if swap else (size, s.n, s.k) for size in sizes]
            made.extents = self._table(extents, self._torch.int32)
            made.leading_left = made.leading_right = self._table([s.k] * len(groups))
            made.leading_d = self._table(sizes if by_columns else [s.n] * len(groups))
        return made

    def _table(self, numbers: Sequence[Any], kind: Any = None) -> int:
        """The address of numbers on the card."""
        self._tables.append(self._torch.tensor(numbers, dtype=kind or self._torch.int64, device="cuda"))
        return int(self._tables[-1].data_ptr())

    def error(self) -> float:
        """How far D is from PyTorch's product at most, as a share of the largest element; infinite where it is not finite."""
        torch, s, worst = self._torch, self._problem.shape, 0.0
        for number, rows in self._groups():
            if rows.start == rows.stop:
                continue
            a, b = self._a[rows].float(), self._b[number].float()
            if self._blocks_a is not None:
                lines = self._blocks_a.lines or s.m
                a *= spread(self._factors_a[rows.start // lines : -(-rows.stop // lines)], a, self._blocks_a)
            if self._blocks_b is not None:
                b *= spread(self._factors_b[number], b, self._blocks_b)
            product = a @ b.t()
            wanted, lying = (
                product.relu() if self._example.fused else product,
                self._d[rows.start * s.n : rows.stop * s.n].float(),
            )
            found = lying.view(s.n, -1).t() if self._example.by_columns else lying.view(-1, s.n)
            off = float((found - wanted).abs().max() / wanted.abs().max())
            worst = max(worst, off if torch.isfinite(found).all() else float("inf"))
        return worst


def spread(factors: Any, matrix: Any, blocks: Blocks) -> Any:
    """The factor of each element of a matrix whose lines run along k."""
    across = factors.float().repeat_interleave(blocks.lines or matrix.shape[0], 0)
    return across.repeat_interleave(blocks.inner or matrix.shape[1], 1)[: matrix.shape[0], : matrix.shape[1]]


# --- measuring ---------------------------------------------------------------------------------------


class ExamplePair(Pair):
    """A problem, measured by the farm and by an example's kernel."""

    def __init__(self, torch: Any, device: Any, example: Example, problem: str, found: Mapping[str, Any]) -> None:
        configuration = example.configuration(problem)
        self._about = {
            "problem": f"{example.number}, {example.about}: {problem}", "changes": example.changes, "same": found["same"], "code": found["code"],
        }  # fmt: skip
        self.same_kernel = all(found["same"].values())
        library = ctypes.CDLL(str(found["library"]))
        library.example_workspace.argtypes, library.example_workspace.restype = (POINTER(Given),), c_int64
        library.example_prepare.argtypes, library.example_launch.argtypes = (
            (POINTER(Given), c_void_p),
            (c_int, c_void_p),
        )
        first = Operands(torch, example, configuration.problem)
        count = cold_sets(first.bytes, device.identity.traits.l2_bytes)
        self._operands = [first, *(Operands(torch, example, configuration.problem) for _ in range(count - 1))]
        self._workspace = torch.empty(library.example_workspace(first.given) + 1, dtype=torch.uint8, device="cuda")
        numbers = [accepted(library.example_prepare(one.given, self._workspace.data_ptr())) for one in self._operands]

        def launch(number: int) -> int:
            return accepted(library.example_launch(number, torch.cuda.current_stream().cuda_stream))

        super().__init__(device, configuration, TorchGraph(torch, launch, [(number,) for number in numbers]))
        self.error = max(one.error() for one in self._operands)
        if not self.error <= example.max_error:
            raise RuntimeError(f"the example's result is {self.error:.3g} of the largest element away from PyTorch's")

    def row(self) -> dict[str, Any]:
        return {**self._about, "same_kernel": self.same_kernel, "error": self.error, **self.times("example_ms")}


def accepted(number: int) -> int:
    """A number that is no negative `cutlass::Status`. Raises `RuntimeError`."""
    if number < 0:
        raise RuntimeError(f"CUTLASS refuses it with status {-number}")
    return number


def summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of the examples, as docs/problems.md shows them."""

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{value:.2g}%"

    columns = ["CUTLASS example", "problems", "same kernel", "median difference", f"within {CLOSE_PCT}%", "worst"]
    return markdown(
        columns,
        [
            [FILES[number], of["problems"], of["same_kernel"], percent(of["median_pct"]), of["close"], percent(of["worst_pct"])]
            for number, of in found.items()
            if of["problems"]
        ],
    )  # fmt: skip


def table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    columns = [
        "example and problem",
        "kernel",
        "farm ms",
        "example ms",
        "ratio",
        "smallest",
        "largest",
        "same kernel",
        "code",
    ]
    return markdown(
        columns,
        [
            [
                row["problem"], row["kernel"], f"{row['farm_ms']:.5f}", f"{row['example_ms']:.5f}",
                *(f"{row[name]:.3f}" for name in ("ratio", "ratio_min", "ratio_max")), kernel_of(row),
                shown(row["code"]),
            ]
            for of_number in rows.values()
            for row in of_number
        ],
    )  # fmt: skip


def shown(code: float | None) -> str:
    return "–" if code is None else f"{100 * code:.1f}%"


def kernel_of(row: Mapping[str, Any]) -> str:
    """`yes`, or what is not the farm's."""
    other = [part for part, same in row["same"].items() if not same]
    return f"closest: other {' and '.join(other)}" if other else "yes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", default=",".join(FOLDERS), help="of 55, 57, 67 and 68, separated by commas")
    parser.add_argument(
        "--build", type=Path, metavar="FOLDER", help="only compile, into a folder, and print what is the same"
    )
    asked = parser.parse_args()
    numbers = asked.examples.split(",")
    if unknown := set(numbers) - set(FOLDERS):
        parser.error(f"--examples: {', '.join(sorted(unknown))}: use {', '.join(FOLDERS)}")
    examples = [example for example in EXAMPLES if example.number in numbers]
    if asked.build is not None:
        made, failed = built(examples, asked.build)
        for example, found in made.items():
            print(f"example {example.number}, {example.about}: {kernel_of(found)}, {shown(found['code'])} of the code")
        sys.exit(1 if failed else 0)
    pairs: dict[str, list[ExamplePair]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory() as folder, first_card() as device:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        made, failed = built(examples, Path(folder))
        prepare(device, [example.configuration(example.problems[0]) for example in made])
        for example, found in made.items():
            for problem in example.problems:
                try:
                    pairs[example.number].append(ExamplePair(torch, device, example, problem, found))
                except (FarmError, RuntimeError) as error:
                    name = f"{example.number}, {example.about}: {problem}"
                    failed[name] = str(error).splitlines()[0]
                    print(f"{name}: {failed[name]}", file=sys.stderr)
        print(f"prepared: {time.perf_counter() - BEGAN:.0f} s", file=sys.stderr)
        in_rounds([pair for of_number in pairs.values() for pair in of_number], asked.rounds, random.Random(7))
        version = torch.__version__
    rows = {number: [pair.row() for pair in of_number if pair.farm_ms] for number, of_number in pairs.items()}
    found = figures(rows)
    said = {**found, "torch": version, "failed": failed, "rows": rows}
    name = "_".join(("cutlass_examples", *(numbers if len(numbers) < len(FOLDERS) else ())))
    write(name, said, f"{summary(found)}\n\n{table(rows)}", repetitions=asked.rounds)


if __name__ == "__main__":
    main()
