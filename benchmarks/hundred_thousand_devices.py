"""Where does a farm of a hundred thousand devices break first?

    python -m benchmarks.hundred_thousand_devices [--devices 1000 10000 30000 100000] [--owners 1 40] [--seconds 15]

The coordinator, Postgres and Redis are real, and every device is a row. Devices are simulated as in `benchmarks/many_devices.py`. In
addition, some processes send each device's heartbeats at the configured rate, in a transaction each, with the statement and the
session settings of a worker. A farm of real devices asks more of Postgres: it renews leases, marks jobs and stores rows.

Each step has a farm of its own: first heartbeats alone, then the coordinator with devices whose jobs take one second, give or take
half. CPU is given per heartbeat and per batch, so that a plan for other machines is arithmetic. The last step repeats the largest
number of devices with batches of 40 s and heartbeats every 20 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import psycopg
from sqlalchemy import Engine, text

from benchmarks.common import RESULTS, markdown, write
from benchmarks.farms import small_farm, store
from benchmarks.made_up import campaign_of, copy_devices, register_devices, vacuum
from benchmarks.many_devices import Fleet
from benchmarks.pages_speed import served
from benchmarks.processes import cpu_seconds, postgres_and_redis, redis_client
from farm.broker.queues import queue_of_type
from farm.campaign import plan
from farm.coordinator.dispatch import read_schedule
from farm.db import campaigns, devices
from farm.db.engine import MEASURING, make_engine
from farm.services import ServiceUrls
from farm.services.stack import COORDINATOR, Stack
from farm.settings import settings

NAME = "hundred_thousand_devices"
BEAT_SECONDS = 6.0
WARM_UP_SECONDS = 8.0
PAGE_SECONDS = 60.0
FIRST_BATCH_SECONDS = 60.0
REGISTERED_SINGLY = 500
MAX_JOBS = 160_000
"""Of a step: more than a coordinator on a few cores forms in its time."""

MAX_SECONDS = 900.0
"""After this long, no further step begins."""

WIDE = {"FARM_HEARTBEAT_SECONDS": "20", "FARM_SILENT_AFTER_SECONDS": "100", "FARM_LEASE_SECONDS": "100"}
WIDE_JOB_SECONDS = 10.0


def beat(ids: list[int], url: str) -> None:
    """Sends heartbeats of these devices over one connection, spread over time, until SIGTERM. Then it prints when each was sent."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = " ".join(f"-c {name}={value}" for name, value in MEASURING.items())
    every, sent = settings().heartbeat_seconds, list[float]()
    with psycopg.connect(url, autocommit=True, options=options, prepare_threshold=1) as connection:
        begin = time.monotonic()
        print("beats", flush=True)
        while not stop.is_set():
            due = begin + every * len(sent) / len(ids)
            if (early := due - time.monotonic()) > 0:
                stop.wait(max(early, 0.01))
                continue
            given = (ids[len(sent) % len(ids)], None, devices.UNFIT_SECONDS)
            connection.execute("SELECT * FROM worker_heartbeat(%s, %s, %s)", given).fetchall()
            sent.append(time.monotonic())
    print(json.dumps(sent), flush=True)


class Beats:
    """The processes that send heartbeats. After the block, `times` has when each was sent."""

    def __init__(self, ids: list[int], urls: ServiceUrls, processes: int) -> None:
        self.times = list[float]()
        url = urls.database_url.replace("+psycopg", "")
        command = [sys.executable, "-m", "benchmarks.hundred_thousand_devices", "--beat", url]
        self._started = list[subprocess.Popen[str]]()
        for n in range(processes):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._started.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(ids[n::processes]))
            process.stdin.close()

    def __enter__(self) -> Beats:
        for process in self._started:
            assert process.stdout is not None
            assert process.stdout.readline() == "beats\n", "a process of heartbeats failed"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            assert process.stdout is not None
            last = process.stdout.read().strip()
            process.wait()
            self.times += json.loads(last) if last else []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._started]

    def rate(self, began: float, ended: float) -> float:
        """Heartbeats per second in that time."""
        return sum(began <= at < ended for at in self.times) / (ended - began)


