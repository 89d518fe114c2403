"""Are devices shared fairly between owners and campaigns? How long does an urgent or a small campaign wait?

    python -m benchmarks.fairness [--owners 200] [--devices 8] [--minutes 10] [--jobs 1000000]

Postgres, the coordinator's schedule, forming, claiming, landing and counting are real. Devices are simulated, and so is
time: a batch takes the sum of its jobs' made-up device seconds, after which its rows land. The coordinator's turns take
the time that they take on this machine. Messages arrive at once, in the order in which they were sent.

1. Owners, each with a campaign of its own, share devices of one type. The jobs of an owner take from 0.1 to 2 s. Half way
   another coordinator takes over. `least_share` and `greatest_share` are device seconds of owners, over the mean of all;
   `furthest_behind_s` is how many an owner was behind that mean at any time. Then a tenth
   as many owners come. A round is the time in which the devices measure one batch of each owner.
2. One owner's campaign of a million jobs keeps all devices busy. Small campaigns come one after another: urgent ones of another owner
   (a higher priority), and some of the same owner with the same priority. Seconds until the first row of each has landed.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farms import small_farm, store
from benchmarks.made_up import RESULT, campaign_of
from farm.broker.queues import queue_of_device, queue_of_type
from farm.campaign import Campaign
from farm.coordinator.dispatch import form_batches, make_way, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.coordinator.loop import BUSY_SECONDS, IDLE_SECONDS
from farm.db import batches, devices
from farm.settings import Settings, settings
from workers.devices import discover

JOB_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Device seconds of a job, owner by owner."""

MILLION_JOB_SECONDS = 0.3
SMALL_JOBS = 20
SMALL_JOB_SECONDS = (0.1, 0.2, 0.5)
ARRIVALS = 20
ARRIVAL_SECONDS = 7.3
"""Between two small campaigns: no multiple of a batch's time, so that they come at any moment of it."""

_TOOK = text("""
UPDATE batches SET claimed_at = finished_at - make_interval(secs => :seconds) WHERE id = :id AND state = 'done'
""")
_NEW = text("SELECT id, queue FROM batches WHERE NOT folded AND state = 'queued' AND sent_at IS NULL ORDER BY id")
_ALL_LIVE = text("UPDATE devices SET last_seen_at = clock_timestamp()")


