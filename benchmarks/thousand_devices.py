"""Can one coordinator keep a thousand devices busy? And what does that cost?

    python -m benchmarks.thousand_devices [--devices 1000] [--seconds 60] [--job-seconds 1] [--processes 8]

The coordinator, Postgres and Redis are real. The devices are threads that stand in for workers, some hundred in a
process: each waits on its two queues in Redis as a Celery worker does, claims, marks every job, takes the recorded time
for it, lands, and says that it lives. What is not there are the processes of a real worker, and their connections: a
stand-in shares those of its process. All of it runs on one machine, and the stand-ins' own work is most of its load, so
that machine should have more than two cores.

A device is idle for want of work while it waits on its queues. `idle_pct` is that share of the time of the device that
waited longest, in a window that begins when all have worked for a while and ends before the work does; beside it what a
device spends on claiming, marking and landing.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home, store
from benchmarks.made_up import campaign_text, record, register_devices
from benchmarks.processes import cpu_seconds, postgres_and_redis, redis_client
from farm.broker.queues import queue_of_device, queue_of_type
from farm.campaign import load
from farm.db import batches, campaigns, devices
from farm.db.engine import HASTY, make_engine
from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.services.stack import COORDINATOR, Stack
from farm.settings import settings
from workers.devices.recorded import RecordedDevice
from workers.measure.explain import Explanation
from workers.runner import Deadline, Runner

WARM_UP_SECONDS = 30.0
CONNECTIONS = 5  # of each process of stand-ins


# --- a process of stand-ins --------------------------------------------------------------------------


@dataclass
class Times:
    """Seconds of one device within the window."""

    waiting: float = 0.0
    measuring: float = 0.0
    rest: float = 0.0
    jobs: int = 0
    rows: int = 0


class Never(Deadline):
    """Ends nothing: a watching thread for each of a thousand devices would be most of what a process does."""

    @contextmanager
    def of(self, seconds: float, what: str, **ids: int) -> Iterator[None]:
        yield


class StandIn(RecordedDevice):
    """One device: a thread that does what a worker's processes do."""

    def __init__(self, identity: DeviceIdentity, opened: RecordedDevice) -> None:
        super().__init__(identity)
        self._rows, self._environment = opened._rows, opened._environment
        self.times = Times()
        self.measured_s = 0.0

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        began = time.perf_counter()
        try:
            return super().measure(configuration, rules, explanation)
        finally:
            self.measured_s += time.perf_counter() - began
            self.times.jobs += 1

    def serve(self, engine: Engine, device_id: int, broker_url: str, window: threading.Event, stop: Any) -> None:
        seconds = settings().lease_seconds
        runner = Runner(engine, self, device_id, lease_seconds=seconds, stopping=threading.Event(), deadline=Never())
        client = redis_client(broker_url)
        queues = [queue_of_device(self.identity.uuid), queue_of_type(self.identity.type)]
        inside = False
        while not stop.is_set():
            if window.is_set() and not inside:
                inside, self.times = True, Times()
            asked = time.perf_counter()
            message: Any = client.brpop(queues, timeout=2)
            got = time.perf_counter()
            self.times.waiting += got - asked
            if message is None:
                continue
            self.measured_s = 0.0
            ((batch_id,), *_) = json.loads(base64.b64decode(json.loads(message[1])["body"]))
            self.times.rows += runner.run_batch(batch_id)
            self.times.measuring += self.measured_s
            self.times.rest += time.perf_counter() - got - self.measured_s


def stand_in_process(ids: list[int]) -> None:
    """Serves these devices until SIGTERM. SIGUSR1 opens the window; SIGUSR2 closes it, and prints what was in it."""
    stop, window, close = threading.Event(), threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: window.set())
    signal.signal(signal.SIGUSR2, lambda *_: close.set())
    url, broker = os.environ["FARM_DATABASE_URL"], os.environ["FARM_BROKER_URL"]
    engine = make_engine(url, application="stand-ins", pool_size=CONNECTIONS, session=HASTY, pre_ping=False)
    with engine.connect() as connection:
        identities = [devices.identity(connection, i) for i in ids]
    opened = RecordedDevice(identities[0])
    opened.open()
    stand_ins = [StandIn(identity, opened) for identity in identities]
    threading.stack_size(512 * 1024)
    for device_id, stand_in in zip(ids, stand_ins, strict=True):
        arguments = (engine, device_id, broker, window, stop)
        threading.Thread(target=stand_in.serve, args=arguments, daemon=True).start()
    while not stop.is_set():
        began = time.monotonic()
        for device_id in ids:
            with engine.begin() as connection:
                held = batches.held_by(connection, device_id)
                if held is not None:
                    batches.renew(connection, held, device_id=device_id, lease_seconds=settings().lease_seconds)
                devices.heartbeat(connection, device_id)
            time.sleep(max(0.0, settings().heartbeat_seconds / len(ids) * 0.8))
            if close.is_set():
                close.clear()
                print(json.dumps([vars(stand_in.times) for stand_in in stand_ins]), flush=True)
        stop.wait(max(0.0, settings().heartbeat_seconds - (time.monotonic() - began)))
    os._exit(0)


