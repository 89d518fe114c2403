"""How long do a million measurements take to compare?

    python -m benchmarks.compare_speed [--rows 10000 100000 1000000] [--repetitions 5]

For each size a farm of its own gets that many rows: two cards, half of them each, of the same configurations (25 m x 25 n x as
many k as it takes, in f32 and f64, with 16 tiles). Times and power are made up, with the second card 1.25 times as slow and
2% of noise. Then `farm compare --json` is run as a process of its own, and the comparison alone in this process, on a connection
that has been used: seconds from start to end, and the processor time of this process. Postgres works beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import at_sizes
from benchmarks.farms import farm_home
from benchmarks.made_up import CONFIGURATIONS, ENVIRONMENT, card, vacuum
from farm.compare.aggregation import CompareQuery
from farm.compare.comparison import compare
from farm.db import devices

TYPES = {"nvidia-h200": 1.0, "nvidia-a100-sxm4-80gb": 1.25}
"""The cards, and how their times compare."""

_ROWS = text("""
INSERT INTO measurements (configuration_id, device_id, environment_id, source, runtime_ms, runtime_q1_ms, runtime_q3_ms,
    runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, clock_policy, power_w, cost_s, details)
SELECT c.id, :device_id, :environment_id, 'measured', t, t, t, t, 0.002, 10, 'converged', 'cold', 'uniform', 0, 'default',
    300 + 100 * random(), 0.1, '{}'
FROM configurations c CROSS JOIN LATERAL (
    SELECT c.m * c.n * c.k / 1e10 * :factor * (0.98 + 0.04 * random()) AS t
) made
""")


def fill(engine: Engine, rows: int) -> None:
    with engine.begin() as connection:
        connection.execute(CONFIGURATIONS, {"shapes": rows // 2 // 32})
        environment_id = connection.execute(ENVIRONMENT).scalar_one()
        for number, (device_type, factor) in enumerate(TYPES.items()):
            device_id = devices.register(connection, host="made-up", host_facts={}, device=card(number, device_type))
            parameters = {"device_id": device_id, "environment_id": environment_id, "factor": factor}
            connection.execute(_ROWS, parameters)
    vacuum(engine)


def of_size(rows: int, repetitions: int) -> dict[str, Any]:
    with farm_home() as (_, engine):
        fill(engine, rows)
        command = [sys.executable, "-m", "farm", "compare", *TYPES, "--json"]
        processes, alone, processor = list[float](), list[float](), list[float]()
        for _ in range(repetitions):
            began = time.perf_counter()
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            processes.append(time.perf_counter() - began)
        found = json.loads(done.stdout)["sides"][0]["overall"]
        assert abs(found["time"]["ratio"] - TYPES["nvidia-a100-sxm4-80gb"]) < 0.01, found
        for _ in range(repetitions):
            began, used = time.perf_counter(), time.process_time()
            overall = compare(engine, CompareQuery(groups=tuple(TYPES))).groups[0].overall
            alone.append(time.perf_counter() - began)
            processor.append(time.process_time() - used)
        assert overall is not None
        return {
            "configurations": overall.configurations,
            "shapes": overall.shapes,
            "time_ratio": found["time"]["ratio"],
            "command_s": round(statistics.median(processes), 3),
            "compare_s": round(statistics.median(alone), 3),
            "compare_cpu_s": round(statistics.median(processor), 3),
        }


def main() -> None:
    at_sizes(
        __doc__ or "",
        "compare_speed",
        of_size,
        {
            "configurations": "configurations",
            "shapes": "shapes",
            "`farm compare` s": "command_s",
            "comparing s": "compare_s",
            "of its processor s": "compare_cpu_s",
        },
    )


if __name__ == "__main__":
    main()
