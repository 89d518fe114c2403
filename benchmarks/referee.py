"""Does the referee of own kernels refuse known cheats, and does it leave honest kernels alone?

    python -m benchmarks.referee            on the first card of this host, within 9 minutes

Two questions:
  cheats  Each kernel of `tests/gpu/own/cheats.cu` is measured as an own kernel. It must not get a row. Those that hang or fault run in
          a process of their own. If Triton is installed, so is each kernel of `tests/gpu/own/triton_cheats.py`; FARM_TRITON_VERSION
          is the installed version.
  honest  The source of the family `tiled` is measured as an own kernel in five variants, in turn with the family itself. Both times
          must agree within 1%. With Triton, so is the example in Triton, in turn with the family `triton`: another source of the same
          method.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import first_card, markdown, write
from farm.campaign import load
from farm.errors import FarmError
from farm.gemm import ElementType
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from farm.measurement import MeasuringRules, TimingRules
from workers.failure_kinds import kind_of
from workers.kernels.tiled import TiledKernel

ROOT = Path(__file__).parents[1]
OWN = ROOT / "tests" / "gpu" / "own"

QUICK = MeasuringRules(timing=TimingRules(min_samples=10, max_seconds=0.2, warmup_seconds=0.02))

CHEATS = {
    1: "returns at once", 2: "writes zeros", 3: "writes a constant", 4: "copies C", 5: "computes its first launch only",
    6: "computes its first launches only", 7: "computes where D is poisoned", 8: "keeps the result of each D",
    9: "keeps results by a fingerprint of a few inputs", 10: "keeps results by a fingerprint of all inputs",
    11: "computes one operand set of the rotation", 12: "leaves out the last step of k", 13: "leaves out a corner of D",
    14: "computes even rows only", 15: "writes the transposed result", 16: "computes in half precision",
    17: "writes random plausible numbers", 18: "writes behind D", 19: "writes before D", 20: "changes A", 21: "changes B",
    22: "writes the D of another operand set", 23: "leaves out C", 24: "zeroes A, C and D",
    25: "is slow where nothing changed", 26: "uses what lies behind A", 27: "computes every second launch",
    28: "never ends", 29: "faults", 30: "launches another kernel", 31: "leaves out 4% of k where nothing changed",
}  # fmt: skip
"""The values of CHEAT in cheats.cu."""

CHEATS_IN_TRITON = {
    1: "writes nothing", 2: "leaves out the last step of k", 3: "computes even tiles only", 4: "writes a constant",
    5: "computes in half precision", 6: "computes where D is poisoned", 7: "writes behind D", 8: "changes A",
}  # fmt: skip
"""The values of CHEAT in triton_cheats.py."""

IN_A_PROCESS = (28, 29)
"""Cheats that end the process that measures them."""

CHEATING_PROBLEM = "512x512x512 f32 nn alpha=1.5 beta=0.5"
CHEATING_IN_TRITON = "512x512x512 f32 nn alpha=1.5"


def own(file: Path, *, code: str | None = None, **keys: Any) -> Definition:
    """The definition of a file, in layout nn."""
    usual: dict[str, Any] = {
        "shared_bytes": "0", "arguments": ("a", "b", "c", "d", "m", "n", "k", "alpha", "beta"), "requires": ("layout == 'nn'",),
        "parameters": (),
    }  # fmt: skip
    return Definition(file=file.name, code=file.read_text() if code is None else code, **{**usual, **keys})


def cheats() -> Definition:
    """The kernels of cheats.cu; the parameter CHEAT chooses one, and 0 is honest."""
    return own(OWN / "cheats.cu", entry="cheat", grid=("n / 16", "m / 16"), block=("16", "16"), parameters=("CHEAT",))


def cheats_in_triton() -> Definition:
    """The kernels of triton_cheats.py; the parameter CHEAT chooses one, and 0 is honest."""
    return own(
        OWN / "triton_cheats.py", entry="cheat", grid=("m / 64", "n / 64"), block=(), arguments=("a", "b", "d", "m", "n", "k", "alpha"),
        parameters=("CHEAT",), warps="4", stages="3",
    )  # fmt: skip


def triton_example() -> Definition:
    """The kernel of examples/campaigns/own-kernel-triton.yaml."""
    campaign = load(ROOT / "examples" / "campaigns" / "own-kernel-triton.yaml", limit=1000)
    (definition,) = campaign.definitions.values()
    return definition


def tiled(element: ElementType) -> Definition:
    """The source of the family `tiled` as an own kernel."""
    file, parameters = ROOT / "workers" / "kernels" / "tiled.cu", ("A_TRANSPOSED", "B_TRANSPOSED", "TILE")
    macros = dict(
        option.removeprefix("-D").split("=")
        for option in TiledKernel(1, element, a_transposed=False, b_transposed=False).options
        if option.startswith("-D")
    )
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items() if name not in parameters)
    return own(
        file, code=defined + file.read_text(), entry="tiled_gemm", grid=("ceil(n / TILE)", "min(ceil(m / TILE), 65535)"),
        block=("TILE", "TILE"), arguments=("a", "b", "c", "d", "m:i64", "n:i64", "k:i64", "alpha", "beta"), requires=(),
        parameters=parameters,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel of the family `tiled`, and the same as an own kernel."""

    tile: int
    problem: str

    @property
    def built_in(self) -> Configuration:
        return Configuration.parse(f"tiled(tile={self.tile}) {self.problem}")

    def as_own(self, definition: Definition) -> Configuration:
        layout = self.built_in.problem.layout
        parameters = f"TILE={self.tile},A_TRANSPOSED={int(layout.a_transposed)},B_TRANSPOSED={int(layout.b_transposed)}"
        return Configuration.parse(f"source(definition={definition.id},{parameters}) {self.problem}")


