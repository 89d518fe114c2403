"""Batches that are planned ahead and formed together: the same that would be formed one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from farm.broker.queues import queue_of_device, queue_of_type
from farm.campaign import Campaign
from farm.coordinator import dispatch
from farm.coordinator.dispatch import form_batches, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.coordinator.steps import PartlyFailed
from farm.db import batches
from farm.db.batches import BatchPlan, Failure, JobCost, PendingJobs
from farm.db.campaigns import Stored
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from farm.settings import Settings
from support.batch_steps import claim
from support.obstructing import foreign
from support.samples import cpu, document

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
QUEUE = queue_of_type("cpu-test")

_FORMED = text(
    "SELECT queue, jobs, job_ids, round(gflop::numeric, 9) AS gflop FROM batches WHERE id = ANY(:ids) ORDER BY id"
)
_LEFT = text("SELECT array_agg(job_id ORDER BY job_id) FROM returned_jobs")
_LANES = text("SELECT id, cursor, fresh FROM lanes ORDER BY id")
_OWNERS = text("""
SELECT c.owner FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN campaigns c ON c.id = l.campaign_id
WHERE b.state = 'queued' ORDER BY b.id
""")


def of_jobs(name: str, jobs: int, *, owner: str = "ann", kind: str = "cpu-test") -> Campaign:
    """A campaign of that many jobs, a multiple of 2, of different sizes."""
    shapes = [[64, 64, 64 * (1 + n * n % 37 + 64 * n)] for n in range(jobs // 2)]
    problems = {"shapes": shapes, "types": ["f32"]}
    return Campaign.from_document(document(name=name, owner=owner, problems=problems, targets=[{"type": kind}]))


def fail(engine: Engine, size: int, device_id: int, kind: FailureKind) -> None:
    """Of so many jobs in a batch, two fail on that device, and the others are not measured."""
    with engine.begin() as connection:
        (work,) = (one for one in batches.candidates(connection) if not one.retry)
        assert batches.lock(connection, work.lane_id)
        batch_id = batches.form(connection, work, queue=QUEUE, jobs=size)
    assert batch_id is not None
    lease = claim(engine, batch_id, device_id)
    assert lease is not None
    with engine.begin() as connection:
        batches.land(connection, lease, [], {job.id: Failure(kind, "a hiccup") for job in lease.jobs[:2]})


def what_is_formed(connection: Connection, work: PendingJobs, form_all: Callable[[], Sequence[int]]) -> list[Any]:
    """What it formed and left. Then it is undone."""
    with connection.begin_nested() as undone:
        assert batches.lock(connection, work.lane_id)
        ids = form_all()
        state = [connection.execute(_FORMED, {"ids": list(ids)}).all(), connection.execute(_LEFT).all()]
        state += [connection.execute(_LANES).all()]
        undone.rollback()
    return state


@pytest.mark.parametrize("seed", range(12))
def test_many_at_once_are_the_batches_that_one_by_one_would_be(
    engine: Engine, announce: Announce, device: int, submit: Submit, seed: int
) -> None:
    chance = random.Random(seed)
    other = announce(cpu(2))
    submit(of_jobs("sizes", 120))
    for kind in (FailureKind.FAILED, FailureKind.KILLED, FailureKind.FAILED):
        fail(engine, chance.randint(3, 15), chance.choice([device, other]), kind)

    def plan() -> BatchPlan:
        cost = JobCost(chance.choice([0.0, 0.1]), chance.choice([0.0, 1.0])) if chance.random() < 0.8 else None
        jobs, seconds = chance.choice([1, 4, 20, 200]), chance.choice([0.5, 2.0, 1e9])
        return BatchPlan(queue=chance.choice([QUEUE, "gpu.other"]), jobs=jobs, seconds=seconds, cost=cost)

    with engine.begin() as connection:
        waiting = batches.candidates(connection)
        assert {(work.solo, work.retry) for work in waiting} == {(False, False), (False, True), (True, True)}
        for work in waiting:
            plans = [plan() for _ in range(chance.randint(1, 80))]

            def one_by_one(work: PendingJobs = work, plans: Sequence[BatchPlan] = plans) -> list[int]:
                found = [
                    batches.form(connection, work, queue=one.queue, jobs=one.jobs, seconds=one.seconds, cost=one.cost)
                    for one in plans
                ]
                return [number for number in found if number is not None]

            def at_once(work: PendingJobs = work, plans: Sequence[BatchPlan] = plans) -> Sequence[int]:
                return batches.form_many(connection, work, plans).ids

            expected = what_is_formed(connection, work, one_by_one)
            assert expected[0]
            assert what_is_formed(connection, work, at_once) == expected


def test_whether_more_may_wait_is_known(engine: Engine, device: int, submit: Submit) -> None:
    submit(of_jobs("ten", 10))
    with engine.begin() as connection:
        (work,) = batches.candidates(connection)
        assert batches.lock(connection, work.lane_id)
        first = batches.form_many(connection, work, [BatchPlan(queue=QUEUE, jobs=4)] * 2)
        assert (len(first.ids), first.more) == (2, True)
        last = batches.form_many(connection, work, [BatchPlan(queue=QUEUE, jobs=4)] * 2)
        assert (len(last.ids), last.more) == (1, False)
        assert batches.candidates(connection) == []


@pytest.fixture
def statements(engine: Engine) -> Iterator[list[str]]:
    """What goes to the database."""
    seen: list[str] = []

    def see(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", see)
    yield seen
    event.remove(engine, "before_cursor_execute", see)


def formed(engine: Engine, settings: Settings) -> int:
    return form_batches(engine, read_schedule(engine, settings), CostBook(), settings)


def owners(engine: Engine) -> list[str]:
    """Of the batches that are queued, in the order in which they are sent."""
    with engine.connect() as connection:
        return list(connection.execute(_OWNERS).scalars())


def test_batches_of_a_lane_are_formed_with_few_statements_and_sent_in_the_order_of_turns(
    engine: Engine, device: int, submit: Submit, statements: list[str]
) -> None:
    for owner in ("ann", "bob", "cy"):
        submit(of_jobs(owner, 100, owner=owner))
    schedule = read_schedule(engine, settings := Settings(outstanding_batches=60, batch_max_jobs=2))
    statements.clear()
    assert form_batches(engine, schedule, CostBook(), settings) == 60
    assert owners(engine) == ["ann", "bob", "cy"] * 20
    assert len(statements) < 40


def test_the_turns_of_who_has_less_than_was_planned_go_to_the_others(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(of_jobs("much", 100, owner="ann"))
    submit(of_jobs("little", 4, owner="bob"))
    submit(of_jobs("some", 10, owner="cy"))
    assert formed(engine, Settings(outstanding_batches=30, batch_max_jobs=1)) == 30
    assert Counter(owners(engine)) == {"ann": 16, "bob": 4, "cy": 10}


def test_a_lane_that_is_held_or_fails_leaves_its_places_to_the_others(
    engine: Engine, device: int, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(outstanding_batches=12, batch_max_jobs=1)
    for owner in ("ann", "bob", "cy"):
        submit(of_jobs(owner, 20, owner=owner))
    lane = "SELECT id FROM lanes WHERE campaign_id = (SELECT id FROM campaigns WHERE owner = 'ann')"
    form_many, failing = batches.form_many, set[int]()

    def fail_in_a_lane(connection: Connection, work: PendingJobs, plans: Sequence[BatchPlan]) -> batches.FormedBatches:
        if work.owner == "bob":
            failing.add(work.lane_id)
            connection.execute(text("SELECT 1 / 0"))
        return form_many(connection, work, plans)

    monkeypatch.setattr(batches, "form_many", fail_in_a_lane)
    schedule = read_schedule(engine, settings)
    with foreign(engine, f"{lane} FOR UPDATE"), pytest.raises(PartlyFailed):
        form_batches(engine, schedule, CostBook(), settings)
    assert failing
    assert owners(engine) == ["cy"] * 12


def test_failed_jobs_of_many_groups_are_all_formed_in_one_turn(
    engine: Engine, announce: Announce, device: int, submit: Submit
) -> None:
    other = announce(cpu(2))
    submit(of_jobs("failing", 24))
    for n, kind in enumerate([FailureKind.FAILED, FailureKind.KILLED] * 2):
        fail(engine, 2, device if n < 3 else other, kind)
    settings = Settings(outstanding_batches=20, batch_max_jobs=1)
    formed(engine, settings)
    with engine.connect() as connection:
        queued = connection.execute(text("SELECT queue, jobs FROM batches WHERE state = 'queued'")).all()
        assert connection.execute(text("SELECT count(*) FROM returned_jobs")).scalar_one() == 0
    assert {row.jobs for row in queued} == {1}
    assert Counter(row.queue for row in queued) == {
        QUEUE: 16,
        queue_of_device("CPU-1"): 2,
        queue_of_device("CPU-2"): 6,
    }


def test_a_transaction_and_a_turn_hold_no_more_jobs_than_they_may(
    engine: Engine, device: int, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(of_jobs("many", 60))
    monkeypatch.setattr(dispatch, "MAX_JOBS_PER_TRANSACTION", 5)
    monkeypatch.setattr(dispatch, "MAX_JOBS_PER_TURN", 20)
    settings, counted = Settings(outstanding_batches=30, batch_max_jobs=2), list[int]()
    schedule = read_schedule(engine, settings)
    form_batches(engine, schedule, CostBook(), settings, count=counted.append)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT sum(jobs) FROM batches")).scalar_one() == 21
    assert counted == [3, 2, 2, 2, 2]
