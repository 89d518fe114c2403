"""What does a file of many results cost? Memory and time of CSV and Parquet, from the database and from the API.

    python -m benchmarks.results_files [--rows 100000 1000000] [--at-once 100000] [--repetitions 1]

A farm of its own is filled with campaigns of 10,000 rows (`many_rows`), which have the details of a measured row. Each file is written by
a process of its own, with the exporters of `farm results --output FILE`: in pages, as that command does, and with all rows in memory at
once, as it did before. Figures of that process are the peak of its resident memory, with imported modules, its CPU seconds, and the
seconds from the first query to the last byte, which depend on what else the machine does. A process that needs more than 12 GiB is
stopped. Over the API, `farm serve` runs on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import many_rows
from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.pages_speed import served
from benchmarks.ten_million_rows import begun_farm, maintenance
from farm.api import farm_of
from farm.api.results import all_rows
from farm.exporters import EXPORTERS, RowExporter
from farm.settings import settings

MEMORY_BYTES = 12 * 2**30
STEP_SECONDS = 1200.0
FORMATS = ("csv", "parquet")
WAYS = ("in pages", "at once")


def write_file(kind: str, way: str, output: Path) -> None:
    """Writes one file, and prints what that took."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    exporter = EXPORTERS[kind]
    assert isinstance(exporter, RowExporter)
    began = time.perf_counter()
    with farm_of(settings()) as farm:
        if way == "at once":
            output.write_bytes(exporter.content(all_rows(farm, None)))
        else:
            (export,) = exporter.export(farm, {}, None, one_file=True).files
            with output.open("wb") as file:
                export.write(file, lambda _: None)
    taken = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"seconds": round(taken, 1), "cpu_s": round(used.ru_utime + used.ru_stime, 1)}
    print(json.dumps({**figures, "peak_mib": round(used.ru_maxrss / 1024), "bytes": output.stat().st_size}))


def measured(kind: str, way: str, api: str | None, folder: Path, repetitions: int) -> dict[str, Any]:
    """Medians; empty where it took too much memory or time."""
    words = [sys.executable, "-m", "benchmarks.results_files", "--write", kind, "--way", way]
    words += ["--output", str(folder / "rows")]
    environment = {**os.environ, **({} if api is None else {"FARM_API_URL": api})}
    runs = list[dict[str, Any]]()
    for _ in range(repetitions):
        try:
            done = subprocess.run(
                words, check=False, env=environment, stdout=subprocess.PIPE, text=True, timeout=STEP_SECONDS
            )
        except subprocess.TimeoutExpired:
            return {}
        if done.returncode:
            return {}
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="multiples of 10,000, ascending"
    )
    parser.add_argument("--at-once", type=int, default=100_000, help="the most rows that are also held at once")
    parser.add_argument("--repetitions", type=int, default=1)
    # What a process of its own does.
    parser.add_argument("--write", choices=FORMATS, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        write_file(asked.write, asked.way, asked.output)
        return
    end_like_interrupted()
    found = list[dict[str, Any]]()
    with begun_farm() as (_, engine, folder, _):
        filled = 0
        for rows in asked.rows:
            many_rows.fill(engine, filled, rows // many_rows.EACH - 1)
            filled = rows // many_rows.EACH
            maintenance(engine)
            with served() as address:
                for place, api in (("database", None), ("API", address)):
                    for kind in FORMATS:
                        for way in WAYS if rows <= asked.at_once else WAYS[:1]:
                            of = measured(kind, way, api, folder, asked.repetitions)
                            found.append({"rows": rows, "from": place, "format": kind, "way": way, **of})
                            print(found[-1], file=sys.stderr, flush=True)
            save(found, asked.repetitions)


def save(found: list[dict[str, Any]], repetitions: int) -> None:
    def cells(of: dict[str, Any]) -> list[Any]:
        if "seconds" not in of:
            return [f"over {MEMORY_BYTES // 2**20:,}", "–", "–", "–"]
        return [of["peak_mib"], float(of["cpu_s"]), float(of["seconds"]), of["bytes"] / 1e6]

    table = markdown(
        ["rows", "from", "format", "rows in memory", "peak memory, MiB", "CPU, s", "seconds", "file, MB"],
        [[of["rows"], of["from"], of["format"], of["way"], *cells(of)] for of in found],
    )
    write("results_files", {"files": found}, table, repetitions=repetitions, show=False)


if __name__ == "__main__":
    main()
