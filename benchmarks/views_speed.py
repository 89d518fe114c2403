"""How long do the views and filters take that people and dashboards ask, by the rows of results?

    python -m benchmarks.views_speed [--rows 10000 100000 1000000] [--repetitions 7]

For each size a farm of its own is filled with made-up rows, as a finished campaign leaves them: problems with a hundred
kernels each, one of them cuBLASLt's choice, on four cards of each of two types, landed in batches of a hundred over the last
three days, and a sentinel for each batch. Then each question is asked through a connection like anybody's: milliseconds from
asking to the last row, the median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from sqlalchemy import Connection, text

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home
from farm.db import filters, measurements
from farm.db.engine import make_engine
from farm.moments import moment

KERNELS = 100
TYPES = 2
BATCH = 100

FILL = (
    "INSERT INTO hosts (name) VALUES ('gpu01'), ('gpu02')",
    """
    INSERT INTO devices (uuid, host_id, type, name, backend, traits)
    SELECT 'GPU-' || i, 1 + i % 2, CASE WHEN i < 4 THEN 'nvidia-h200' ELSE 'nvidia-a100' END, 'Made up', 'cuda', '{}'
    FROM generate_series(0, 7) i
    """,
    "INSERT INTO environments VALUES (gen_random_uuid(), '{}')",
    "INSERT INTO pools (name, device_types) VALUES ('type:nvidia-h200', '{nvidia-h200}'), ('type:nvidia-a100', '{nvidia-a100}')",
    """
    INSERT INTO campaigns (name, digest, owner, document, rules, state)
    VALUES ('made-up', 'd', 'bench', '{}', '{}', 'active')
    """,
    "INSERT INTO lanes (campaign_id, pool_id, jobs, done) VALUES (1, 1, :each, :each), (1, 2, :each, :each)",
    """
    INSERT INTO configurations
    SELECT gen_random_uuid(), 64 * (1 + p % 20), 64 * (1 + p / 20 % 20), 64 * (1 + p / 400), 'f16', 'f16', 'f32', 'nn', 1, 0,
        CASE q WHEN 0 THEN 'cublaslt' ELSE 'cutlass' END,
        CASE q WHEN 0 THEN jsonb_build_object('algorithm', 0) ELSE jsonb_build_object('stages', q) END
    FROM generate_series(0, :problems - 1) p CROSS JOIN generate_series(0, :kernels - 1) q
    """,
    """
    INSERT INTO jobs (lane_id, configuration_id, state)
    SELECT l, id, 'done' FROM generate_series(1, 2) l CROSS JOIN configurations ORDER BY l, id
    """,
    """
    INSERT INTO batches (lane_id, queue, state, job_ids, jobs, done, device_id, claimed_at, finished_at, folded)
    SELECT 1 + b / :batches, 'gpu', 'done', '{}', :batch, :batch, 1 + b / :batches * 4 + b % 4, at - interval '4 s', at, true
    FROM generate_series(0, 2 * :batches - 1) b
    CROSS JOIN LATERAL (SELECT now() - interval '3 days' * (1 - (b % :batches + 1.0) / :batches) AS at) t
    """,
    """
    INSERT INTO measurements (job_id, campaign_id, configuration_id, device_id, environment_id, measured_at, source,
        runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, power_w,
        sm_clock_mhz, temperature_c, throttle_reasons, distribution, seed, clock_policy, cost_s, window_s, details)
    SELECT j.id, 1, j.configuration_id, b.device_id, (SELECT id FROM environments), b.finished_at, 'measured', f.t, f.t,
        f.t, f.t, 0.003, 10, 'converged', 'cold', 300 + 100 * random(), 1500 + j.id % 400, 50 + j.id % 20,
        CASE WHEN j.id % 10 = 0 THEN 'sw_power_cap' ELSE 'none' END, 'uniform', 0, 'default', 0.1, 0.05, '{}'
    FROM (SELECT jobs.*, row_number() OVER (PARTITION BY lane_id ORDER BY id) - 1 AS n FROM jobs) j
    JOIN (
        SELECT batches.*, row_number() OVER (PARTITION BY lane_id ORDER BY id) - 1 AS n FROM batches
    ) b ON b.lane_id = j.lane_id AND b.n = j.n / :batch
    CROSS JOIN LATERAL (SELECT exp(random()) AS t WHERE j.id IS NOT NULL) f
    ORDER BY b.finished_at, j.id
    """,
    """
    INSERT INTO measurements (campaign_id, configuration_id, device_id, environment_id, measured_at, source, runtime_ms,
        runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, cost_s, details)
    SELECT 1, (SELECT id FROM configurations LIMIT 1), device_id, (SELECT id FROM environments), finished_at, 'sentinel',
        1, 1, 1, 1, 0.003, 10, 'converged', 'cold', 'uniform', 0, 0.1, '{}'
    FROM batches ORDER BY finished_at
    """,
    "UPDATE devices SET measured = :each / 4",
)

QUESTIONS = {
    "v_best_kernels: all": "SELECT * FROM v_best_kernels",
    "v_best_kernels: one type": "SELECT * FROM v_best_kernels WHERE device_type = 'nvidia-h200'",
    "v_best_kernels: one problem": "SELECT * FROM v_best_kernels WHERE m = 64 AND n = 64 AND k = 64 AND ab = 'f16'",
    "v_device_health": "SELECT * FROM v_device_health",
    "v_campaign_progress": "SELECT * FROM v_campaign_progress",
    "v_measurements: rows a minute of each device in the last hour": """
        SELECT date_trunc('minute', measured_at) AS time, device_uuid, count(*) FROM v_measurements
        WHERE measured_at > now() - interval '1 hour' GROUP BY 1, 2 ORDER BY 1, 2
    """,
    "v_measurements: the median of each type": """
        SELECT device_type, percentile_cont(0.5) WITHIN GROUP (ORDER BY tflops) FROM v_measurements GROUP BY 1
    """,
}
FILTERS: dict[str, dict[str, Any]] = {
    "farm results --where 'm == 64 and stages < 5' --sort -tflops --limit 30": {"where": ["m == 64 and stages < 5"]},
    "farm results --since 1h --sort -tflops --limit 30": {"since": "1h"},
}


def ask(connection: Connection, question: str) -> int:
    if question in QUESTIONS:
        return len(connection.execute(text(QUESTIONS[question])).all())
    asked = dict(FILTERS[question])
    if "since" in asked:
        asked["since"] = moment(asked["since"])
    return len(measurements.read(connection, order_by="-tflops", limit=30, only=filters.chosen(**asked)))


def of_size(rows: int, repetitions: int) -> dict[str, dict[str, float]]:
    each = rows // TYPES
    numbers = {"each": each, "problems": each // KERNELS, "kernels": KERNELS, "batches": each // BATCH, "batch": BATCH}
    found = {}
    with farm_home(FARM_DEVICES="cpu") as (urls, _):
        engine = make_engine(
            urls.database_url, application="benchmark"
        )  # as any connection: farm_home's is a coordinator's
        with engine.begin() as connection:
            for statement in FILL:
                connection.execute(text(statement), numbers)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
            landed = connection.execute(text("SELECT count(*) FROM v_measurements")).scalar_one()
            assert landed == rows, landed
            for question in (*QUESTIONS, *FILTERS):
                taken = []
                for _ in range(repetitions):
                    began = time.perf_counter()
                    answers = ask(connection, question)
                    taken.append(1e3 * (time.perf_counter() - began))
                found[question] = {"ms": statistics.median(taken), "fastest_ms": min(taken), "rows": answers}
        engine.dispose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="multiples of 1000")
    parser.add_argument("--repetitions", type=int, default=7)
    asked = parser.parse_args()
    sizes = {rows: of_size(rows, asked.repetitions) for rows in asked.rows}
    table = "Milliseconds, by rows of results:\n\n" + markdown(
        ["question", *(f"{rows:,}" for rows in sizes)],
        [[f"`{q}`" if q in FILTERS else q, *(of[q]["ms"] for of in sizes.values())] for q in (*QUESTIONS, *FILTERS)],
    )
    write("views_speed", {"sizes": {str(rows): of for rows, of in sizes.items()}}, table, repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