@dataclass
class Farm:
    """Simulated devices of one type, with the real coordinator's steps, on a clock of their own."""

    engine: Engine
    settings: Settings
    device_ids: Sequence[int]
    uuids: Sequence[str]
    device_type: str
    now: float = 0.0
    job_seconds: dict[int, float] = field(default_factory=dict)
    used: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    first_row: dict[int, float] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)
    batch_seconds: list[float] = field(default_factory=list)
    _messages: defaultdict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    # The end of each batch in hand, with the device and what lands.
    _running: list[tuple[float, int, float, batches.Lease]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = list(range(len(self.device_ids)))
        self.take_over()

    def take_over(self) -> None:
        """Another coordinator: it knows what the database knows."""
        self._costs = CostBook(lambda: self.now)

    def submit(self, what: Campaign, job_seconds: float) -> int:
        campaign_id = store(self.engine, what)
        self.job_seconds[campaign_id] = job_seconds
        return campaign_id

    def run(
        self,
        until: float,
        also_until: Callable[[], bool] = lambda: False,
        each_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Turns of the coordinator, and what devices do between them."""
        while self.now < until and not also_until():
            each_turn()
            began = time.perf_counter()
            with self.engine.begin() as connection:
                connection.execute(_ALL_LIVE)
            schedule = read_schedule(self.engine, self.settings)
            make_way(self.engine, schedule)
            formed = form_batches(self.engine, schedule, self._costs, self.settings)
            with self.engine.begin() as connection:
                new = list(connection.execute(_NEW))
                batches.mark_sent(connection, [row.id for row in new])
            with self.engine.begin() as connection:
                batches.fold(connection, weights=self.settings.weights_of_owners)
            took = time.perf_counter() - began
            self.turns.append(took)
            for batch_id, queue in new:
                self._messages[queue].append(batch_id)
            self._advance(self.now + took + (BUSY_SECONDS if formed else IDLE_SECONDS))

    def _advance(self, until: float) -> None:
        self._claim()
        while self._running and self._running[0][0] <= until:
            self.now, device, seconds, lease = heapq.heappop(self._running)
            self._land(device, seconds, lease)
            self._claim()
        self.now = until

    def _claim(self) -> None:
        for device in list(self._free):
            lease = None
            for queue in (queue_of_device(self.uuids[device]), queue_of_type(self.device_type)):
                while lease is None and self._messages[queue]:
                    with self.engine.begin() as connection:
                        lease = batches.claim(
                            connection, self._messages[queue].popleft(), device_id=self.device_ids[device],
                            lease_seconds=10_000,
                        )  # fmt: skip
                if lease is not None:
                    break
            if lease is not None:
                self._free.remove(device)
                seconds = len(lease.jobs) * self.job_seconds[lease.campaign_id]
                heapq.heappush(self._running, (self.now + seconds, device, seconds, lease))

    def _land(self, device: int, seconds: float, lease: batches.Lease) -> None:
        with self.engine.begin() as connection:
            batches.land(connection, lease, [(job, RESULT) for job in lease.jobs], {})
            connection.execute(_TOOK, {"id": lease.batch_id, "seconds": seconds})
        self._free.append(device)
        self.used[lease.campaign_id] += seconds
        self.batch_seconds.append(seconds)
        self.first_row.setdefault(lease.campaign_id, self.now)

    def used_by_now(self) -> dict[int, float]:
        """Device seconds of each campaign so far, with what its running batches have used until now."""
        found = defaultdict(float, self.used)
        for end, _, seconds, lease in self._running:
            found[lease.campaign_id] += seconds - (end - self.now)
        return found


def farm_of(engine: Engine, count: int) -> Farm:
    (first,) = discover(settings().devices)
    uuids = [f"{first.uuid}-{n:03}" for n in range(count)]
    with engine.begin() as connection:
        ids = [
            devices.register(
                connection, host="bench", host_facts={}, device=replace(first, uuid=uuid, name=f"simulated {n}")
            )
            for n, uuid in enumerate(uuids)
        ]
    return Farm(engine, settings(), ids, uuids, first.type)


def of_owners(engine: Engine, asked: argparse.Namespace) -> dict[str, Any]:
    """Owners with equal weights, over some minutes, and others that come then."""
    farm = farm_of(engine, asked.devices)
    seconds = 60 * asked.minutes
    fair = asked.devices * seconds / asked.owners

    def come(first: int, count: int) -> list[int]:
        found = []
        for n in range(first, first + count):
            job_seconds = JOB_SECONDS[n % len(JOB_SECONDS)]
            jobs = 10 * max(2, round(2 * fair / job_seconds / 10))
            found.append(farm.submit(campaign_of(f"of-{n:03}", f"owner-{n:03}", jobs), job_seconds))
        return found

    ids = come(0, asked.owners)
    behind = [0.0]

    def look() -> None:
        so_far = farm.used_by_now()
        behind.append(sum(so_far.values()) / asked.owners - min(so_far.get(i, 0.0) for i in ids))

    farm.run(seconds / 2, each_turn=look)
    farm.take_over()
    farm.run(seconds, each_turn=look)
    used = farm.used_by_now()
    shares = [used[i] / (sum(used.values()) / asked.owners) for i in ids]
    round_s = asked.owners * statistics.fmean(farm.batch_seconds) / asked.devices
    first = [farm.first_row.get(i, float("inf")) / round_s for i in ids]
    busy = sum(used.values()) / (asked.devices * farm.now)
    turns = list(farm.turns)
    began, later = farm.now, come(asked.owners, max(1, asked.owners // 10))
    farm.run(began + 4 * round_s, lambda: all(i in farm.first_row for i in later))
    waited = [(farm.first_row.get(i, float("inf")) - began) / round_s for i in later]
    return {
        "least_share": round(min(shares), 4),
        "greatest_share": round(max(shares), 4),
        "furthest_behind_s": round(max(behind), 2),
        "never_served": sum(i not in farm.first_row for i in ids),
        "round_s": round(round_s, 2),
        "first_row_rounds": round(max(first), 3),
        "newcomers_first_row_rounds": round(max(waited), 3),
        "device_busy_share": round(busy, 4),
        "turn_ms": {"median": round(1e3 * statistics.median(turns), 2), "worst": round(1e3 * max(turns), 2)},
        "owners": asked.owners,
        "devices": asked.devices,
        "seconds": seconds,
    }


def of_a_million(engine: Engine, asked: argparse.Namespace) -> dict[str, Any]:
    """Small campaigns beside one that has all devices."""
    farm = farm_of(engine, asked.devices)
    farm.submit(campaign_of("million", "ann", asked.jobs), MILLION_JOB_SECONDS)
    farm.run(60)
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for n in range(ARRIVALS):
        for kind, owner, priority in (("urgent", "bob", 10), ("small", "ann", 0)):
            came = farm.now
            campaign_id = farm.submit(
                campaign_of(f"{kind}-{n}", owner, SMALL_JOBS, priority=priority),
                SMALL_JOB_SECONDS[n % len(SMALL_JOB_SECONDS)],
            )
            farm.run(came + 300, lambda i=campaign_id: i in farm.first_row)  # type: ignore[misc]
            waits[kind].append(farm.first_row.get(campaign_id, float("inf")) - came)
            farm.run(came + ARRIVAL_SECONDS)
    return {
        "urgent_first_row_s": round(max(waits["urgent"]), 2),
        "urgent_first_row_median_s": round(statistics.median(waits["urgent"]), 2),
        "small_first_row_s": round(max(waits["small"]), 2),
        "small_first_row_median_s": round(statistics.median(waits["small"]), 2),
        "million_turn_ms": {
            "median": round(1e3 * statistics.median(farm.turns), 2),
            "worst": round(1e3 * max(farm.turns), 2),
        },
        "jobs": asked.jobs,
        "arrivals": ARRIVALS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=200)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--show", action="store_true", help="print the figures and write none")
    asked = parser.parse_args()
    figures: dict[str, Any] = {}
    for part in (of_owners, of_a_million):
        with small_farm() as (_, engine):
            figures |= part(engine, asked)
    table = markdown(
        ["", "measured", "target"],
        [
            ["least device seconds of an owner, over the mean", figures["least_share"], "at least 0.9"],
            ["greatest device seconds of an owner, over the mean", figures["greatest_share"], ""],
            [
                "furthest that an owner was behind the mean at any time, device seconds",
                figures["furthest_behind_s"],
                "",
            ],
            ["first row of the last owner, rounds", figures["first_row_rounds"], "at most 2"],
            ["first row of owners that come later, rounds", figures["newcomers_first_row_rounds"], "at most 2"],
            ["first row of an urgent campaign, s", figures["urgent_first_row_s"], "at most 5"],
            ["first row of a small campaign of the same owner, s", figures["small_first_row_s"], "at most 60"],
        ],
    )
    table += (
        f"\n\n{figures['owners']} owners on {figures['devices']} devices over {figures['seconds']:.0f} s; a round takes "
        f"{figures['round_s']:.0f} s. The urgent and small campaigns run beside one of {figures['jobs']:,} jobs; the worst of "
        f"{figures['arrivals']} each. A turn of the coordinator takes {figures['turn_ms']['median']:.0f} ms with {figures['owners']} owners, and "
        f"{figures['million_turn_ms']['median']:.0f} ms beside the large campaign (medians).\n\nDevices and time are simulated, all else is real."
    )
    if asked.show:
        print(figures, table, sep="\n")
    else:
        write("fairness", figures, table, repetitions=1)


if __name__ == "__main__":
    main()
