"""How long does `farm health` take at a million measurements?

    python -m benchmarks.health_speed [--rows 10000 100000 1000000] [--repetitions 5]

For each size a farm of its own gets that many rows: eight cards of a type, each with the same configurations (25 m x 25 n x as many
k as it takes, in f32 and f64, with 16 tiles), measured once in the last days and once a month before. Times, power, temperatures and
digests are made up, with one card 5% slower, one with other digests for a few configurations, and 2% of noise. Then `farm health --json`
is run as a process of its own, and the check alone in this process, on a connection that has been used: seconds from start to end,
and the processor time of this process. Last, the comparison of digests alone, which is part of the check. Postgres works beside it.
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
from farm.compare.health import HealthQuery
from farm.compare.health.fleet_query import fleet_health
from farm.db import corrupted_results, devices

CARDS = 8
SLOW = 3
"""The card that is slower."""
FLAWED = 5
"""The card with other digests than its peers, for a few of its configurations."""
EXPECTED = {SLOW: "slow", FLAWED: "corrupting"}

_ROWS = text("""
INSERT INTO measurements (configuration_id, device_id, environment_id, measured_at, source, runtime_ms, runtime_q1_ms,
    runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, protocol, clock_policy, power_w,
    power_limit_w, sm_clock_mhz, temperature_c, throttle_reasons, kernel_hash, result_digest, cost_s, details)
SELECT c.id, :device_id, :environment_id, clock_timestamp() - make_interval(days => :days), 'measured', t, t, t, t, 0.002, 10,
    'converged', 'cold', 'uniform', 0, 'farm', 'default', 300 + 10 * random(), 700, 1980, 50 + (10 * random())::int,
    CASE WHEN random() < 0.5 THEN 'sw_power_cap' ELSE 'none' END, encode(sha256(c.id::text::bytea), 'hex'),
    left(md5(CASE WHEN :flawed AND left(c.id::text, 2) = '00' THEN 'flawed ' ELSE '' END || c.id), 16), 0.1, '{}'
FROM configurations c CROSS JOIN LATERAL (
    SELECT c.m * c.n * c.k / 1e10 * :factor * (0.98 + 0.04 * random()) AS t
) made
""")


def fill(engine: Engine, rows: int) -> None:
    with engine.begin() as connection:
        connection.execute(CONFIGURATIONS, {"shapes": max(1, rows // CARDS // 2 // 32)})
        environment_id = connection.execute(ENVIRONMENT).scalar_one()
        ids = []
        for number in range(CARDS):
            ids.append(
                devices.register(
                    connection, host=f"gpu{number // 4}", host_facts={}, device=card(number, "nvidia-h200")
                )
            )
        connection.execute(text("UPDATE devices SET last_seen_at = '-infinity'"))  # none has a worker
        for days, slower in ((30, 1.0), (1, 1.05)):
            for number, device_id in enumerate(ids):
                parameters = {"device_id": device_id, "environment_id": environment_id, "days": days}
                connection.execute(
                    _ROWS,
                    {
                        **parameters,
                        "factor": slower if number == SLOW else 1.0,
                        "flawed": number == FLAWED and days == 1,
                    },
                )
    vacuum(engine)


def of_size(rows: int, repetitions: int) -> dict[str, Any]:
    with farm_home() as (_, engine):
        fill(engine, rows)
        command = [sys.executable, "-m", "farm", "health", "--json"]
        processes, alone, processor, digests = list[float](), list[float](), list[float](), list[float]()
        for _ in range(repetitions):
            began = time.perf_counter()
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            processes.append(time.perf_counter() - began)
        assert done.returncode == 7, done.stderr
        found = {one["uuid"]: one["verdict"] for one in json.loads(done.stdout)["devices"]}
        assert found == {f"GPU-{n}": EXPECTED.get(n, "healthy") for n in range(CARDS)}, found
        for _ in range(repetitions):
            began, used = time.perf_counter(), time.process_time()
            checked = fleet_health(engine, HealthQuery())
            alone.append(time.perf_counter() - began)
            processor.append(time.process_time() - used)
        for _ in range(repetitions):
            began = time.perf_counter()
            with engine.connect() as connection:
                corrupted_results.corrupting(connection, since=checked.since)
            digests.append(time.perf_counter() - began)
        slow = next(one for one in checked.devices if one.uuid == f"GPU-{SLOW}")
        assert slow.time is not None
        return {
            "configurations": slow.time.rows,
            "shapes": slow.time.shapes,
            "time_ratio": slow.time.value,
            "command_s": round(statistics.median(processes), 3),
            "health_s": round(statistics.median(alone), 3),
            "health_cpu_s": round(statistics.median(processor), 3),
            "digests_s": round(statistics.median(digests), 3),
        }


def main() -> None:
    at_sizes(
        __doc__ or "",
        "health_speed",
        of_size,
        {
            "configurations": "configurations",
            "shapes": "shapes",
            "`farm health` s": "command_s",
            "checking s": "health_s",
            "of its processor s": "health_cpu_s",
            "comparing digests s": "digests_s",
        },
    )


if __name__ == "__main__":
    main()
