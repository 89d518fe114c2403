"""What a launch costs, family by family: on the host, and on the card where a graph launches.

    FARM_KERNELS=FOLDER python -m benchmarks.launch_cost     the kernels of `cutlass_profiler.py --build FOLDER`

Problems so small that next to nothing is computed. On the host: the time of a call of the family's launcher, over as many as a
stream takes without waiting. On the card: the time from one launch to the next inside a captured graph, by the timing tier. For
a row the second counts, as graphs are what is timed; the first is the time that capturing them takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks.common import first_card, markdown, write
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.operands import OperandRules
from workers.measure.telemetry import TelemetryLog

LINES = (
    "tiled(tile=16) 16x16x16 f32",
    "cublaslt(algorithm=0) 64x64x64 f16",
    "cutlass(stages=2,swizzle=8,tile_k=8,warp_m=32,warp_n=64,tile_m=64,tile_n=64) 64x64x8 f32 nn",
    "cutlass(swizzle=8,tile_m=128,tile_n=128,stages=4,tile_k=32,warp_m=64,warp_n=64) 128x128x32 f16 nn",
    "cutlass3x(cluster_n=2,swap=1,tile_n=128,tile_m=128) 128x128x64 f16 nt",
)
LAUNCHES = 500
"""A stream takes about a thousand before a launch waits for the card."""


def cost(device: Any, line: str, rounds: int) -> dict[str, Any]:
    """Microseconds of a launch on the host and on the card; medians."""
    with device.replaying(Configuration.parse(line), OperandRules()) as work:
        sets, host = work.rotation.sets, list[float]()
        for _ in range(rounds):
            work.drain()
            began = time.perf_counter()
            for index in range(LAUNCHES):
                work.kernel.launch(index % sets)
            host.append(1e6 * (time.perf_counter() - began) / LAUNCHES)
        work.drain()
        timing = device.tiers.measure(work, MeasuringRules(), TelemetryLog())[0].timing
    return {"configuration": line, "host_us": statistics.median(host), "card_us": 1e3 * timing.median_ms, "sets": sets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--result", default="launch_cost", help="name of the files in results/")
    asked = parser.parse_args()
    with first_card() as device:
        found = [cost(device, line, asked.rounds) for line in LINES]
    rows = [[one["configuration"], one["host_us"], one["card_us"]] for one in found]
    names = ["configuration", "a launch on the host, us", "from launch to launch in a graph, us"]
    write(asked.result, {"launches": found}, markdown(names, rows), repetitions=asked.rounds)


if __name__ == "__main__":
    main()
