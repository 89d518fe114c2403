"""Does `farm check` find a kernel that does 3% more work, and does it leave equal versions alone?

    python -m benchmarks.checks            on the first card of this host, within 9 minutes

Three questions. The first two have four problems each, as the referee of own kernels takes about a second for each measurement; the
last has ten:
  same     An own kernel and the same one with another comment: none may be slower or faster.
  slower   The same kernel, and one that runs one more step of k for each 32: it must be found to be slower where steps of k take most
           of the time.
  library  cuBLASLt in two processes with equal libraries: none may be slower or faster.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import markdown, write

KERNEL = Path(__file__).parents[1] / "examples" / "kernels" / "tile_gemm.cu"
LOOP = "k_0 < k;"
LOOPS = {KERNEL.name: "k_0 < k + k / (1 << 30);", "slower.cu": "k_0 < k + k / 32;"}
"""Bounds of the same form. With another one, the compiler unrolls the loop otherwise, which alone changes the time by up to 22%."""

SHAPES = ["1024x1024x1024", "2048x1024x2048", "1000x1500x1024", "2048x2048x1024"]
LIBRARY_SHAPES = [f"{m}x4096x4096" for m in (16, 256, 1024, 4096, 8192)]


def own_kernel(folder: Path) -> str:
    """Writes the campaign of an own kernel, and returns its name."""
    block = {
        "family": "source", "file": KERNEL.name, "entry": "tile_gemm", "grid": ["ceil(n / BN)", "ceil(m / BM)", "batch"],
        "block": ["BM * BN / 16"], "shared_bytes": "4 * (BM + BN) * BK",
        "arguments": ["a", "b", "c", "d", "m", "n", "k", "alpha", "beta"],
        "requires": ["ab == 'f32'", "cd == 'f32'", "acc == 'f32'", "layout == 'nn'"],
        "parameters": {"BM": 64, "BN": 64, "BK": 16},
    }  # fmt: skip
    campaign = {"name": "own", "problems": {"shapes": SHAPES, "types": "f32"}, "kernels": [block]}
    (folder / "own.yaml").write_text(yaml.safe_dump(campaign))
    code = KERNEL.read_text()
    assert code.count(LOOP) == 1
    for name, loop in LOOPS.items():
        (folder / name).write_text(code.replace(LOOP, loop))
    (folder / "same.cu").write_text(f"{(folder / KERNEL.name).read_text()}// The same.\n")
    return "own.yaml"


def library(folder: Path) -> str:
    """Writes the campaign of cuBLASLt, and returns its name."""
    problems = {"shapes": LIBRARY_SHAPES, "types": ["f16", "bf16"], "layouts": "nt"}
    campaign = {"name": "library", "problems": problems, "kernels": [{"family": "cublaslt", "algorithm": 0}]}
    (folder / "library.yaml").write_text(yaml.safe_dump(campaign))
    return "library.yaml"


def checked(words: Sequence[str]) -> dict[str, Any]:
    """The figures of one run of `farm check`."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "farm", "check", *words, "--budget", "40s", "--json"],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    document = json.loads(done.stdout)
    found = [one for one in document["checks"] if "ratio" in one]
    return {
        "problems": document["pairs"],
        "device": document["device"],
        "exit_code": done.returncode,
        "verdicts": Counter(one["verdict"] for one in document["checks"]),
        "changes_pct": [round(100 * (one["ratio"] - 1), 3) for one in found],
        "widths_pct": [round(100 * (one["interval"][1] - one["interval"][0]), 3) for one in found if one["interval"]],
        "rounds": [one["rounds"] for one in found],
        "failures": [one["failure"] for one in document["checks"] if "failure" in one],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parts = {
        "same": (own_kernel, (KERNEL.name, "same.cu")),
        "slower": (own_kernel, (KERNEL.name, "slower.cu")),
        "library": (library, ("--head-env", "GEMM_FARM_SAME=1")),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts, default=[*parts], help="which questions to answer")
    asked = parser.parse_args()
    figures, rows = dict[str, Any](), list[list[str]]()
    for part in asked.parts:
        with tempfile.TemporaryDirectory() as name:
            make, versions = parts[part]
            folder = Path(name)
            campaign = make(folder)
            given = [str(folder / word) if word.endswith(".cu") else word for word in versions]
            found = checked([*given, "--campaign", str(folder / campaign), "--device", "cuda"])
        figures[part] = found
        counts = [
            str(found["verdicts"].get(verdict, 0))
            for verdict in ("unchanged", "slower", "faster", "undecided", "failed")
        ]
        changes = found["changes_pct"]
        span = f"{min(changes):+.2f} to {max(changes):+.2f}" if changes else "–"
        rows.append(
            [
                part,
                str(found["problems"]),
                *counts,
                span,
                f"{max(found['rounds'], default=0)}",
                f"{found['seconds']:.0f}",
            ]
        )
    heads = [
        "versions",
        "problems",
        "no change of 2%",
        "slower",
        "faster",
        "undecided",
        "failed",
        "change %",
        "most rounds",
        "s",
    ]
    write("checks", figures, markdown(heads, rows), repetitions=1)


if __name__ == "__main__":
    main()
