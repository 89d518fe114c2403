"""The same CUTLASS kernels timed by the farm and by NVIDIA's own `cutlass_profiler`, on a card of this host.

    pip install nvidia-curand                                         its headers, beside the extra `build`
    python -m benchmarks.cutlass_profiler --build FOLDER              where there is a compiler: the profiler, and the farm's kernels
    python -m benchmarks.cutlass_profiler --run FOLDER [--rounds 3]   where there is a card

The profiler is compiled from the sources in the wheel of CUTLASS, with the kernels below and without its reference
implementations: the farm verifies. Each of its kernels is the farm's, template argument by template argument (but that the farm
stores doubles two at a time); it computes D by columns, which is the farm's D' by rows, so all problems are square and layouts
are turned. The code around a kernel is not the farm's, and the compiler may order a main loop otherwise in it.

Its protocol, as its own code has it: rest 50 ms, look how many launches to time (100), 10 launches to warm up, 100 between two
events, over operand sets of three times the L2. Four tools follow it, two of them with all 100 launches in one CUDA graph:
  profiler, profiler_graph   cutlass_profiler, and with --use-cuda-graphs
  steps, steps_graph         the same steps, one by one, on the farm's own compiled kernels and operand sets (twice the L2)
What `farm`, its timing tier, says beside `steps_graph` is the difference of the protocols alone; what `steps_graph` says beside
`profiler_graph` is that of the compiled kernels. The tier lets a card settle: where the power limiter held the card while a
kernel was timed, its time is `held`, and 100 launches after a rest are faster.

Tools and sizes come in shuffled order, anew in each round; medians over the rounds count, and `spread` is the range over them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common import first_card, markdown, write
from farm import signing_keys
from farm.builds.cache import KernelCache
from farm.devices import traits_of_capability
from farm.installing import INSTALL
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.operands import OperandRules
from farm.settings import settings
from farm.signing import Purpose
from workers.kernels.sources import OwnKernels
from workers.kernels.toolchains.nvcc import Nvcc

SIZES = (512, 1024, 2048, 4096)
SIMT = "cutlass(stages=2,swizzle=8,tile_k=8,warp_m=32,warp_n=64,"
TENSOR = "cutlass(swizzle=8,tile_m=128,tile_n=128,"
HOPPER = "cutlass3x(cluster_n=2,swap=1,tile_n=128,"
"""The profiler's tile and cluster of 2 lie along its m, which is the farm's n."""

KERNELS = {
    "cutlass_simt_sgemm_128x128_8x2_nn_align1": (f"{SIMT}tile_m=128,tile_n=128)", "f32 nn"),
    "cutlass_simt_sgemm_128x128_8x2_tn_align1": (f"{SIMT}tile_m=128,tile_n=128)", "f32 nt"),
    "cutlass_simt_sgemm_64x64_8x2_nn_align1": (f"{SIMT}tile_m=64,tile_n=64)", "f32 nn"),
    "cutlass_tensorop_f16_s16816gemm_f16_128x128_32x4_nn_align8": (
        f"{TENSOR}stages=4,tile_k=32,warp_m=64,warp_n=64)", "f16 nn",
    ),
    "cutlass_tensorop_h16816gemm_128x128_32x4_nn_align8": (
        f"{TENSOR}stages=4,tile_k=32,warp_m=64,warp_n=64)", "f16:f16:f16 nn",
    ),
    "cutlass_sm90_tensorop_d1684gemm_f64_f64_f64_f64_f64_128x128x16_1x1x1_3_nnn_align1": (
        f"{TENSOR}stages=3,tile_k=16,warp_m=32,warp_n=64)", "f64 nn",
    ),
    "cutlass3x_sm90_tensorop_gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_warpspecialized_cooperative_epi_tma": (
        f"{HOPPER}tile_m=128)", "f16 nt",
    ),
    "cutlass3x_sm90_tensorop_gemm_f16_f16_f32_f16_f16_128x256x64_2x1x1_0_tnn_align8_warpspecialized_cooperative_epi_tma": (
        f"{HOPPER}tile_m=256)", "f16 nt",
    ),
}  # fmt: skip
"""The profiler's name of a kernel; the farm's kernel, and the types and layout of its problems."""

TOOLS = ("farm", "steps", "steps_graph", "profiler", "profiler_graph")
PAIRS = (
    ("farm", "steps_graph"), ("farm", "steps"), ("steps_graph", "profiler_graph"), ("steps", "profiler"), ("farm", "profiler"),
)  # fmt: skip
"""Which tool is held against which."""

RESTED_S, WARMING, TIMED = 0.05, 10, 100
"""The profiler's own: seconds of rest, launches to warm up, launches that are timed."""

PROFILER = "cutlass_profiler"


def configuration(name: str, size: int) -> Configuration:
    kernel, problem = KERNELS[name]
    return Configuration.parse(f"{kernel} {size}x{size}x{size} {problem}")


# --- building ----------------------------------------------------------------------------------------