HONEST = (
    Pair(16, "2048x2048x2048 f32 nn"),
    Pair(32, "2048x2048x2048 f32 nn alpha=1.5 beta=0.5"),
    Pair(16, "1000x1500x700 f32 nn"),
    Pair(16, "2048x1024x512 f32 tn"),
    Pair(16, "1024x1024x1024 f64 nt"),
)


@dataclass(frozen=True, slots=True)
class TritonPair:
    """A kernel of the family `triton`, and the example in Triton with the same tiles: another source of the same method."""

    problem: str
    tile: tuple[int, int, int] = (128, 128, 64)

    @property
    def built_in(self) -> Configuration:
        m, n, k = self.tile
        return Configuration.parse(
            f"triton(tile_m={m},tile_n={n},tile_k={k},warps={m * n // 2048},stages=3,group_m=8) {self.problem}"
        )

    def as_own(self, definition: Definition) -> Configuration:
        m, n, k = self.tile
        parameters = f"BLOCK_M={m},BLOCK_N={n},BLOCK_K={k},GROUP_M=8,STAGES=3"
        return Configuration.parse(f"source(definition={definition.id},{parameters}) {self.problem}")


HONEST_IN_TRITON = (TritonPair("4096x4096x4096 f16 nn"), TritonPair("1000x1500x700 bf16 nt beta=1"))


def refused(device: Any, configuration: Configuration, rules: MeasuringRules = QUICK) -> dict[str, Any]:
    """How a kernel ends: the kind of its failure, the referee's check and the message; `measured` where it gets a row."""
    try:
        row = device.measure(configuration, rules)
    except FarmError as error:
        return {"kind": kind_of(error).value, "check": error.fields.get("check", ""), "message": str(error)}
    return {
        "kind": "measured",
        "check": "",
        "message": f"{row.runtime_ms:.4g} ms, with new operands {row.details['referee_ms']:.4g}",
    }


def campaign_of(definition: Definition, folder: Path) -> Path:
    """A campaign file with that kernel, for `farm measure --source`."""
    block = {
        "family": "source", "file": {"name": definition.file, "code": definition.code}, "entry": definition.entry,
        "grid": list(definition.grid), "block": list(definition.block), "arguments": list(definition.arguments),
        "requires": list(definition.requires), "parameters": dict.fromkeys(definition.parameters, 0),
    }  # fmt: skip
    path = folder / "own.yaml"
    document = {"name": "own", "problems": {"shapes": "16x16x16", "types": "f32"}, "kernels": [block]}
    path.write_text(yaml.safe_dump(document))
    return path