@contextmanager
def used(groups: Mapping[str, list[int]]) -> Iterator[dict[str, float]]:
    """CPU of these processes inside the block, in percent of a core."""
    found = dict[str, float]()
    before, began = {name: cpu_seconds(pids) for name, pids in groups.items()}, time.monotonic()
    yield found
    window = time.monotonic() - began
    found |= {name: 100 * (cpu_seconds(pids) - before[name]) / window for name, pids in groups.items()}


_WAL = text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8")


def wal_bytes(engine: Engine) -> float:
    with engine.connect() as connection:
        found: float = connection.execute(_WAL).scalar_one()
        return found


def beats_alone(
    engine: Engine, ids: list[int], urls: ServiceUrls, processes: int, postgres: list[int]
) -> dict[str, float]:
    """What heartbeats cost where nothing else is going on."""
    with Beats(ids, urls, processes) as beats:
        began, wal = time.monotonic(), wal_bytes(engine)
        with used({"postgres": postgres, "beats": beats.pids}) as cpu:
            time.sleep(BEAT_SECONDS)
        ended, wal = time.monotonic(), wal_bytes(engine) - wal
    rate = beats.rate(began, ended)
    return {
        "beats_alone_per_second": rate,
        "postgres_us_per_beat": 1e4 * cpu["postgres"] / rate,
        "wal_bytes_per_beat": wal / (rate * (ended - began)),
    }


def turns(address: str) -> tuple[float, float]:
    """Seconds in turns of the coordinator, and their number, since it started."""
    names = [f"gemm_farm_coordinator_turn_seconds_{end}" for end in ("sum", "count")]
    # These alone: the other metrics read the database.
    response = httpx.get(f"http://{address}/metrics", params={"name[]": names}, timeout=PAGE_SECONDS)
    values = dict(line.split(" ")[:2] for line in response.text.splitlines() if not line.startswith("#"))
    found = [float(values.get(name, 0)) for name in names]
    return found[0], found[1]


def scrape_s(address: str) -> float | None:
    """How long all metrics of the coordinator take; None: too long."""
    try:
        return timed_ms(lambda: httpx.get(f"http://{address}/metrics", timeout=PAGE_SECONDS).raise_for_status()) / 1e3
    except httpx.HTTPError:
        return None


def timed_ms(what: Any) -> float:
    began = time.perf_counter()
    what()
    return 1e3 * (time.perf_counter() - began)


def plan_of(engine: Engine) -> None:
    """Plans a small campaign for all devices, as `farm submit` does, which has more time than a coordinator."""
    with engine.connect() as connection:
        known = campaigns.known_devices(connection)
    plan(campaign_of("planned", "owner-000", 1000), known, allow_missing=False)


def views(engine: Engine) -> dict[str, float | None]:
    """How long the farm takes to read and to show all devices. None: longer than `PAGE_SECONDS`."""
    schedules = [timed_ms(lambda: read_schedule(engine, settings())) for _ in range(3)]
    command = [sys.executable, "-m", "farm", "status"]
    status = timed_ms(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=120))
    found: dict[str, float | None] = {
        "read_schedule_ms": statistics.median(schedules),
        "plan_s": timed_ms(lambda: plan_of(engine)) / 1e3,
        "status_s": status / 1e3,
    }
    with served() as address, httpx.Client(base_url=address, timeout=PAGE_SECONDS) as client:
        client.get("/").raise_for_status()
        pages = list[bytes]()
        try:
            page = timed_ms(lambda: pages.append(client.get("/devices").raise_for_status().content))
        except httpx.HTTPError:  # it took too long
            return found | {"devices_page_s": None, "devices_page_mb": None}
    return found | {"devices_page_s": page / 1e3, "devices_page_mb": len(pages[0]) / 1e6}