STUB = """#include "cutlass/library/manifest.h"
namespace cutlass::library {
void initialize_reference_operations(Manifest &) {}
void initialize_all_reduction_op(Manifest &) {}
}
"""
CORE = ("handle.cu", "manifest.cpp", "operation_table.cu", "singleton.cu", "util.cu")


def _of_wheel(package: str) -> Path:
    """The folder of a package that is installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed: {INSTALL['build']} nvidia-curand")
    return Path(spec.submodule_search_locations[0])


def _generated(folder: Path) -> list[Path]:
    """The sources that CUTLASS generates for `KERNELS`, in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "cutlass_library.generator",
        "--operations",
        "gemm",
        "--generator-target",
        "library",
    ]
    command += ["--build-dir", str(folder), "--curr-build-dir", str(folder), "--log-level", "WARNING"]
    command += ["--architectures", "50;80;90a", "--cuda-version", "13.0", "--kernels", ",".join(KERNELS)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    made = sorted((folder / "generated").rglob("*.c*"))
    sources = [path for path in made if path.suffix in {".cu", ".cpp"}]
    missing = set(KERNELS) - {path.stem for path in sources}
    if missing:
        sys.exit(f"CUTLASS does not generate {', '.join(sorted(missing))}")
    return [path for path in sources if path.stem in KERNELS or not path.stem.startswith(("cutlass_", "cutlass3x_"))]


def build(folder: Path) -> None:
    """Puts the profiler and the farm's kernels into a folder."""
    compiler = Nvcc.find()
    source, toolkit = _of_wheel("cutlass_library") / "source", compiler.nvcc.parents[1]
    if not (toolkit / "include" / "curand_kernel.h").exists():
        sys.exit("There are no headers of cuRAND beside nvcc: pip install nvidia-curand")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "none.cu").write_text(STUB)
        tools = source / "tools"
        sources = [
            work / "none.cu",
            *_generated(work / "kernels"),
            *(tools / "library" / "src" / file for file in CORE),
        ]
        sources += sorted((tools / "profiler" / "src").glob("*.c*"))
        include = [source, tools / "library", tools / "util", tools / "profiler"]
        flags = ["-std=c++17", "-O2", "-DNDEBUG", "--expt-relaxed-constexpr", "-w"]
        flags += ["-gencode", "arch=compute_90a,code=sm_90a", "-DCUTLASS_ENABLE_CUBLAS=0", "-DCUTLASS_ENABLE_CUDNN=0"]
        flags += [f"-I{path / 'include'}" for path in include] + [f"-I{tools / 'library' / 'src'}"]

        def compiled(number: int, path: Path) -> str:
            made = work / f"{number}.o"
            subprocess.run([compiler.nvcc, *flags, "-x", "cu", "-c", path, "-o", made], check=True)
            print(path.name, file=sys.stderr)
            return str(made)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, itertools.count(), sources))
        link: list[str | Path] = [
            compiler.nvcc,
            *objects,
            "-o",
            folder / PROFILER,
            "-cudart",
            "static",
            f"-L{toolkit / 'lib'}",
        ]
        subprocess.run(link, check=True)
    signer = signing_keys.signer(settings(), Purpose.KERNEL)
    own = OwnKernels(KernelCache(folder), compiler.versions, signer, [signer.public])
    hopper = traits_of_capability((9, 0))
    for name in KERNELS:
        binary = configuration(name, SIZES[0]).binary(hopper)
        assert binary is not None
        own.get(binary)
        print(binary.label, file=sys.stderr)


# --- measuring ---------------------------------------------------------------------------------------