# --- the benchmark -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the window")
    parser.add_argument("--job-seconds", type=float, default=1.0, help="device seconds of a job")
    parser.add_argument("--processes", type=int, default=8, help="processes of stand-ins")
    parser.add_argument("--result", default="thousand_devices", help="name of the files in results/")
    parser.add_argument("--stand-in", type=int, nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stand_in:
        stand_in_process(asked.stand_in)
        return
    jobs = 1000 * round(asked.devices * (asked.seconds + 2 * WARM_UP_SECONDS) * 1.3 / asked.job_seconds / 1000)
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
        Path(folder).chmod(0o755)
        file, recording = Path(folder) / "campaign.yaml", Path(folder) / "recording.parquet"
        file.write_text(campaign_text(jobs))
        record(file, recording, job_seconds=asked.job_seconds)
        with farm_home(recording, FARM_DEVICES=f"recorded:{recording}?scale=1") as (urls, engine):
            _, ids = register_devices(engine, asked.devices, "stand-in")
            campaign_id = store(engine, load(file, limit=10**7))
            environment = {
                **os.environ,
                "FARM_DATABASE_URL": urls.database_url,
                "FARM_BROKER_URL": urls.broker_url or "",
            }
            with Stack(urls, settings().home, programs=[COORDINATOR]) as stack:
                started = [
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "benchmarks.thousand_devices",
                            "--stand-in",
                            *map(str, ids[n :: asked.processes]),
                        ],
                        env=environment,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for n in range(asked.processes)
                ]
                try:
                    figures = watch(engine, urls.broker_url or "", stack, started, campaign_id, asked.seconds)
                finally:
                    for process in started:
                        process.terminate()
                        process.wait()
    figures |= {"devices": asked.devices, "job_s": asked.job_seconds, "batch_s": settings().batch_seconds}
    table = markdown(
        [
            "devices", "jobs/s", "batches/s", "idle for want of work: worst %", "mean %", "claim, mark, land: mean %",
            "coordinator CPU %", "Postgres and Redis CPU %", "stand-ins CPU %",
        ],
        [[
            asked.devices, figures["jobs_per_second"], figures["batches_per_second"], figures["idle_pct"],
            figures["mean_idle_pct"], figures["mean_overhead_pct"], figures["coordinator_cpu_pct"],
            figures["services_cpu_pct"], figures["stand_ins_cpu_pct"],
        ]],
    )  # fmt: skip
    table += "\n\nCPU in percent of one core of this machine, which has all of it to carry."
    write(asked.result, figures, table, repetitions=1)


def watch(
    engine: Engine,
    broker_url: str,
    stack: Stack,
    started: list[subprocess.Popen[str]],
    campaign_id: int,
    seconds: float,
) -> dict[str, Any]:
    """Waits until every device has worked, opens the window, and says what was in it."""
    worked = text("SELECT count(DISTINCT device_id) FROM batches WHERE state IN ('leased', 'done')")
    total = text("SELECT count(*) FROM devices")
    while True:
        stack.check()
        time.sleep(1)
        with engine.connect() as connection:
            if connection.execute(worked).scalar_one() == connection.execute(total).scalar_one():
                break
    time.sleep(WARM_UP_SECONDS)
    groups = {
        "coordinator": list(stack.pids().values()),
        "services": postgres_and_redis(engine, broker_url),
        "stand_ins": [process.pid for process in started],
    }
    before = {name: cpu_seconds(pids) for name, pids in groups.items()}
    with engine.connect() as connection:
        batches_before = connection.execute(text("SELECT count(*) FROM batches WHERE state = 'done'")).scalar_one()
    for process in started:
        process.send_signal(signal.SIGUSR1)
    began = time.monotonic()
    time.sleep(seconds)
    for process in started:
        process.send_signal(signal.SIGUSR2)
    window = time.monotonic() - began
    after = {name: cpu_seconds(pids) for name, pids in groups.items()}
    times = [Times(**one) for process in started for one in json.loads((process.stdout or sys.stdin).readline())]
    with engine.connect() as connection:
        done = connection.execute(text("SELECT count(*) FROM batches WHERE state = 'done'")).scalar_one()
        counts = campaigns.counts(connection, campaign_id)
    assert counts["pending"] > 0, "the work ran out within the window"
    shares = [100 * t.waiting / (t.waiting + t.measuring + t.rest) for t in times]
    overheads = [100 * t.rest / (t.waiting + t.measuring + t.rest) for t in times]
    return {
        "idle_pct": round(max(shares), 2),
        "mean_idle_pct": round(statistics.fmean(shares), 3),
        "mean_overhead_pct": round(statistics.fmean(overheads), 2),
        "worst_overhead_pct": round(max(overheads), 2),
        **{f"{name}_cpu_pct": round(100 * (after[name] - before[name]) / window, 1) for name in groups},
        "jobs_per_second": round(sum(t.jobs for t in times) / window, 1),
        "batches_per_second": round((done - batches_before) / window, 1),
        "window_s": round(window, 1),
        "dead": counts["dead"],
    }


if __name__ == "__main__":
    main()