def memory_mb(pids: list[int]) -> float:
    """Proportional memory of these processes and their children."""
    known = [one for pid in pids for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    return float(sum(one.memory_full_info().pss for one in known) / 2**20)


_LIVE = text("""
SELECT 100.0 * count(*) FILTER (WHERE last_seen_at > clock_timestamp() - make_interval(secs => :silent)) / count(*) FROM devices
""")
_SIZE = text("SELECT pg_table_size('devices') / 1048576.0")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def once(asked: argparse.Namespace, count: int, owners: int, job_seconds: float) -> dict[str, float | None]:
    metrics = os.environ["FARM_COORDINATOR_METRICS"] = f"127.0.0.1:{free_port()}"
    with small_farm() as (urls, engine):
        broker = urls.broker_url or ""
        postgres, redis_pid = postgres_and_redis(engine, broker)
        singly = min(count, REGISTERED_SINGLY)
        began = time.perf_counter()
        device_type, ids = register_devices(engine, singly, "simulated")
        figures: dict[str, Any] = {"register_us": 1e6 * (time.perf_counter() - began) / singly}
        jobs = min(MAX_JOBS, 10 * count + 1.3 * count * (asked.seconds + 2 * WARM_UP_SECONDS) / job_seconds)
        for n in range(owners):
            store(engine, campaign_of(f"of-{n:03}", f"owner-{n:03}", 1000 * round(1 + jobs / owners / 1000)))
        ids = copy_devices(engine, count, "simulated", ids[0], first=singly)
        vacuum(engine)
        figures |= beats_alone(engine, ids, urls, asked.processes, [postgres])
        fleet = Fleet(engine, redis_client(broker), queue_of_type(device_type), ids, job_seconds, live=False)
        with Beats(ids, urls, asked.processes) as beats, Stack(urls, settings().home, programs=[COORDINATOR]) as stack:
            until = time.monotonic() + FIRST_BATCH_SECONDS
            while not fleet.batches and time.monotonic() < until:
                stack.check()
                fleet.run(1)
            fleet.run(WARM_UP_SECONDS)
            coordinator = list(stack.pids().values())
            groups = {"coordinator": coordinator, "postgres": [postgres], "redis": [redis_pid]}
            turn_s, number = turns(metrics)
            began, wal = time.monotonic(), wal_bytes(engine)
            fleet.open_window()
            with used(groups) as cpu:
                fleet.run(asked.seconds)
            fleet.close_window()
            ended, wal = time.monotonic(), wal_bytes(engine) - wal
            later_s, later = turns(metrics)
            stack.check()
            figures["scrape_s"] = scrape_s(metrics)
            with engine.connect() as connection:
                figures["live_pct"] = float(
                    connection.execute(_LIVE, {"silent": settings().silent_after_seconds}).scalar_one()
                )
                figures["devices_table_mb"] = float(connection.execute(_SIZE).scalar_one())
                left = connection.execute(text("SELECT count(*) FROM lanes WHERE fresh")).scalar_one()
            figures |= {"coordinator_mb": memory_mb(coordinator), "postgres_mb": memory_mb([postgres])}
        if owners == min(asked.owners) and "FARM_HEARTBEAT_SECONDS" not in os.environ:
            patient = make_engine(urls.database_url, application="benchmark")
            figures |= views(patient)
            patient.dispose()
    window = ended - began
    batches = max(fleet.batches / window, 1e-9)
    rate, due = beats.rate(began, ended), count / settings().heartbeat_seconds
    return figures | {
        "jobs_ran_out": float(left < owners),
        "jobs_asked_per_second": count / job_seconds,
        "jobs_per_second": fleet.jobs / window,
        "batches_per_second": fleet.batches / window,
        "mean_idle_pct": statistics.fmean(100 * seconds / window for seconds in fleet.idle_s.values()),
        "turn_ms": 1e3 * (later_s - turn_s) / max(later - number, 1),
        "beats_due_per_second": due,
        "beats_per_second": rate,
        "beats_pct": 100 * rate / due,
        **{f"{name}_cpu_pct": share for name, share in cpu.items()},
        "coordinator_us_per_batch": 1e4 * cpu["coordinator"] / batches,
        "redis_us_per_batch": 1e4 * cpu["redis"] / batches,
        "postgres_us_per_batch": max(0.0, 1e4 * cpu["postgres"] - rate * figures["postgres_us_per_beat"]) / batches,
        "wal_mb_per_second": wal / window / 1e6,
        "load_average": os.getloadavg()[0],
    }


COLUMNS = {
    "jobs/s due": "jobs_asked_per_second",
    "jobs/s": "jobs_per_second",
    "idle: mean %": "mean_idle_pct",
    "turn ms": "turn_ms",
    "heartbeats/s due": "beats_due_per_second",
    "heartbeats/s": "beats_per_second",
    "live %": "live_pct",
    "coordinator CPU %": "coordinator_cpu_pct",
    "Postgres CPU %": "postgres_cpu_pct",
    "Redis CPU %": "redis_cpu_pct",
}
COSTS = {
    "Postgres µs per heartbeat": "postgres_us_per_beat",
    "WAL bytes per heartbeat": "wal_bytes_per_beat",
    "coordinator µs per batch": "coordinator_us_per_batch",
    "Postgres µs per batch": "postgres_us_per_batch",
    "Redis µs per batch": "redis_us_per_batch",
    "registering µs": "register_us",
    "coordinator MiB": "coordinator_mb",
}
VIEWS = {
    "reading the schedule ms": "read_schedule_ms",
    "planning a campaign s": "plan_s",
    "`farm status` s": "status_s",
    "page of devices s": "devices_page_s",
    "page MB": "devices_page_mb",
    "metrics s": "scrape_s",
}


def shown(value: Any) -> Any:
    return f"over {PAGE_SECONDS:.0f}" if value is None else value


def table_of(steps: list[dict[str, Any]], one_owner: int) -> str:
    def part(columns: Mapping[str, str], rows: list[dict[str, Any]]) -> str:
        named = {"devices": "devices", "owners": "owners", "settings": "settings"}
        named = {**named, **columns} if columns is not VIEWS else {"devices": "devices", **columns}
        return markdown(list(named), [[shown(row[key]) for key in named.values()] for row in rows])

    viewed = [row for row in steps if row["owners"] == one_owner and row["settings"] == "default"]
    costed = [row for row in steps if row["owners"] == one_owner]
    return "\n\n".join([part(COLUMNS, steps), part(COSTS, costed), part(VIEWS, viewed)])


def rounded(found: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1_000, 10_000, 30_000, 100_000])
    parser.add_argument("--owners", type=int, nargs="+", default=[1, 40], help="numbers of owners to try")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of the window of a step")
    parser.add_argument(
        "--processes", type=int, default=2, help="processes that send heartbeats, with a connection each"
    )
    parser.add_argument("--add", action="store_true", help="keep the earlier results of other numbers of devices")
    parser.add_argument("--show", action="store_true", help="print the figures and write none")
    parser.add_argument("--beat", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.beat:
        beat(json.load(sys.stdin), asked.beat)
        return
    began = time.monotonic()
    earlier = json.loads((RESULTS / f"{NAME}.json").read_text())["steps"] if asked.add else []
    steps: list[dict[str, Any]] = [step for step in earlier if step["devices"] not in asked.devices]
    # The largest first, in case the time does not suffice.
    planned = [
        step
        for owners in asked.owners
        for step in (
            *(("default", count, owners, 1.0) for count in sorted(asked.devices, reverse=True)),
            *([] if asked.add else [("40 s", max(asked.devices), owners, WIDE_JOB_SECONDS)]),
        )
    ]
    for name, count, owners, job_seconds in planned:
        if time.monotonic() > began + MAX_SECONDS:
            print(f"{count:,} devices, {owners} owners, {name}: not run, the time is over", file=sys.stderr)
            continue
        for variable, value in WIDE.items():
            os.environ.pop(variable, None)
            if name != "default":
                os.environ[variable] = value
        found = once(asked, count, owners, job_seconds)
        steps.append({"devices": count, "owners": owners, "settings": name, **rounded(found)})
        print(steps[-1], file=sys.stderr, flush=True)
        steps.sort(key=lambda step: (step["settings"] != "default", step["devices"], step["owners"]))
        table = table_of(steps, min(asked.owners))
        table += "\n\nDevices are simulated. CPU in percent of a core; the simulation runs on the same cores. "
        loads = [step["load_average"] for step in steps]
        table += f"Load average of the machine in the steps: {min(loads):.1f} to {max(loads):.1f}."
        if asked.show:
            print(table)
        else:  # after each step, in case a later one fails
            figures = {"beat_processes": asked.processes, "steps": steps}
            write(NAME, figures, table, repetitions=1, show=False)


if __name__ == "__main__":
    main()