def profiled(folder: Path, size: int, graphs: bool) -> dict[str, float]:
    """The profiler's times of all its kernels for that size, in ms. Raises `RuntimeError` with its last words."""
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "said"
        command = [str(folder / PROFILER), "--operation=Gemm", f"--kernels={','.join(KERNELS)}"]
        command += [f"--{extent}={size}" for extent in "mnk"] + ["--alpha=1", "--beta=0", f"--output={report}"]
        command += ["--verification-enabled=false", "--dist=uniform,min:-1,max:1,scale:-1", "--verbose=false"]
        command += [f"--use-cuda-graphs={'true' if graphs else 'false'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        files = list(Path(name).glob("said*.csv"))
        if not files:
            words = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise RuntimeError(f"{PROFILER} ended with {done.returncode}: {' '.join(words)}")
        with files[0].open() as said:
            return times_of(csv.DictReader(said))


def times_of(rows: Iterable[Mapping[str, str]]) -> dict[str, float]:
    """Milliseconds by kernel, of those that ran, from the profiler's table."""
    return {row["Operation"]: float(row["Runtime"]) for row in rows if float(row["Runtime"] or 0) > 0}


def measured(folder: Path, rounds: int, seed: int) -> list[dict[str, Any]]:
    """What each tool said in each round: a row for each kernel and size."""
    os.environ["FARM_KERNELS"] = str(folder)
    shuffled, rows = random.Random(seed), list[dict[str, Any]]()
    with first_card() as device:
        for number in range(rounds):
            steps = list(itertools.product(SIZES, TOOLS))
            for size, tool in shuffled.sample(steps, len(steps)):
                if tool in ("profiler", "profiler_graph"):
                    found = profiled(folder, size, tool == "profiler_graph")
                    answers = [{"kernel": name, "ms": ms} for name, ms in found.items()]
                else:
                    names = shuffled.sample(list(KERNELS), len(KERNELS))
                    answers = [
                        timed(device, name, size)
                        if tool == "farm"
                        else {"kernel": name, "ms": by_steps(device, name, size, tool == "steps_graph")}
                        for name in names
                    ]
                rows += [{"round": number, "tool": tool, "size": size, **answer} for answer in answers]
            print(f"round {number + 1}", file=sys.stderr)
    return rows


def timed(device: Any, name: str, size: int) -> dict[str, Any]:
    """The farm's time of a kernel, and whether the power limiter held the card."""
    row = device.measure(configuration(name, size), MeasuringRules())
    return {"kernel": name, "ms": row.runtime_ms, "held": "power" in (row.throttle_reasons or "")}


def by_steps(device: Any, name: str, size: int, graph: bool) -> float:
    """The mean time of a launch by the profiler's protocol, in ms, on the farm's kernel and operand sets."""
    import cupy

    with device.replaying(configuration(name, size), OperandRules()) as work:
        stream, sets = cupy.cuda.get_current_stream(), work.rotation.sets
        work.drain()
        time.sleep(RESTED_S)
        for index in range(WARMING):
            work.kernel.launch(index % sets)
        captured = None
        if graph:
            stream.begin_capture()
            for index in range(TIMED):
                work.kernel.launch(index % sets)
            captured = stream.end_capture()
        before = stream.record()
        if captured is not None:
            captured.launch(stream)
        else:
            for index in range(TIMED):
                work.kernel.launch(index % sets)
        after = stream.record()
        after.synchronize()
        return float(cupy.cuda.get_elapsed_time(before, after)) / TIMED


# --- figures -----------------------------------------------------------------------------------------


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each kernel and size the tools' medians and spreads over the rounds, and how far the farm is from each."""
    found = []
    for name, size in itertools.product(KERNELS, SIZES):
        here = [row for row in rows if (row["kernel"], row["size"]) == (name, size)]
        one: dict[str, Any] = {"kernel": name, "size": size, "held": any(row.get("held") for row in here)}
        for tool in TOOLS:
            times = [row["ms"] for row in here if row["tool"] == tool]
            if times:
                one[f"{tool}_ms"] = statistics.median(times)
                one[f"{tool}_spread_pct"] = 100 * (max(times) - min(times)) / statistics.median(times)
        for tool, other in PAIRS:
            if f"{tool}_ms" in one and f"{other}_ms" in one:
                one[f"{tool} / {other} %"] = 100 * (one[f"{tool}_ms"] / one[f"{other}_ms"] - 1)
        found.append(one)
    return found


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sizes of the differences, apart where the power limiter held the card: median, worst, and their median with its sign."""
    said: dict[str, Any] = {}
    for (tool, other), held in itertools.product(PAIRS, (False, True)):
        key = f"{tool} / {other} %"
        off = [one[key] for one in found if one["held"] == held and key in one]
        if off:
            said[f"{tool} beside {other}{', held' if held else ''}"] = {
                "pairs": len(off),
                "median_pct": statistics.median(map(abs, off)),
                "worst_pct": max(map(abs, off)),
                "signed_median_pct": statistics.median(off),
            }
    return said


def table(found: Mapping[str, Any]) -> str:
    lines = [[pair, *(one[key] for key in one)] for pair, one in found["summary"].items()]
    keys = [f"{tool}{what}" for tool in TOOLS for what in ("_ms", "_spread_pct")]
    keys += [f"{tool} / {other} %" for tool, other in PAIRS]
    rows = [
        [one["kernel"], one["size"], "held" if one["held"] else "", *(one.get(key, "-") for key in keys)]
        for one in found["kernels"]
    ]
    return (
        "Differences in percent:\n\n"
        + markdown(["", "kernels and sizes", "median", "worst", "median with its sign"], lines)
        + "\n\n"
        + markdown(["kernel", "m = n = k", "", *(key.replace("_", " ").replace("pct", "%") for key in keys)], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--build", type=Path, metavar="FOLDER", help="make the profiler and the farm's kernels there")
    what.add_argument("--run", type=Path, metavar="FOLDER", help="time both, on the first card of this host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the orders")
    parser.add_argument("--result", default="cutlass_profiler", help="name of the files in results/")
    asked = parser.parse_args()
    if asked.build is not None:
        build(asked.build)
        return
    kernels = compared(measured(asked.run.resolve(), asked.rounds, asked.seed))
    found = {"summary": summary(kernels), "kernels": kernels}
    write(asked.result, found, table(found), repetitions=asked.rounds)


if __name__ == "__main__":
    main()
