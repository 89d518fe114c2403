"""How many devices can one coordinator keep busy? Devices are simulated, so that two cores are enough.

    python -m benchmarks.many_devices [--devices 4000] [--owners 1 40] [--seconds 60] [--repetitions 3]

Postgres, Redis and the coordinator's process are real, and so are its messages and what it reads and writes. One more process
stands in for all devices: it takes messages off the queue of their type, claims and ends the batches of all devices in
one statement each, and says that the devices live. It stores no measurements, and marks no jobs. So the coordinator
shares the machine with less than what real workers ask of it: `benchmarks/thousand_devices.py` has all of that, and needs more cores.

A job takes one second, give or take half; each owner has one campaign. A device is idle from the moment at which it finds
its queue empty until it has a message. The window begins 20 s after the first batch.
"""

from __future__ import annotations

import argparse
import base64
import heapq
import json
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import redis
from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farms import small_farm, store
from benchmarks.made_up import campaign_of, register_devices
from benchmarks.processes import cpu_seconds, postgres_and_redis, redis_client
from farm.broker.queues import queue_of_type
from farm.services.stack import COORDINATOR, Stack
from farm.settings import settings

WARM_UP_SECONDS = 20.0
TICK_SECONDS = 0.02
LEASE_SECONDS = 3600.0

_CLAIM = text("""
UPDATE batches b
SET state = 'leased', device_id = c.device_id, claimed_at = clock_timestamp(), lease_token = gen_random_uuid(),
    lease_expires_at = clock_timestamp() + make_interval(secs => :seconds),
    busy_until = clock_timestamp() + make_interval(secs => :seconds)
FROM unnest(CAST(:ids AS bigint[]), CAST(:devices AS bigint[])) AS c(id, device_id)
WHERE b.id = c.id AND b.state = 'queued' RETURNING b.id, b.device_id, b.jobs
""")
_END = text("""
WITH over AS (
    UPDATE batches SET state = 'done', lease_token = NULL, lease_expires_at = NULL, finished_at = clock_timestamp(), done = jobs
    WHERE id = ANY(:ids) RETURNING job_ids
)
UPDATE jobs SET state = 'done' WHERE id IN (SELECT unnest(job_ids) FROM over)
""")
_ALL_LIVE = text("UPDATE devices SET last_seen_at = clock_timestamp()")


@dataclass
class Fleet:
    """All devices. Each is free, idle since some moment, or busy until another."""

    engine: Engine
    client: redis.Redis
    queue: str
    device_ids: list[int]
    job_seconds: float
    # Whether it says for all devices at once that they live. Otherwise another process sends their heartbeats.
    live: bool = True
    free: deque[int] = field(init=False)
    idle_s: dict[int, float] = field(init=False)
    jobs: int = 0
    batches: int = 0
    # Messages of batches that were gone: sent twice, or taken back.
    stale: int = 0
    _idle_since: dict[int, float] = field(default_factory=dict)
    # Free, and not seen yet that their queue is empty.
    _freed: set[int] = field(default_factory=set)
    _busy: list[tuple[float, int, int]] = field(default_factory=list)
    _lived: float = 0.0

    def __post_init__(self) -> None:
        self.free, self.idle_s = deque(self.device_ids), dict.fromkeys(self.device_ids, 0.0)
        self._freed = set(self.device_ids)

    def open_window(self) -> None:
        self.idle_s = dict.fromkeys(self.device_ids, 0.0)
        self.jobs = self.batches = self.stale = 0
        now = time.monotonic()
        self._idle_since = dict.fromkeys(self._idle_since, now)

    def close_window(self) -> None:
        for device in list(self._idle_since):
            self._found(device)

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self._tick(now)
            time.sleep(TICK_SECONDS)

    def _tick(self, now: float) -> None:
        if self.live and now > self._lived + settings().heartbeat_seconds:
            self._lived = now
            with self.engine.begin() as connection:
                connection.execute(_ALL_LIVE)
        over = list[int]()
        while self._busy and self._busy[0][0] <= now:
            _, batch_id, device = heapq.heappop(self._busy)
            over.append(batch_id)
            self.free.append(device)
            self._freed.add(device)
        if over:
            with self.engine.begin() as connection:
                connection.execute(_END, {"ids": sorted(over)})
        while self.free:
            messages: Any = self.client.rpop(self.queue, len(self.free))
            if not messages:
                break
            self._claim([json.loads(base64.b64decode(json.loads(one)["body"]))[0][0] for one in messages])
        self._idle_since |= dict.fromkeys(self._freed, time.monotonic())
        self._freed.clear()

    def _claim(self, ids: list[int]) -> None:
        offered = [self.free.popleft() for _ in ids]
        taking = {"ids": ids, "devices": offered, "seconds": LEASE_SECONDS}
        with self.engine.begin() as connection:
            rows = connection.execute(_CLAIM, taking).all()
        self.stale += len(ids) - len(rows)
        now, taken = time.monotonic(), set[int]()
        for batch_id, device, jobs in rows:
            taken.add(device)
            self._freed.discard(device)
            self._found(device)
            self.jobs += jobs
            self.batches += 1
            seconds = jobs * self.job_seconds * (0.5 + batch_id * 7919 % 1000 / 1000)
            heapq.heappush(self._busy, (now + seconds, batch_id, device))
        self.free.extendleft(device for device in reversed(offered) if device not in taken)

    def _found(self, device: int) -> None:
        """It is no longer idle, if it was."""
        since = self._idle_since.pop(device, None)
        if since is not None:
            self.idle_s[device] += time.monotonic() - since


