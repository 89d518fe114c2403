"""How fast do results land, and what does dispatch cost? Beside plain COPY and plain Celery, in one run.

    python -m benchmarks.landing [--rows 50000] [--tasks 20000] [--repetitions 3]

All on one machine with its own Postgres and Redis; rows are made up, so that only their way is timed.

Landing, in rows per second, one connection, batches of 500, 100 and 20:
  farm       `batches.land`: fence, job states and rows in one statement, into the indexed and constrained table; end of
              the batch, commit
  COPY       the same rows with COPY into the same table without a farm around it, a transaction per batch
  bare COPY  the same rows into a table without index, constraint or trigger: what Postgres can do at all
Dispatch, in microseconds per job or task:
  farm       from the submitted file to the last landed row, real programs (`jobs_per_second` of farm_overhead)
  Celery     tasks that do nothing, of a Celery application with its defaults: sent by one process, and worked off by one
              worker with one child process
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farm_overhead import end_to_end
from benchmarks.farms import announce, farm_home, submit
from benchmarks.made_up import RESULT, campaign_text, record
from farm.db import batches, measurements
from farm.schema.results import RESULTS

BATCHES = (500, 100, 20)
COLUMNS = ("configuration_id", "device_id", "environment_id", *RESULTS)
NOTHING = """
import os
from celery import Celery
app = Celery("nothing", broker=os.environ["FARM_BROKER_URL"])
app.conf.update(task_ignore_result=True, task_default_queue="nothing", broker_connection_retry_on_startup=True)
@app.task(name="nothing")
def nothing(number): pass
@app.task(name="last")
def last(file): open(file, "w").close()
if __name__ == "__main__":
    app.worker_main(["worker", "--concurrency=1", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])
"""


def farm_rows(engine: Engine, device_id: int, queue: str, batch: int, rows: int) -> float:
    """Rows per second that land through the farm."""
    seconds = 0.0
    for _ in range(rows // batch):
        with engine.begin() as connection:
            (work,) = batches.candidates(connection)
            assert batches.lock(connection, work.lane_id)
            batch_id = batches.form(connection, work, queue=queue, jobs=batch)
            assert batch_id is not None
        with engine.begin() as connection:
            lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
        assert lease is not None
        results = [(job, RESULT) for job in lease.jobs]
        began = time.perf_counter()
        with engine.begin() as connection:
            batches.land(connection, lease, results, {})
        seconds += time.perf_counter() - began
    with engine.begin() as connection:
        batches.fold(connection)
    return rows / seconds


def copied_rows(engine: Engine, device_id: int, table: str, batch: int, rows: int) -> float:
    """Rows per second through COPY alone into `table`, of jobs that are there but have no result."""
    with engine.begin() as connection:
        configurations = list(connection.execute(text("SELECT id FROM configurations LIMIT 500")).scalars())
        environment = connection.execute(text("SELECT id FROM environments LIMIT 1")).scalar_one()
    values = ["{}" if column == "details" else getattr(RESULT, column) for column in RESULTS]
    seconds = 0.0
    for _ in range(rows // batch):
        made = [(configurations[n % 500], device_id, environment, *values) for n in range(batch)]
        began = time.perf_counter()
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = on"))
            cursor = measurements.cursor_of(connection)
            with cursor.copy(f"COPY {table} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for row in made:
                    copy.write_row(row)
        seconds += time.perf_counter() - began
    return rows / seconds


def landing(file: Path, recording: Path, rows: int) -> dict[str, dict[str, float]]:
    """Rows per second by batch size: the three side by side, in turn."""
    found: dict[str, dict[str, float]] = {}
    with farm_home(recording) as (_, engine):
        device_id, device = announce(engine)
        submit(engine, file, {})
        queue = f"gpu.{device.identity.type}"
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE bare (LIKE measurements INCLUDING IDENTITY INCLUDING DEFAULTS)"))
        for batch in BATCHES:
            found[str(batch)] = {
                "farm": farm_rows(engine, device_id, queue, batch, rows),
                "copy": copied_rows(engine, device_id, "measurements", batch, rows),
                "bare_copy": copied_rows(engine, device_id, "bare", batch, rows),
            }
    return found


def celery_tasks(recording: Path, tasks: int) -> float:
    """Tasks per second of a plain Celery application, from the first one sent to the last one worked off."""
    with farm_home(recording) as (urls, _), tempfile.TemporaryDirectory() as folder:
        assert urls.broker_url is not None
        (Path(folder) / "nothing.py").write_text(NOTHING)
        environment = {**os.environ, "FARM_BROKER_URL": urls.broker_url}
        file = str(Path(folder) / "nothing.py")
        worker = subprocess.Popen(
            [sys.executable, file], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with Celery(broker=urls.broker_url) as app:
                for name in ("ready", "end"):
                    began = time.perf_counter()
                    if name == "end":
                        for number in range(tasks):
                            app.send_task("nothing", args=(number,), queue="nothing")
                    app.send_task("last", args=(f"{folder}/{name}",), queue="nothing")
                    while not (Path(folder) / name).exists():
                        if worker.poll() is not None:
                            raise SystemExit(f"the Celery worker ended with status {worker.returncode}")
                        time.sleep(0.005)
            return tasks / (time.perf_counter() - began)
        finally:
            worker.terminate()
            worker.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="rows for each batch size, a multiple of 500")
    parser.add_argument("--tasks", type=int, default=20_000, help="jobs and Celery tasks, a multiple of 1000")
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
        Path(folder).chmod(0o755)
        large, small = Path(folder) / "large.yaml", Path(folder) / "small.yaml"
        large.write_text(campaign_text(asked.rows * len(BATCHES)))
        small.write_text(campaign_text(asked.tasks))
        recording = Path(folder) / "recording.parquet"
        record(small, recording)
        landed, jobs, tasks = [], [], []
        for _ in range(asked.repetitions):  # in turn, so that all see the same machine
            landed.append(landing(large, recording, asked.rows))
            jobs.append(end_to_end(small, recording, asked.tasks)["jobs_per_second"])
            tasks.append(celery_tasks(recording, asked.tasks))
    ways = ("farm", "copy", "bare_copy")
    rates: dict[str, dict[str, Any]] = {
        batch: {way: round(statistics.median(run[batch][way] for run in landed)) for way in ways} for batch in landed[0]
    }
    job_us, task_us = (1e6 / statistics.median(rate) for rate in (jobs, tasks))
    table = "Rows per second:\n\n" + markdown(
        ["jobs in a batch", "farm", "COPY", "bare COPY", "farm / COPY"],
        [[int(b), *(r[way] for way in ways), r["farm"] / r["copy"]] for b, r in rates.items()],
    )
    table += "\n\nMicroseconds from sent to done:\n\n" + markdown(
        ["a job of the farm, measured and landed", "a Celery task that does nothing", "ratio"],
        [[job_us, task_us, job_us / task_us]],
    )
    figures = {
        "rows_per_second": rates["100"]["farm"],
        "copy_rows_per_second": rates["100"]["copy"],
        "bare_copy_rows_per_second": rates["100"]["bare_copy"],
        "by_batch_size": rates,
        "farm_us_per_job": round(job_us, 1),
        "celery_us_per_task": round(task_us, 1),
    }
    write("landing", figures, table, repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
