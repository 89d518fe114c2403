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
from benchmarks.made_up import fill, vacuum
from farm.db import filters, measurements
from farm.db.engine import make_engine
from farm.time_parsing import moment

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
    found = {}
    with farm_home(FARM_DEVICES="cpu") as (urls, _):
        engine = make_engine(
            urls.database_url, application="benchmark"
        )  # as any connection: farm_home's is a coordinator's
        fill(engine, rows)
        vacuum(engine)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
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
