"""Whose turn it is: priorities, owners, pools, retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from farm.broker.queues import queue_of_device, queue_of_type
from farm.coordinator.schedule import Assignment, LiveDevice, Schedule
from farm.db.batches import BatchesInFlight, PendingJobs

H200 = [LiveDevice(n, f"GPU-{n}", "nvidia-h200") for n in (1, 2)]
L4 = LiveDevice(3, "GPU-3", "nvidia-l4")


def work(lane: int, owner: str = "ann", *, priority: int = 0, types: tuple[str, ...] = ("nvidia-h200",)) -> PendingJobs:
    return PendingJobs(lane, lane, owner, priority, types, None)


def flight(owner: str, queue: str, batches: int = 1, *, seconds: float | None = None) -> BatchesInFlight:
    """Batches of an owner's first campaign on the queue of a type."""
    campaign = {"ann": 1, "bob": 2}[owner]
    return BatchesInFlight(
        resource=queue, priority=0, owner=owner, campaign_id=campaign, queue=queue, batches=batches,
        seconds=4.0 * batches if seconds is None else seconds,
    )  # fmt: skip


def all_of(
    live: Sequence[LiveDevice],
    waiting: dict[PendingJobs, int],
    *,
    flights: Sequence[BatchesInFlight] = (),
    outstanding: int = 2,
) -> list[Assignment]:
    """Everything that one turn forms, of work with so many batches each."""
    left = dict(waiting)
    schedule = Schedule(live, list(waiting), flights, outstanding=outstanding)
    made: list[Assignment] = []
    while (assignment := schedule.next()) is not None:
        if left[assignment.work]:
            left[assignment.work] -= 1
            made.append(assignment)
            schedule.formed(assignment)
        else:
            schedule.nothing_there(assignment)
    return made


def owners(made: list[Assignment]) -> list[str]:
    return [one.work.owner for one in made]


def test_a_higher_priority_goes_first_whoever_owns_it() -> None:
    made = all_of(H200, {work(1, "ann"): 9, work(2, "bob", priority=5): 3, work(3, "cy", priority=-1): 9})
    assert owners(made) == ["bob", "bob", "bob", "ann"]


def test_owners_take_turns() -> None:
    made = all_of(H200, {work(1, "ann"): 9, work(2, "ann"): 9, work(3, "bob"): 9}, outstanding=3)
    assert owners(made) == ["ann", "bob"] * 3
    assert [one.work.lane_id for one in made if one.work.owner == "ann"] == [1, 2, 1], "and so do an owner's campaigns"


def test_ten_thousand_jobs_of_one_owner_do_not_starve_ten_of_another() -> None:
    """Ann's batches are all there is; as the oldest ends, the next place is Bob's or Ann's, in turn, until he is done."""
    queue = queue_of_type("nvidia-h200")
    many, few = work(1, "ann"), work(2, "bob")
    left, in_flight = {many: 10_000, few: 10}, ["ann"] * 4  # the oldest first
    order = []
    for _ in range(30):
        in_flight.pop(0)
        (made,) = all_of(H200, left, flights=[flight(owner, queue) for owner in in_flight])
        left[made.work] -= 1
        in_flight.append(made.work.owner)
        order.append(made.work.owner)
    assert order[0] == "bob"
    assert order[:24].count("bob") == 10
    assert order[:20].count("ann") >= 8


def test_queues_get_no_more_than_their_devices_need() -> None:
    full = [flight("ann", queue_of_type("nvidia-h200"), 3)]
    assert len(all_of(H200, {work(1): 99}, flights=full)) == 1
    assert len(all_of(H200, {work(1): 99})) == 4
    assert all_of([], {work(1): 99}) == []
    assert all_of([L4], {work(1): 99}) == []


def test_a_pool_of_several_types_goes_where_there_is_room() -> None:
    both = work(1, types=("nvidia-h200", "nvidia-l4", "nvidia-a100"))
    busy = [flight("ann", queue_of_type("nvidia-h200"), 4)]
    assert {one.queue for one in all_of([*H200, L4], {both: 99}, flights=busy)} == {queue_of_type("nvidia-l4")}
    made = all_of([*H200, L4], {both: 99})
    assert Counter(one.device_type for one in made) == {"nvidia-h200": 4, "nvidia-l4": 2}


def test_work_for_one_device_goes_to_its_queue_and_waits_where_it_is_gone() -> None:
    pinned = replace(work(1), device_types=None, device_uuid="GPU-2")
    assert {one.queue for one in all_of(H200, {pinned: 99})} == {queue_of_device("GPU-2")}
    assert all_of(H200[:1], {pinned: 99}) == []


def test_what_failed_goes_to_another_device_or_back_where_there_is_no_other() -> None:
    failed = replace(work(1), avoid_device_id=1)
    assert {one.queue for one in all_of(H200, {failed: 99})} == {queue_of_device("GPU-2")}
    assert {one.queue for one in all_of(H200[:1], {failed: 99})} == {queue_of_device("GPU-1")}
    assert {one.queue for one in all_of([H200[0], L4], {failed: 99})} == {queue_of_device("GPU-1")}


@pytest.mark.parametrize("solo", [True, False])
def test_retries_are_spread_over_the_devices(solo: bool) -> None:
    suspects = replace(work(1), solo=solo, avoid_device_id=9)
    made = all_of(H200, {suspects: 99})
    assert Counter(one.queue for one in made) == {queue_of_device("GPU-1"): 2, queue_of_device("GPU-2"): 2}


def test_a_thousand_campaigns_and_devices_take_one_step_for_each_batch() -> None:
    live = [LiveDevice(n, f"GPU-{n}", f"type-{n % 50}") for n in range(1000)]
    waiting = [work(n, f"owner-{n % 40}", types=(f"type-{n % 50}",)) for n in range(1000)]
    schedule = Schedule(live, waiting, [], outstanding=2)
    steps = 0
    while (assignment := schedule.next()) is not None:
        schedule.formed(assignment)
        steps += 1
    assert steps == 2000


def test_a_version_that_refused_shuts_out_its_workers_and_no_others() -> None:
    old, older, new = (LiveDevice(n, f"GPU-{n}", "nvidia-l4", version_id=v) for n, v in ((4, 1), (5, 1), (6, 2)))
    refused = PendingJobs(1, 1, "ann", 0, ("nvidia-l4",), None, avoid_device_id=4, refused_by=(-1,))
    assert Schedule([old, older], [refused], [], outstanding=2).next() is None
    chosen = Schedule([old, older, new], [refused], [], outstanding=2).next()
    assert chosen is not None
    assert chosen.queue == queue_of_device("GPU-6")

    alone = PendingJobs(1, 1, "ann", 0, None, "GPU-4", avoid_device_id=4, refused_by=(-1,))
    assert Schedule([old], [alone], [], outstanding=2).next() is None
    upgraded = LiveDevice(4, "GPU-4", "nvidia-l4", version_id=2)
    assert Schedule([upgraded], [alone], [], outstanding=2).next() is not None