def once(asked: argparse.Namespace, owners: int) -> dict[str, float]:
    with small_farm() as (urls, engine):
        device_type, ids = register_devices(engine, asked.devices, "simulated")
        fleet = Fleet(engine, redis_client(urls.broker_url or ""), queue_of_type(device_type), ids, asked.job_seconds)
        jobs = 1.3 * asked.devices * (asked.seconds + 2 * WARM_UP_SECONDS) / asked.job_seconds
        for n in range(owners):
            store(engine, campaign_of(f"of-{n:03}", f"owner-{n:03}", 10_000 * round(1 + jobs / owners / 10_000)))
        with Stack(urls, settings().home, programs=[COORDINATOR]) as stack:
            while not fleet.batches:
                stack.check()
                fleet.run(1)
            fleet.run(WARM_UP_SECONDS)
            groups = {
                "coordinator": list(stack.pids().values()),
                "services": postgres_and_redis(engine, urls.broker_url or ""),
            }
            before = {name: cpu_seconds(pids) for name, pids in groups.items()}
            began = time.monotonic()
            fleet.open_window()
            fleet.run(asked.seconds)
            fleet.close_window()
            window = time.monotonic() - began
            cpu = {name: 100 * (cpu_seconds(pids) - before[name]) / window for name, pids in groups.items()}
            stack.check()
        with engine.connect() as connection:
            left = connection.execute(text("SELECT count(*) FROM lanes WHERE fresh")).scalar_one()
    assert left == owners, "the work ran out within the window"
    shares = [100 * seconds / window for seconds in fleet.idle_s.values()]
    return {
        "mean_idle_pct": statistics.fmean(shares),
        "worst_idle_pct": max(shares),
        "batches_per_second": fleet.batches / window,
        "jobs_per_second": fleet.jobs / window,
        "stale_messages": float(fleet.stale),
        **{f"{name}_cpu_pct": share for name, share in cpu.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4000)
    parser.add_argument("--owners", type=int, nargs="+", default=[1, 40], help="numbers of owners to try")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the window")
    parser.add_argument("--job-seconds", type=float, default=1.0, help="mean device seconds of a job")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--show", action="store_true", help="print the figures and write none")
    asked = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    for owners in asked.owners:
        runs = [once(asked, owners) for _ in range(asked.repetitions)]
        figures[str(owners)] = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    table = markdown(
        ["devices", "owners", "idle for want of work: mean %", "worst %", "batches/s", "coordinator CPU %", "Postgres and Redis CPU %"],
        [
            [
                asked.devices, int(owners), of["mean_idle_pct"], of["worst_idle_pct"], of["batches_per_second"],
                of["coordinator_cpu_pct"], of["services_cpu_pct"],
            ]
            for owners, of in figures.items()
        ],
    )  # fmt: skip
    table += "\n\nDevices are simulated; CPU in percent of one core of this machine, which has all of it to carry."
    if asked.show:
        print(figures, table, sep="\n")
    else:
        write("many_devices", {"devices": asked.devices, "owners": figures}, table, repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