def refused_in_a_process(
    definition: Definition, configuration: Configuration, *, job_seconds: float = 10.0
) -> dict[str, Any]:
    """As `refused`, by `farm measure` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        source = campaign_of(definition, Path(folder))
        words = [
            configuration.canonical,
            "--source",
            str(source),
            "--device",
            "cuda",
            "--job-seconds",
            str(job_seconds),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "farm", "measure", *words, "--json"], capture_output=True, text=True, check=False
        )
    answer = (
        json.loads(done.stdout) if done.stdout.strip() else {"failure": {"kind": "?", "message": done.stderr.strip()}}
    )
    failure = answer.get("failure", {"kind": "measured", "message": ""})
    return {"kind": failure["kind"], "check": "", "message": failure["message"]}


def cheat(number: int, definition: Definition, problem: str = CHEATING_PROBLEM) -> Configuration:
    return Configuration.parse(f"source(definition={definition.id},CHEAT={number}) {problem}")


def compared(device: Any, pair: Pair | TritonPair, definition: Definition, repetitions: int) -> dict[str, Any]:
    """Medians of both, measured in turn."""
    times: dict[str, list[float]] = {"built_in": [], "own": []}
    referee_ms = []
    rules = MeasuringRules()
    for _ in range(repetitions):
        times["built_in"].append(device.measure(pair.built_in, rules).runtime_ms)
        row = device.measure(pair.as_own(definition), rules)
        times["own"].append(row.runtime_ms)
        referee_ms.append(row.details["referee_ms"])
    built_in_ms, own_ms = (statistics.median(times[name]) for name in ("built_in", "own"))
    return {
        "configuration": pair.built_in.canonical, "built_in_ms": built_in_ms, "own_ms": own_ms,
        "difference_pct": 100 * (own_ms / built_in_ms - 1), "referee_ms": statistics.median(referee_ms),
    }  # fmt: skip


def table(cheated: Sequence[dict[str, Any]], honest: Sequence[dict[str, Any]]) -> str:
    first = markdown(
        ["cheat", "kind", "check", "message"],
        [[one["cheat"], one["kind"], one["check"], one["message"]] for one in cheated],
    )
    second = markdown(
        ["configuration", "built in ms", "own ms", "difference %", "with new operands ms"],
        [
            [one[key] for key in ("configuration", "built_in_ms", "own_ms", "difference_pct", "referee_ms")]
            for one in honest
        ],
    )
    return f"{first}\n\n{second}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="of honest kernels")
    parser.add_argument("--limit", type=float, default=540, help="seconds; honest kernels are repeated less often then")
    asked = parser.parse_args()
    end, definition = time.monotonic() + asked.limit, cheats()
    cheated, honest = [], []
    for number in IN_A_PROCESS:
        cheated.append({"cheat": CHEATS[number], **refused_in_a_process(definition, cheat(number, definition))})
    with first_card() as device:
        for number, name in CHEATS.items():
            if number not in IN_A_PROCESS:
                cheated.append({"cheat": name, **refused(device, cheat(number, definition))})
        in_triton, has_triton = cheats_in_triton(), importlib.util.find_spec("triton") is not None
        for number, name in CHEATS_IN_TRITON.items() if has_triton else ():
            found = refused(device, cheat(number, in_triton, CHEATING_IN_TRITON))
            cheated.append({"cheat": f"Triton: {name}", **found})
        of_element = {element: tiled(element) for element in (ElementType.F32, ElementType.F64)}
        for pair in HONEST:
            repetitions = asked.repetitions if time.monotonic() < end - 60 else 1
            honest.append(compared(device, pair, of_element[pair.built_in.problem.types.ab], repetitions))
        example = triton_example()
        in_triton_too = [compared(device, pair, example, 1) for pair in HONEST_IN_TRITON if has_triton]
    figures = {
        "cheats": len(cheated),
        "refused": sum(one["kind"] != "measured" for one in cheated),
        "max_difference_pct": max(abs(one["difference_pct"]) for one in honest),
        "cheated": cheated,
        "honest": honest,
        "honest_in_triton": in_triton_too,
    }
    write("referee", figures, table(cheated, [*honest, *in_triton_too]), repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
