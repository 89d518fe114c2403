"""A round of nvbench over the farm's launches, for against_tools.py: a registered benchmark cannot be run twice in a process.

    python -m benchmarks.nvbench_round ASKED.json

ASKED.json has `kernels` (canonical configurations), `end` (seconds since the epoch, after which none is begun), and the files
for nvbench's own `results` and for the `seconds` that each of its calls took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.kernels import Configuration
from farm.operands import OperandRules
from workers.devices import open_device
from workers.devices.cards import find_cards


def run(asked: Path) -> None:
    """Runs nvbench over the kernels of a JSON file, in that order. Its own results go to the file that this one names.

    What begins after the end that the file tells is skipped.
    """
    import cupy
    from cuda import bench

    said = json.loads(asked.read_text())
    device: Any = open_device(find_cards()[0])
    device.open()
    seconds: dict[int, float] = {}

    def gemm(state: Any) -> None:
        step = state.get_int64("step")
        if time.time() > said["end"]:
            state.skip("out of time")
            return
        with device.replaying(Configuration.parse(said["kernels"][step]), OperandRules()) as work:
            stream = cupy.cuda.ExternalStream(state.get_stream().addressof())

            def launch(_: Any) -> None:
                with stream:
                    work.kernel.launch(0)

            began = time.perf_counter()
            state.exec(launch)
            seconds[step] = time.perf_counter() - began
            Path(said["seconds"]).write_text(json.dumps(seconds))

    bench.register(gemm).add_int64_axis("step", list(range(len(said["kernels"]))))
    bench.run_all_benchmarks([sys.argv[0], "--devices", "0", "--json", said["results"]])


def summaries(results: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """By step, the mean GPU times in ms of nvbench's own JSON: `cold`, and `batch` where it was taken."""
    found: dict[int, dict[str, float]] = {}
    for benchmark in results["benchmarks"]:
        for state in benchmark["states"]:
            step = next(int(axis["value"]) for axis in state["axis_values"] if axis["name"] == "step")
            for summary in state.get("summaries") or []:
                for kind in ("cold", "batch"):
                    if summary["tag"] == f"nv/{kind}/time/gpu/mean":
                        (value,) = (data["value"] for data in summary["data"] if data["name"] == "value")
                        found.setdefault(step, {})[kind] = 1e3 * float(value)
    return found


if __name__ == "__main__":
    run(Path(sys.argv[1]))
