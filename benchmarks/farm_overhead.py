"""What the farm itself costs: jobs per second from submitted file to landed row, and where the time goes.

    python -m benchmarks.farm_overhead [--jobs 10000 100000] [--repetitions 3]

Devices are `recorded`: they answer at once from a file that is made for the purpose, so that what is left is the
farm. Two things are measured for each size. `jobs_per_second`: the real programs (coordinator, a worker with its
child process, Postgres, Redis), from reading the campaign file to its last landed row. The split: the same functions
called one after another in this process, each stage timed, which shows what a job costs where nothing overlaps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text

from benchmarks.common import markdown, write
from benchmarks.farms import announce, farm_home, run_submit, submit
from benchmarks.made_up import campaign_text, record
from farm.broker.celery_app import make_app
from farm.broker.queues import MEASURE_BATCH
from farm.coordinator.dispatch import form_batches, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.db import batches, campaigns, devices
from farm.services.stack import COORDINATOR, WORKERS, Stack
from farm.settings import settings

STAGES = ("expand", "store", "form", "send", "claim", "mark", "measure", "land")


def split(file: Path, recording: Path) -> dict[str, float]:
    """Seconds of each stage, one after another in this process."""
    clock: dict[str, float] = defaultdict(float)

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        clock[stage] += time.perf_counter() - began
        return result

    with farm_home(recording) as (urls, engine):
        assert urls.broker_url is not None
        device_id, device = announce(engine)
        campaign_id = submit(engine, file, clock)
        app = make_app(urls.broker_url)
        marks = engine.execution_options(isolation_level="AUTOCOMMIT").connect()
        costs = CostBook()
        while True:
            with engine.begin() as connection:
                devices.heartbeat(connection, device_id)
                batches.fold(connection)
            timed("form", lambda: form_batches(engine, read_schedule(engine, settings()), costs, settings()))
            with engine.begin() as connection:
                waiting = batches.unsent(connection, resend_after=1e9)
            if not waiting:
                break
            for batch_id, _ in waiting:
                timed("send", partial(app.send_task, MEASURE_BATCH, args=(batch_id,), queue="nobody"))
                with engine.begin() as connection:
                    batches.mark_sent(connection, [batch_id])

                def claim(i: int = batch_id) -> Any:
                    with engine.begin() as c:
                        return batches.claim(c, i, device_id=device_id, lease_seconds=60)

                lease = timed("claim", claim)
                rows = []
                for job in lease.jobs:

                    def mark(j: Any = job, held: Any = lease) -> None:
                        batches.mark(marks, held, j, lease_seconds=60)

                    timed("mark", mark)
                    rows.append((job, timed("measure", partial(device.measure, job.configuration, lease.rules))))

                def land(held: Any = lease, landed: Any = rows) -> None:
                    with engine.begin() as c:
                        batches.land(c, held, landed, {})

                timed("land", land)
        with engine.connect() as connection:
            counts = campaigns.counts(connection, campaign_id)
        assert counts["done"] == sum(counts.values()), counts
    return dict(clock)


def end_to_end(file: Path, recording: Path, jobs: int) -> dict[str, float]:
    """Jobs per second with the real programs, and how much memory each took."""
    with farm_home(recording) as (urls, engine), Stack(urls, settings().home, programs=[COORDINATOR, WORKERS]) as stack:
        live = False
        while not live:
            stack.check()
            time.sleep(0.05)
            with engine.connect() as connection:
                live = bool(devices.live(connection, silent_after=60))
        time.sleep(5)  # the worker's processes are up before the clock starts
        peak: dict[str, float] = {}
        stop = threading.Event()
        sampler = threading.Thread(target=_sample_memory, args=(stack, peak, stop))
        sampler.start()
        began = time.perf_counter()
        campaign_id = submit(engine, file, {})
        submitted = time.perf_counter() - began
        counts: dict[str, int] = {}
        while not counts or counts["done"] < jobs:
            stack.check()
            time.sleep(0.1)
            with engine.connect() as connection:
                counts = campaigns.counts(connection, campaign_id)
        seconds = time.perf_counter() - began
        stop.set()
        sampler.join()
        with engine.connect() as connection:
            landed = connection.execute(text("SELECT count(*) FROM measurements")).scalar_one()
        assert landed == jobs, landed
    return {"jobs_per_second": jobs / seconds, "submit_s": submitted, "total_s": seconds, **peak}


def submit_memory(file: Path, recording: Path) -> dict[str, float]:
    """Peak memory of `farm submit` as a process of its own."""
    with farm_home(recording) as (_, engine):
        announce(engine)
        return {"submit_rss_mb": run_submit(file)["peak_rss_mb"]}


def _sample_memory(stack: Stack, peak: dict[str, float], stop: threading.Event) -> None:
    while not stop.wait(0.5):
        for name, pid in stack.pids().items():
            try:
                family = psutil.Process(pid).children(recursive=True)
                total = sum(p.memory_info().rss for p in family) / 2**20
            except psutil.NoSuchProcess:
                continue
            peak[f"{name}_rss_mb"] = max(peak.get(f"{name}_rss_mb", 0.0), total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000], help="sizes, multiples of 1000")
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    sizes: dict[str, dict[str, Any]] = {}
    for jobs in asked.jobs:
        with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
            Path(folder).chmod(0o755)
            file, recording = Path(folder) / "campaign.yaml", Path(folder) / "recording.parquet"
            file.write_text(campaign_text(jobs))
            record(file, recording)
            whole = [
                {**end_to_end(file, recording, jobs), **submit_memory(file, recording)}
                for _ in range(asked.repetitions)
            ]
            parts = [split(file, recording) for _ in range(asked.repetitions)]
        sizes[str(jobs)] = {
            **{key: round(statistics.median(run[key] for run in whole), 3) for key in whole[0]},
            "split_us_per_job": {
                stage: round(statistics.median(run[stage] for run in parts) / jobs * 1e6, 2) for stage in STAGES
            },
        }
    columns = ["jobs", "jobs/s", "submit s", "total s", "submit MB", "coordinator MB", "workers MB"]
    keys = ["jobs_per_second", "submit_s", "total_s", "submit_rss_mb", "coordinator_rss_mb", "workers_rss_mb"]
    table = markdown(columns, [[int(jobs), *(figures[k] for k in keys)] for jobs, figures in sizes.items()])
    table += "\n\nMicroseconds per job, stage by stage in one process:\n\n"
    table += markdown(
        ["jobs", *STAGES], [[int(jobs), *figures["split_us_per_job"].values()] for jobs, figures in sizes.items()]
    )
    write("farm_overhead", {"sizes": sizes}, table, repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
