"""Fair shares: owners by weight, campaigns of an owner alike, whatever comes and goes, and whoever coordinates."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.broker.queues import queue_of_device, queue_of_type, retries_of_type
from farm.coordinator.fairness import VirtualTimes
from farm.coordinator.schedule import LiveDevice, Schedule
from farm.db.batches import BatchesInFlight, PendingJobs
from farm.db.fair_shares import ShareKey

TYPE = "nvidia-h200"
QUEUE = queue_of_type(TYPE)
BATCH = 4.0


@dataclass(frozen=True)
class Client:
    """A campaign with more work than there is time for, and how long its batches take."""

    id: int
    owner: str
    seconds: float = BATCH
    priority: int = 0

    @property
    def work(self) -> PendingJobs:
        return PendingJobs(self.id, self.id, self.owner, self.priority, (TYPE,), None)


@dataclass
class Simulation:
    """Devices of one type that take batches in order; what is stored is all that the next turn knows."""

    devices: int
    weights: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0
    clients: list[Client] = field(default_factory=list)
    used: defaultdict[Client, float] = field(default_factory=lambda: defaultdict(float))
    first: dict[Client, float] = field(default_factory=dict)
    stored: dict[ShareKey, float] = field(default_factory=dict)
    _queued: list[Client] = field(default_factory=list)
    _running: list[tuple[float, int, Client]] = field(default_factory=list)
    _number: int = 0

    def turn(self) -> Schedule:
        flights = [*self._queued, *(client for _, _, client in self._running)]
        schedule = Schedule(
            [LiveDevice(n, f"GPU-{n}", TYPE) for n in range(self.devices)],
            [client.work for client in self.clients],
            [flight(client) for client in flights],
            outstanding=2,
            shares=self.stored,
            weights=self.weights,
            batch_seconds=BATCH,
        )
        self.stored |= schedule.started
        for key in schedule.idle:
            del self.stored[key]
        by_id = {client.id: client for client in self.clients}
        while (assignment := schedule.next()) is not None:
            self._queued.append(by_id[assignment.work.campaign_id])
            schedule.formed(assignment)
        return schedule

    def run(self, until: float) -> None:
        while True:
            self.turn()
            while self._queued and len(self._running) < self.devices:
                client = self._queued.pop(0)
                self._number += 1
                heapq.heappush(self._running, (self.now + client.seconds, self._number, client))
            if not self._running or self._running[0][0] > until:
                self.now = until
                return
            self.now, _, client = heapq.heappop(self._running)
            self.used[client] += client.seconds
            self.first.setdefault(client, self.now)
            for key in keys_of(client):
                if key in self.stored:
                    weight = 1.0 if key.campaign_id else self.weights.get(client.owner, 1.0)
                    self.stored[key] += client.seconds / weight

    def used_by(self, owner: str) -> float:
        return sum(seconds for client, seconds in self.used.items() if client.owner == owner)


def keys_of(client: Client) -> tuple[ShareKey, ShareKey]:
    owner = ShareKey(QUEUE, client.priority, client.owner)
    return owner, owner._replace(campaign_id=client.id)


def flight(client: Client) -> BatchesInFlight:
    return BatchesInFlight(
        resource=QUEUE, priority=client.priority, owner=client.owner, campaign_id=client.id, queue=QUEUE,
        batches=1, queued=1, seconds=max(BATCH, client.seconds),
    )  # fmt: skip


def clients(*owners: str, first: int = 1, seconds: Sequence[float] = (BATCH,)) -> list[Client]:
    return [Client(first + n, owner, seconds[n % len(seconds)]) for n, owner in enumerate(owners)]


# --- bounds --------------------------------------------------------------------------------------------

SECONDS = st.floats(0.05, 20.0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    devices=st.integers(1, 4),
    campaigns=st.lists(st.tuples(st.sampled_from("abcdefgh"), SECONDS), min_size=1, max_size=14),
    weights=st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.25, 4.0)),
    restarts=st.booleans(),
)
def test_no_owner_is_further_behind_its_share_than_the_batches_that_are_in_flight(
    devices: int, campaigns: list[tuple[str, float]], weights: dict[str, float], restarts: bool
) -> None:
    farm = Simulation(devices, weights)
    farm.clients = [Client(n, owner, seconds) for n, (owner, seconds) in enumerate(campaigns, start=1)]
    longest = max(BATCH, *(client.seconds for client in farm.clients))
    owners = {client.owner for client in farm.clients}
    least = min(weights.get(owner, 1.0) for owner in owners)
    until = 20 * longest * len(owners) / (devices * least)
    farm.run(until / 2)
    if restarts:
        other = Simulation(devices, weights, now=farm.now, clients=farm.clients, used=farm.used, stored=farm.stored)
        other._queued, other._running = farm._queued, farm._running
        farm = other
    farm.run(until)
    # Of an owner, all places of the queues may be taken; and the same of another.
    bound = 2 * (2 * devices + 1) * longest / least
    times = {owner: farm.used_by(owner) / weights.get(owner, 1.0) for owner in owners}
    assert max(times.values()) - min(times.values()) <= bound
    assert all(
        farm.used[client] > 0 for client in farm.clients if sum(c.owner == client.owner for c in farm.clients) == 1
    )


@settings(max_examples=40, deadline=None)
@given(
    devices=st.integers(1, 4),
    owners=st.integers(1, 30),
    late=st.lists(st.floats(0.0, 200.0), max_size=10),
    seconds=st.lists(st.floats(1.0, BATCH), min_size=1, max_size=5),
)
def test_whoever_comes_is_served_within_two_rounds(
    devices: int, owners: int, late: list[float], seconds: list[float]
) -> None:
    farm = Simulation(devices)
    farm.clients = clients(*[f"owner-{n:02}" for n in range(owners)], seconds=seconds)
    came = dict.fromkeys(farm.clients, 0.0)
    for n, at in enumerate(sorted(late)):
        farm.run(at)
        client = Client(100 + n, f"a-newcomer-{n}", seconds[n % len(seconds)])
        farm.clients.append(client)
        came[client] = at
    all_in_all = owners + len(late)
    round_s = BATCH * (all_in_all + 2 * devices) / devices
    farm.run(max(came.values()) + 2 * round_s + BATCH)
    assert all(farm.first[client] - at <= 2 * round_s + BATCH for client, at in came.items())


# --- stories -------------------------------------------------------------------------------------------


def test_owners_share_by_weight() -> None:
    farm = Simulation(4, {"ann": 3.0, "cy": 0.5})
    farm.clients = clients("ann", "bob", "cy")
    farm.run(900)
    used = [farm.used_by(owner) for owner in ("ann", "bob", "cy")]
    assert [share / sum(used) for share in used] == pytest.approx([3 / 4.5, 1 / 4.5, 0.5 / 4.5], abs=0.01)


def test_long_batches_give_no_larger_share_than_short_ones() -> None:
    farm = Simulation(2)
    farm.clients = clients("ann", "bob", seconds=(40.0, 1.0))
    farm.run(4000)
    assert farm.used_by("ann") / farm.used_by("bob") == pytest.approx(1, abs=0.1)


def test_a_second_campaign_gives_an_owner_no_larger_share_but_half_of_it() -> None:
    farm = Simulation(2)
    farm.clients = [Client(1, "ann"), Client(2, "ann"), Client(3, "ann"), Client(4, "bob")]
    farm.run(1200)
    assert farm.used_by("ann") == pytest.approx(farm.used_by("bob"), abs=4 * BATCH)
    assert {farm.used[c] for c in farm.clients[:3]} <= {n * BATCH for n in range(98, 103)}


def test_who_was_away_has_saved_up_nothing_and_who_used_too_much_still_has() -> None:
    farm = Simulation(1)
    ann, bob = Client(1, "ann"), Client(2, "bob", seconds=300.0)
    farm.clients = [ann]
    farm.run(400)
    farm.clients = [ann, bob]
    farm.run(750)
    assert farm.used_by("bob") == 300.0, "a newcomer has its turn at once, and not until it has caught up"
    farm.clients = [ann]
    farm.run(770)
    farm.clients = [ann, bob]
    farm.run(1250)
    assert farm.used_by("bob") == 300.0, "a pause does not undo what it used"
    farm.clients = [ann]
    farm.run(3000)
    assert {key.owner for key in farm.stored} == {"ann"}, "it is forgotten once the others have caught up"


def test_nothing_is_kept_of_a_farm_that_has_nothing_to_do() -> None:
    farm = Simulation(1)
    farm.clients = clients("ann", "bob")
    farm.run(40)
    farm.clients = []
    farm.run(80)
    farm.turn()
    assert farm.stored == {}


def test_those_that_were_seen_first_are_not_overtaken_by_ever_new_ones() -> None:
    farm = Simulation(1)
    last = Client(500, "zoe")
    farm.clients = [Client(1, "ann"), last]
    for n in range(50):
        farm.run(n * BATCH)
        farm.clients.append(Client(600 + n, f"new-{n}"))
    assert farm.used[last] > 0


def test_an_urgent_campaign_takes_all_and_leaves_the_turns_of_the_others_alone() -> None:
    farm = Simulation(1)
    ann, bob, urgent = Client(1, "ann"), Client(2, "bob"), Client(3, "ann", priority=5)
    farm.clients = [ann, bob]
    farm.run(40)
    farm.clients = [ann, bob, urgent]
    farm.run(140)
    assert farm.used[ann] + farm.used[bob] <= 60
    farm.clients = [ann, bob]
    farm.run(340)
    assert farm.used[ann] == pytest.approx(farm.used[bob], abs=BATCH)


# --- resources -----------------------------------------------------------------------------------------

LIVE = [LiveDevice(1, "GPU-1", TYPE), LiveDevice(2, "GPU-2", TYPE)]


def queues_of(
    work: Iterable[PendingJobs], flights: Sequence[BatchesInFlight] = (), limit: int = 50
) -> list[tuple[str, str]]:
    """Owner and queue of what one turn forms."""
    schedule = Schedule(LIVE, list(work), flights, outstanding=2)
    found: list[tuple[str, str]] = []
    while (assignment := schedule.next()) is not None and len(found) < limit:
        found.append((assignment.work.owner, assignment.queue))
        schedule.formed(assignment)
    return found


def test_failed_jobs_that_no_device_may_take_do_not_hold_those_of_others() -> None:
    absent = [PendingJobs(n, n, "ann", 0, ("nvidia-absent",), None, avoid_device_id=9) for n in range(1, 3000)]
    refused = [
        PendingJobs(n, n, "ann", 0, (TYPE,), None, avoid_device_id=1, refused_by=(1, 2)) for n in range(3000, 3100)
    ]
    mine = PendingJobs(5000, 5000, "bob", 0, (TYPE,), None, avoid_device_id=1)
    assert queues_of([*absent, *refused, mine]) == [("bob", queue_of_device("GPU-2"))] * 2


def test_failed_jobs_and_those_of_one_device_do_not_take_each_others_places() -> None:
    failed = PendingJobs(1, 1, "ann", 0, (TYPE,), None, avoid_device_id=1)
    pinned = PendingJobs(2, 2, "bob", 0, None, "GPU-2")
    assert sorted(queues_of([failed, pinned])) == sorted(
        [("ann", queue_of_device("GPU-2"))] * 2 + [("bob", queue_of_device("GPU-2"))] * 2
    )


def test_where_queues_are_equally_full_what_failed_goes_first_and_suspects_last() -> None:
    fresh = Client(1, "ann").work
    failed, suspect = replace(fresh, avoid_device_id=1), replace(fresh, solo=True)
    assert queues_of([suspect, fresh])[0] == ("ann", QUEUE)
    assert queues_of([fresh, failed])[0] == ("ann", queue_of_device("GPU-2"))


def test_full_queues_with_urgent_work_are_named() -> None:
    low = flight(Client(1, "ann"))
    full = [low] * 4
    urgent, equal = Client(2, "bob", priority=3).work, Client(3, "bob").work
    schedule = Schedule(LIVE, [Client(1, "ann").work, urgent], full, outstanding=2)
    assert schedule.urgent() == [(QUEUE, 3)]
    assert schedule.next() is None
    schedule.make_room(QUEUE, 2)
    taken = schedule.next()
    assert taken is not None
    assert taken.work == urgent
    assert Schedule(LIVE, [equal], full, outstanding=2).urgent() == []
    assert Schedule(LIVE, [urgent], full[:3], outstanding=2).urgent() == [], "there is room"


def test_times_start_at_the_smallest_of_those_that_wait() -> None:
    ann, bob, cy = (ShareKey(retries_of_type(TYPE), 0, owner) for owner in ("ann", "bob", "cy"))
    times = VirtualTimes({ann: 70.0, bob: 10.0}, [], [ann, cy], {})
    assert times.started == {cy: 70.0}
    assert times.idle == [bob]
