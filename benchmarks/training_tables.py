"""How much memory and time does a training table take before a model is fitted?

    python -m benchmarks.training_tables [--rows 100000 1000000 2500000]

One farm of its own is filled, size after size, with campaigns of 10,000 jobs of one device type (`many_rows`). Ten campaigns share their
configurations, so a configuration has ten rows. Each size is a process of its own, which does what a trainer does with its rows:

  read      reads them (`trainer.reading`)
  hash      names the table by its content (`trainer.table_hash`)
  reduce    reduces the table to configurations (`trainer.table.configurations`)

The peak is the largest resident memory of the process in that step, less that of the process before it read any row. It includes the
table. Times are processor time of this process, without Postgres, because other programs may use the machine; `read_s` is the wall time of
reading. Every step runs once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks import many_rows
from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.ten_million_rows import begun_farm
from farm.db.engine import make_engine
from trainer.reading import read_training_table
from trainer.table import configurations
from trainer.table_hash import table_hash

TYPE = many_rows.TYPES[0]
STEPS = ("read", "hash", "reduce")


def memory_bytes(name: str) -> int:
    """`VmRSS` or `VmHWM` of this process."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def measured_steps(url: str) -> dict[str, Any]:
    """Rows, configurations, and for each step seconds and the peak of its memory; and bytes of the largest peak for each row."""
    engine, empty = make_engine(url, application="benchmark"), memory_bytes("VmRSS")
    figures: dict[str, Any] = {}

    def step(name: str, run: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        began, used = time.perf_counter(), time.process_time()
        made = run()
        figures[f"{name}_cpu_s"] = round(time.process_time() - used, 1)
        if name == "read":
            figures["read_s"] = round(time.perf_counter() - began, 1)
        figures[f"{name}_peak_mb"] = round((memory_bytes("VmHWM") - empty) / 1e6)
        return made

    table = step("read", lambda: read_training_table(engine, TYPE))
    step("hash", lambda: table_hash(table))
    configured = step("reduce", lambda: configurations(table))
    peak = max(figures[f"{name}_peak_mb"] for name in STEPS)
    return {
        "rows": len(table),
        "configurations": len(configured),
        **figures,
        "bytes_per_row": round(1e6 * peak / len(table)),
    }


def in_its_own_process(url: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.training_tables", "--measure"]
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"BENCH_DATABASE_URL": url}
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [100_000, 1_000_000, 2_500_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="multiples of 100,000, ascending")
    # What the process of one size does.
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured_steps(os.environ["BENCH_DATABASE_URL"])))
        return
    end_like_interrupted()
    found = list[dict[str, Any]]()
    with begun_farm([TYPE]) as (urls, engine, *_):
        filled = 0
        for rows in given.rows:
            campaigns = rows // many_rows.EACH
            many_rows.fill(engine, filled, campaigns - 1, types=[TYPE])
            filled = campaigns
            with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
                connection.execute(text("VACUUM ANALYZE"))
            found.append(in_its_own_process(str(urls.database_url)))
            save(found)


def save(found: Sequence[Mapping[str, Any]]) -> None:
    columns = {
        "rows": "rows",
        "configurations": "configurations",
        "wall of read, s": "read_s",
        **{f"CPU of {name}, s": f"{name}_cpu_s" for name in STEPS},
        **{f"peak of {name}, MB": f"{name}_peak_mb" for name in STEPS},
        "bytes a row": "bytes_per_row",
    }
    table = markdown(list(columns), [[of[key] for key in columns.values()] for of in found])
    write("training_tables", {"sizes": found}, table, repetitions=1)


if __name__ == "__main__":
    main()
