"""Does the farm stay fast at a million jobs? Submitting, forming, claiming, landing and status, by size.

    python -m benchmarks.million_jobs [--jobs 10000 100000 1000000] [--batch 100]

For each size a campaign is submitted by `farm submit`, as a process of its own: seconds from start to end, and its peak
memory. Then every job of it is formed into batches, ten in a transaction as the coordinator does, and measured one batch after
the other, with results that are made up, so that nothing but the farm is timed: microseconds per job of each stage over
all batches, and over the first and last tenth of them. Status is read while that goes on, every hundredth of the way:
what `farm status` shows of all campaigns and of this one; and half way through, the command itself.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farms import announce, farm_home, run_submit
from benchmarks.made_up import RESULT, campaign_text, record
from farm.db import batches, campaigns, jobs

FORMED_AT_ONCE = 10
"""Batches that are formed in one transaction: the coordinator forms up to 10,000 jobs of a campaign together."""

TABLES = ("configurations", "jobs", "measurements", "batches")
_SIZE = text("SELECT pg_total_relation_size(CAST(:name AS regclass))")

Clock = defaultdict[str, list[float]]


@contextmanager
def timed(clock: Clock, stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    clock[stage].append(time.perf_counter() - began)


def work_off(engine: Engine, campaign_id: int, device_id: int, queue: str, size: int, batch: int) -> Clock:
    """Every batch from pending to landed. Returns seconds per batch of each stage, and per look of `status`."""
    clock: Clock = defaultdict(list)
    every = max(1, size // batch // 100)
    number = 0
    formed = list[int]()
    while True:
        if not formed:
            began = time.perf_counter()
            with engine.begin() as connection:
                waiting = batches.candidates(connection)
                if waiting and batches.lock(connection, waiting[0].lane_id):
                    plans = [batches.BatchPlan(queue=queue, jobs=batch)] * FORMED_AT_ONCE
                    formed = list(batches.form_many(connection, waiting[0], plans).ids)
            if not formed:
                return clock
            clock["form"] += [(time.perf_counter() - began) / len(formed)] * len(formed)
        batch_id = formed.pop(0)
        with timed(clock, "claim"), engine.begin() as connection:
            lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
        assert lease is not None
        with timed(clock, "land"), engine.begin() as connection:
            batches.land(connection, lease, [(job, RESULT) for job in lease.jobs], {})
        with timed(clock, "fold"), engine.begin() as connection:
            batches.fold(connection)
        if number % every == 0:
            with timed(clock, "status"), engine.connect() as connection:
                campaigns.overview(connection)
                campaigns.counts(connection, campaign_id)
                jobs.problems(connection, campaign_id)
                jobs.failures_by_kind(connection, campaign_id)
        if number == size // batch // 2:
            for _ in range(3):
                with timed(clock, "status_command"):
                    subprocess.run([sys.executable, "-m", "farm", "status", "--json"], check=True, capture_output=True)
        number += 1


def of_size(size: int, batch: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
        Path(folder).chmod(0o755)
        file, recording = Path(folder) / "campaign.yaml", Path(folder) / "recording.parquet"
        small = Path(folder) / "small.yaml"
        file.write_text(campaign_text(size))
        small.write_text(campaign_text(1000))
        record(small, recording)
        with farm_home(recording) as (_, engine):
            device_id, device = announce(engine)
            submitted = run_submit(file)
            with engine.connect() as connection:
                campaign_id = campaigns.find(connection, f"overhead-{size}")["id"]
                assert campaigns.counts(connection, campaign_id)["pending"] == size
            clock = work_off(engine, campaign_id, device_id, f"gpu.{device.identity.type}", size, batch)
            with engine.connect() as connection:
                assert campaigns.counts(connection, campaign_id)["done"] == size
                landed = connection.execute(text("SELECT count(*) FROM measurements")).scalar_one()
                assert landed == size, landed
                sizes = {table: connection.execute(_SIZE, {"name": table}).scalar_one() for table in TABLES}
    per_job = {table: round(found / size) for table, found in sizes.items()}
    return {**submitted, **summary(clock, batch), "bytes_per_job": per_job}


def summary(clock: Clock, batch: int) -> dict[str, Any]:
    tenth = max(1, len(clock["claim"]) // 10)

    def per_job(seconds: list[float], of: Callable[[list[float]], float] = statistics.median) -> float:
        return of(seconds) / batch * 1e6

    stages = ("form", "claim", "land", "fold")
    return {
        "status_s": statistics.median(clock["status"]),
        "status_worst_s": max(clock["status"]),
        "status_command_s": statistics.median(clock["status_command"]),
        "us_per_job": {stage: round(per_job(clock[stage]), 2) for stage in stages},
        "mean_us_per_job": {stage: round(per_job(clock[stage], statistics.fmean), 2) for stage in stages},
        "first_tenth_us_per_job": {stage: round(per_job(clock[stage][:tenth]), 2) for stage in stages},
        "last_tenth_us_per_job": {stage: round(per_job(clock[stage][-tenth:]), 2) for stage in stages},
        "batches": len(clock["claim"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="multiples of 1000")
    parser.add_argument("--batch", type=int, default=100, help="jobs in a batch")
    asked = parser.parse_args()
    sizes = {size: of_size(size, asked.batch) for size in asked.jobs}
    largest = sizes[max(sizes)]
    table = markdown(
        ["jobs", "submit s", "submit MB", "status ms", "slowest ms", "`farm status` s"],
        [
            [n, f["submit_s"], f["peak_rss_mb"], f["status_s"] * 1e3, f["status_worst_s"] * 1e3, f["status_command_s"]]
            for n, f in sizes.items()
        ],
    )
    stages = list(largest["us_per_job"])
    table += f"\n\nMicroseconds per job in batches of {asked.batch}: median over all (first tenth, last tenth):\n\n"
    table += markdown(
        ["jobs", *stages],
        [
            [
                n,
                *(
                    f"{f['us_per_job'][s]:.3g} ({f['first_tenth_us_per_job'][s]:.3g}, {f['last_tenth_us_per_job'][s]:.3g})"
                    for s in stages
                ),
            ]
            for n, f in sizes.items()
        ],
    )
    table += "\n\nBytes on disk per job, indexes included, when all have landed:\n\n"
    table += markdown(["jobs", *TABLES], [[n, *f["bytes_per_job"].values()] for n, f in sizes.items()])
    headline = {key: round(largest[key], 4) for key in ("submit_s", "peak_rss_mb", "status_s")}
    write("million_jobs", {**headline, "sizes": {str(n): f for n, f in sizes.items()}}, table, repetitions=1)


if __name__ == "__main__":
    main()
