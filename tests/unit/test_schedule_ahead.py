"""A turn that is planned as if all work had no end: whoever has less leaves its places and turns to the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.broker.queues import queue_of_device, queue_of_type
from farm.coordinator.schedule import Assignment, LiveDevice, Schedule
from farm.db.batches import BatchesInFlight, PendingJobs

LIVE = [LiveDevice(n, f"GPU-{n}", "nvidia-h200") for n in range(1, 4)]
QUEUE = queue_of_type("nvidia-h200")


@dataclass(frozen=True)
class Campaign:
    """What waits of a campaign, in batches, and the owner's priority."""

    id: int
    owner: str
    priority: int
    batches: int
    running: int

    @property
    def work(self) -> PendingJobs:
        return PendingJobs(self.id, self.id, self.owner, self.priority, ("nvidia-h200",), None)

    @property
    def flight(self) -> BatchesInFlight:
        return BatchesInFlight(
            resource=QUEUE, priority=self.priority, owner=self.owner, campaign_id=self.id, queue=QUEUE,
            batches=self.running, seconds=4.0 * self.running,
        )  # fmt: skip


campaigns = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0, 0, 0, 1]), st.integers(0, 12), st.integers(0, 2)),
    min_size=1,
    max_size=8,
).map(lambda found: [Campaign(n, *one) for n, one in enumerate(found, 1)])


def schedule_of(waiting: list[Campaign], outstanding: int) -> Schedule:
    flights = [one.flight for one in waiting if one.running]
    return Schedule(LIVE, [one.work for one in waiting], flights, outstanding=outstanding)


def one_by_one(waiting: list[Campaign], outstanding: int) -> Counter[int]:
    """Batches of each campaign, where each is formed before the next is asked for."""
    schedule, left = schedule_of(waiting, outstanding), {one.work: one.batches for one in waiting}
    made = Counter[int]()
    while (assignment := schedule.next()) is not None:
        if left[assignment.work]:
            left[assignment.work] -= 1
            made[assignment.work.lane_id] += 1
            schedule.formed(assignment)
        else:
            schedule.nothing_there(assignment)
    return made


def planned(schedule: Schedule, most: int = 10_000) -> list[Assignment]:
    made: list[Assignment] = []
    while len(made) < most and (assignment := schedule.next()) is not None:
        schedule.formed(assignment)
        made.append(assignment)
    return made


def ahead(waiting: list[Campaign], outstanding: int, most: int) -> Counter[int]:
    """The same, where so many at a time are planned before any is formed."""
    schedule, left = schedule_of(waiting, outstanding), {one.work: one.batches for one in waiting}
    made = Counter[int]()
    while plan := planned(schedule, most):
        missing = []
        for assignment in plan:
            if left[assignment.work]:
                left[assignment.work] -= 1
                made[assignment.work.lane_id] += 1
            else:
                missing.append(assignment)
        schedule.not_formed(missing)
        for assignment in missing:
            schedule.nothing_there(assignment)
    return made


@settings(max_examples=200, deadline=None)
@given(campaigns, st.integers(1, 10), st.integers(1, 40))
def test_everybody_gets_what_it_would_get_one_by_one(waiting: list[Campaign], outstanding: int, most: int) -> None:
    assert ahead(waiting, outstanding, most) == one_by_one(waiting, outstanding)


@settings(max_examples=50, deadline=None)
@given(campaigns, st.integers(1, 10), st.integers(1, 40))
def test_a_plan_of_which_nothing_came_leaves_no_trace(waiting: list[Campaign], outstanding: int, most: int) -> None:
    schedule = schedule_of(waiting, outstanding)
    schedule.not_formed(planned(schedule, most))
    assert planned(schedule) == planned(schedule_of(waiting, outstanding))


def test_places_on_a_device_that_a_failed_job_did_not_take_are_free_again() -> None:
    failed = replace(Campaign(1, "ann", 0, 9, 0).work, avoid_device_id=1)
    schedule = Schedule(LIVE, [failed], [], outstanding=2)
    expected = {queue_of_device("GPU-2"): 2, queue_of_device("GPU-3"): 2}
    plan = planned(schedule, 3)
    schedule.not_formed(plan[1:])
    assert Counter(one.queue for one in [plan[0], *planned(schedule)]) == expected
