"""The state machine of jobs and batches, on real Postgres: who may measure what, and what lands."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Connection, Engine, text

from farm.broker.queues import queue_of_type
from farm.campaign import Campaign
from farm.coordinator import estimates
from farm.coordinator.dispatch import form_batches, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.db import batches, campaigns, devices, jobs, probation
from farm.db.batches import Failure, JobCost, Lease
from farm.db.campaigns import Stored
from farm.db.states import DeviceState, FailureKind, JobState
from farm.devices import DeviceIdentity
from farm.errors import LeaseHeld, LeaseLost
from farm.settings import Settings
from support.batch_steps import claim, counts, expire, form, land, leased, recording, rows
from support.samples import cpu, document, row

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
QUEUE = queue_of_type("cpu-test")


def test_a_batch_is_measured_landed_and_the_campaign_finishes(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device)
    assert counts(engine, small.campaign_id) == {"running": 12}
    land(engine, lease)
    assert counts(engine, small.campaign_id) == {"done": 12}
    assert rows(engine) == 12
    with engine.begin() as connection:
        assert campaigns.finish(connection) == [small.campaign_id]


def test_a_message_that_comes_twice_claims_once(engine: Engine, device: int, small: Stored) -> None:
    batch_id = form(engine)
    assert batch_id is not None
    assert claim(engine, batch_id, device) is not None
    assert claim(engine, batch_id, device) is None


def test_of_many_workers_at_once_exactly_one_claims(engine: Engine, announce: Announce, small: Stored) -> None:
    batch_id = form(engine)
    assert batch_id is not None
    ids = [announce(cpu(n)) for n in range(1, 9)]
    start, won = threading.Barrier(len(ids)), []

    def try_it(device_id: int) -> None:
        start.wait()
        won.append(claim(engine, batch_id, device_id))

    threads = [threading.Thread(target=try_it, args=(i,)) for i in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lease is not None for lease in won) == 1


def test_a_worker_whose_lease_has_passed_cannot_write(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device)
    expire(engine, lease)
    with pytest.raises(LeaseLost):
        land(engine, lease)
    with pytest.raises(LeaseLost), engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
    assert rows(engine) == 0


def test_a_paused_worker_cannot_write_after_another_took_over(
    engine: Engine, announce: Announce, small: Stored
) -> None:
    paused = leased(engine, announce(cpu(1)))
    expire(engine, paused)
    with engine.begin() as connection:
        assert batches.reap(connection) == [paused.batch_id]
    second = leased(engine, announce(cpu(2)))
    land(engine, second)
    with pytest.raises(LeaseLost):
        land(engine, paused)
    assert counts(engine, small.campaign_id) == {"done": 12}
    assert rows(engine) == 12


def test_marking_renews_the_lease(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device, lease_seconds=5)
    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=500)
        left = connection.execute(text("SELECT lease_expires_at - clock_timestamp() > interval '400 s' FROM batches"))
        assert left.scalar_one()


def test_the_job_that_killed_its_worker_runs_alone_and_dies_after_its_attempts(
    engine: Engine, device: int, small: Stored
) -> None:
    lease = leased(engine, device)
    poison = lease.jobs[5]
    for attempt in range(3):
        with engine.begin() as connection:
            batches.mark(connection, lease, next(j for j in lease.jobs if j.id == poison.id), lease_seconds=60)
        expire(engine, lease)
        with engine.begin() as connection:
            batches.reap(connection)
        if attempt == 0:  # its neighbours go on without it
            neighbours = leased(engine, device)
            assert len(neighbours.jobs) == 11
            assert poison.id not in {job.id for job in neighbours.jobs}
            land(engine, neighbours)
        if attempt < 2:
            lease = leased(engine, device)
            assert [job.id for job in lease.jobs] == [poison.id]
    assert counts(engine, small.campaign_id) == {"done": 11, "dead": 1}


def test_an_invalid_job_is_final_and_a_failing_one_is_tried_again(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device)
    first, second = lease.jobs[0].id, lease.jobs[1].id
    land(
        engine,
        lease,
        {first: Failure(FailureKind.INVALID, "too large"), second: Failure(FailureKind.FAILED, "a hiccup")},
    )
    assert counts(engine, small.campaign_id) == {"done": 10, "invalid": 1, "pending": 1}
    for _ in range(2):
        lease = leased(engine, device)
        land(engine, lease, {second: Failure(FailureKind.FAILED, "a hiccup")})
    assert counts(engine, small.campaign_id) == {"done": 10, "invalid": 1, "dead": 1}
    with engine.connect() as connection:
        assert {p["error"] for p in jobs.problems(connection, small.campaign_id)} == {"too large", "a hiccup"}


def test_a_worker_that_stops_hands_back_what_it_did_not_measure(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device)
    with engine.begin() as connection:
        batches.land(connection, lease, [(lease.jobs[0], row())], {})
    assert counts(engine, small.campaign_id) == {"done": 1, "pending": 11}


def test_only_the_device_that_holds_a_batch_can_hand_it_back(engine: Engine, announce: Announce, small: Stored) -> None:
    holder, other = announce(cpu(1)), announce(cpu(2))
    lease = leased(engine, holder)
    with engine.begin() as connection:
        assert not batches.release(connection, lease.batch_id, device_id=other, reason="?", suspect=False)
        assert batches.release(connection, lease.batch_id, device_id=holder, reason="died", suspect=False)
    assert counts(engine, small.campaign_id) == {"pending": 12}


def test_one_session_takes_back_a_batch_that_blames_no_job_and_then_one_that_does(
    engine: Engine, announce: Announce, small: Stored
) -> None:
    idle, died = announce(cpu(1)), announce(cpu(2))
    first, second = leased(engine, idle, 6), leased(engine, died, 6)
    with engine.begin() as connection:
        batches.mark(connection, second, second.jobs[0], lease_seconds=60)
        assert batches.release(connection, first.batch_id, device_id=idle, reason="stopped", suspect=False)
        assert batches.release(connection, second.batch_id, device_id=died, reason="died", suspect=True)
        dead = connection.execute(text("SELECT dead FROM batches")).scalars().all()
        blamed = connection.execute(text("SELECT job_id FROM failures")).scalars().all()
    assert dead == [0, 0]
    assert blamed == [second.jobs[0].id]


@pytest.mark.parametrize(("stop", "rest"), [(batches.cancel, "cancelled"), (batches.pause, "pending")])
def test_nothing_of_a_stopped_campaign_starts_and_what_is_measured_lands(
    engine: Engine, device: int, small: Stored, stop: Callable[[Connection, int], bool], rest: str
) -> None:
    held = leased(engine, device, size=3)
    waiting = form(engine, size=3)
    with engine.begin() as connection:
        assert batches.mark(connection, held, held.jobs[0], lease_seconds=60)
        assert stop(connection, small.campaign_id)
        assert not stop(connection, small.campaign_id)
    assert waiting is not None
    assert claim(engine, waiting, device) is None
    assert form(engine) is None
    with engine.begin() as connection:
        assert not batches.mark(connection, held, held.jobs[1], lease_seconds=60)
        batches.land(connection, held, [(held.jobs[0], row())], {})
    assert counts(engine, small.campaign_id) == {"done": 1, rest: 11}
    with engine.connect() as connection:
        assert batches.flights(connection) == []


def test_a_batch_is_not_formed_where_its_campaign_was_stopped_meanwhile(
    engine: Engine, device: int, small: Stored
) -> None:
    with engine.begin() as connection:
        (work,) = batches.candidates(connection)
        batches.pause(connection, small.campaign_id)
        assert not batches.lock(connection, work.lane_id)
        assert batches.resume(connection, small.campaign_id)
        assert not batches.resume(connection, small.campaign_id)
    assert len(leased(engine, device).jobs) == 12


def test_a_quarantined_device_starts_no_further_job(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device)
    with engine.begin() as connection:
        assert devices.set_state(connection, device, DeviceState.QUARANTINED, "hot")
        assert not batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
        batches.land(connection, lease, [], {})
    assert counts(engine, small.campaign_id) == {"pending": 12}


def test_a_heartbeat_renews_the_lease_for_as_long_as_the_job_may_take(
    engine: Engine, device: int, small: Stored
) -> None:
    lease = leased(engine, device)
    left = text("SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM batches")

    def renewed(lease: Lease, seconds: float) -> float | None:
        return batches.renew(connection, lease.batch_id, device_id=device, lease_seconds=seconds)

    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=500, busy_seconds=2000)
        assert 1900 < (renewed(lease, 1000) or 0) <= 2000
        assert 900 < connection.execute(left).scalar_one() <= 1000
        renewed(lease, 10_000)
        assert 1900 < connection.execute(left).scalar_one() <= 2000
    expire(engine, lease)
    with engine.begin() as connection:
        assert renewed(lease, 10) is None
        assert connection.execute(left).scalar_one() < 0


def test_a_heartbeat_renews_no_other_batch(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device, size=5)
    other = form(engine, size=5)
    assert other is not None
    with engine.begin() as connection:
        before = connection.execute(text("SELECT lease_expires_at FROM batches WHERE state = 'leased'")).scalar_one()
        assert batches.renew(connection, other, device_id=device, lease_seconds=1000) is None
        assert batches.renew(connection, lease.batch_id, device_id=device + 1, lease_seconds=1000) is None
        assert connection.execute(text("SELECT max(lease_expires_at) FROM batches")).scalar_one() == before


def test_a_device_holds_one_lease_at_a_time_and_the_other_batch_stays_queued(
    engine: Engine, device: int, small: Stored
) -> None:
    held, other = leased(engine, device, size=5), form(engine, size=5)
    assert other is not None
    with pytest.raises(LeaseHeld, match="still holds another"):
        claim(engine, other, device)
    with engine.connect() as connection:
        assert batches.held_by(connection, device) == held.batch_id
        assert (
            connection.execute(text("SELECT state FROM batches WHERE id = :id"), {"id": other}).scalar_one() == "queued"
        )
    land(engine, held)
    assert claim(engine, other, device) is not None


def test_a_lease_that_passes_while_the_database_is_away_blames_no_job(
    engine: Engine, device: int, small: Stored
) -> None:
    lease = leased(engine, device)
    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
    expire(engine, lease)
    with engine.begin() as connection:
        assert batches.reap(connection, suspect=False) == [lease.batch_id]
        assert connection.execute(text("SELECT max(attempts), bool_or(solo) FROM jobs")).one() == (0, False)
    assert counts(engine, small.campaign_id) == {"pending": 12}


def test_a_worker_that_starts_again_gives_up_what_it_held(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device, size=5)
    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[2], lease_seconds=60)
        assert batches.release_all(connection, device_id=device, reason="its worker ended") == [lease.batch_id]
    assert counts(engine, small.campaign_id) == {"pending": 12}
    with engine.connect() as connection:
        (suspect,) = jobs.listed(connection, small.campaign_id, kinds=[FailureKind.KILLED])
    assert (suspect["job_id"], suspect["attempts"], suspect["solo"]) == (lease.jobs[2].id, 1, True)


def test_a_failed_job_goes_to_another_device_where_there_is_one(
    engine: Engine, announce: Announce, small: Stored
) -> None:
    first, second = announce(cpu(1)), announce(cpu(2))
    lease = leased(engine, first)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.FAILED, "a hiccup")})
    again = form(engine)
    assert again is not None
    assert claim(engine, again, first) is None
    second_try = claim(engine, again, second)
    assert second_try is not None
    assert [job.id for job in second_try.jobs] == [lease.jobs[0].id]


def test_what_waits_for_a_device_that_is_gone_is_taken_back(
    engine: Engine, announce: Announce, device: int, small: Stored
) -> None:
    batch_id = form(engine)
    with engine.begin() as connection:
        assert batches.recall(connection, served=[QUEUE]) == []
        assert batches.recall(connection, served=["gpu.cpu-other"]) == [batch_id]
    assert counts(engine, small.campaign_id) == {"pending": 12}


def test_jobs_that_ended_without_a_result_are_opened_again(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(Campaign.from_document(document(measure={"max_attempts": 1})))
    lease = leased(engine, device)
    ids = [job.id for job in lease.jobs]
    failed = Failure(FailureKind.FAILED, "a hiccup")
    land(engine, lease, {ids[0]: failed, ids[1]: failed, ids[2]: Failure(FailureKind.INVALID, "too large")})
    assert counts(engine, stored.campaign_id) == {"done": 9, "dead": 2, "invalid": 1}
    with engine.begin() as connection:
        assert campaigns.finish(connection) == [stored.campaign_id]
        assert batches.retry(connection, stored.campaign_id, kinds=[FailureKind.KILLED]) == 0
        assert campaigns.find(connection, "small")["state"] == "done"
        assert batches.retry(connection, stored.campaign_id, job_ids=ids[:1]) == 1
        assert campaigns.find(connection, "small")["state"] == "active"
    assert counts(engine, stored.campaign_id) == {"done": 9, "dead": 1, "pending": 1, "invalid": 1}
    with engine.begin() as connection:
        both = [JobState.DEAD, JobState.INVALID]
        assert batches.retry(connection, stored.campaign_id, states=both) == 2
    land(engine, leased(engine, device))
    assert counts(engine, stored.campaign_id) == {"done": 12}


def test_a_job_that_was_refused_when_it_was_submitted_can_be_tried_after_all(
    engine: Engine, device: int, submit: Submit
) -> None:
    stored = submit(Campaign.from_document(document(kernels=[{"family": "blas", "threads": [1, 64]}])))
    first = leased(engine, device, size=1)  # the cursor stands among them
    with engine.begin() as connection:
        assert batches.retry(connection, stored.campaign_id, states=[JobState.INVALID]) == 6
    land(engine, first)
    while batch_id := form(engine, size=4):
        lease = claim(engine, batch_id, device)
        assert lease is not None
        land(engine, lease)
    assert counts(engine, stored.campaign_id) == {"done": 12}


def test_a_drained_device_and_one_of_another_type_claim_nothing(
    engine: Engine, announce: Announce, small: Stored
) -> None:
    drained, foreign = announce(cpu(2)), announce(cpu(3, kind="cpu-other"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET state = 'drained' WHERE id = :id"), {"id": drained})
    batch_id = form(engine)
    assert batch_id is not None
    assert claim(engine, batch_id, drained) is None
    assert claim(engine, batch_id, foreign) is None


def test_a_device_that_could_not_be_opened_gets_another_try_when_it_is_announced_again(
    engine: Engine, announce: Announce
) -> None:
    broken, drained = announce(cpu(1)), announce(cpu(2))
    with engine.begin() as connection:
        devices.unfit(connection, broken, "no driver")
        connection.execute(text("UPDATE devices SET state = 'drained' WHERE id = :id"), {"id": drained})
        assert devices.live(connection, silent_after=60) == []
        assert devices.shut_out_on(connection, "here") == {"Test CPU 1": "no driver"}
    assert announce(cpu(1)) == broken
    announce(cpu(2))
    with engine.begin() as connection:
        assert devices.live(connection, silent_after=60) == [(broken, "CPU-1", "cpu-test")]


def test_priority_comes_first_and_owners_take_turns(engine: Engine, device: int, submit: Submit) -> None:
    made = {
        name: submit(Campaign.from_document(document(name=name, owner=owner, priority=priority))).campaign_id
        for name, owner, priority in (
            ("ann-1", "ann", 0),
            ("ann-2", "ann", 0),
            ("bob-1", "bob", 0),
            ("urgent", "cy", 5),
        )
    }
    names = {i: name for name, i in made.items()}
    order = []
    for size in (12, 4, 4, 4, 4, 4, 4):
        batch_id = form(engine, size)
        with engine.connect() as connection:
            statement = text("SELECT campaign_id FROM lanes WHERE id = (SELECT lane_id FROM batches WHERE id = :id)")
            order.append(names[connection.execute(statement, {"id": batch_id}).scalar_one()])
    assert order[0] == "urgent"
    assert [name[:3] for name in order[1:]] == ["ann", "bob", "ann", "bob", "ann", "bob"]


def test_an_unclaimed_batch_is_sent_again_and_a_claimed_one_is_not(engine: Engine, device: int, small: Stored) -> None:
    batch_id = form(engine)
    assert batch_id is not None
    with engine.begin() as connection:
        assert batches.unsent(connection, resend_after=60) == [(batch_id, QUEUE)]
        batches.mark_sent(connection, [batch_id])
    with engine.begin() as connection:
        assert batches.unsent(connection, resend_after=60) == []
        assert batches.unsent(connection, resend_after=0) == [(batch_id, QUEUE)]
    claim(engine, batch_id, device)
    with engine.begin() as connection:
        assert batches.unsent(connection, resend_after=0) == []


def test_batches_are_formed_for_live_devices_only_and_no_more_than_they_need(
    engine: Engine, announce: Announce, device: int, small: Stored
) -> None:
    settings = Settings(outstanding_batches=2)

    def formed() -> int:
        return form_batches(engine, read_schedule(engine, settings), CostBook(), settings)

    assert formed() == 2
    assert formed() == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET last_seen_at = clock_timestamp() - interval '1 hour'"))
        assert len(batches.recall(connection, served=[])) == 2
    assert formed() == 0


def test_batches_grow_to_the_device_time_that_is_asked_for(engine: Engine, device: int, submit: Submit) -> None:
    submit(Campaign.from_document(document(problems={"m": "64..640 +64", "n": 64, "k": [32, 64], "types": ["f32"]})))
    land(engine, leased(engine, device, size=4))
    settings = Settings(batch_seconds=2.0, outstanding_batches=1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE batches SET claimed_at = finished_at - interval '0.8 s'"))
    form_batches(engine, read_schedule(engine, settings), CostBook(), settings)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT jobs FROM batches WHERE state = 'queued'")).scalar_one() == 10


def test_a_batch_holds_few_large_jobs_or_many_small_ones(engine: Engine, device: int, submit: Submit) -> None:
    shapes = [[64, 64, 64 * i] for i in range(1, 21)] + [[4096, 4096, 4096]] * 1
    submit(Campaign.from_document(document(problems={"shapes": shapes, "types": ["f32"]})))
    cost = JobCost(fixed_s=0.1, gflop_s=0.1)  # 13.7 s for the large one
    sizes = []
    with engine.begin() as connection:
        (work,) = batches.candidates(connection)
        assert batches.lock(connection, work.lane_id)
        while batches.form(connection, work, queue=QUEUE, jobs=100, seconds=2.0, cost=cost) is not None:
            newest = "SELECT jobs, 0.1 * jobs + 0.1 * gflop FROM batches ORDER BY id DESC LIMIT 1"
            sizes.append(connection.execute(text(newest)).one())
    assert sum(jobs for jobs, _ in sizes) == 42
    assert all(seconds <= 2.0 + 1e-9 for jobs, seconds in sizes if jobs > 1)
    assert sum(jobs == 1 and seconds > 13 for jobs, seconds in sizes) == 2


def test_all_products_of_a_problem_count_in_the_size_of_a_job(
    engine: Engine, device: int, announce: Announce, submit: Submit
) -> None:
    submit(Campaign.from_document(document(problems={"shapes": "64x64x64", "types": "f32", "batch": [1, 1000]})))
    lease = leased(engine, device)
    problems = [job.configuration.problem for job in lease.jobs]
    assert {problem.batch for problem in problems} == {1, 1000}
    with engine.connect() as connection:
        assert connection.execute(text("SELECT gflop FROM batches")).scalar_one() == pytest.approx(
            sum(problem.flops for problem in problems) / 1e9
        )
    land(engine, lease)
    # A device on probation is tried with work of about the size that failed.
    other = announce(cpu(2))
    for job in lease.jobs:
        with engine.connect() as connection:
            trial = probation.known_good(connection, other, job.configuration)
        assert trial is not None
        assert trial.problem == job.configuration.problem


# --- submitting ------------------------------------------------------------------------------------


def test_the_same_campaign_twice_is_the_same_campaign(engine: Engine, small: Stored, submit: Submit) -> None:
    again = submit(Campaign.from_document(document(description="another text", priority=7)))
    assert again == Stored(small.campaign_id, new=False, configurations=0, jobs=0)


def test_a_cancelled_campaign_goes_on_when_it_is_submitted_again(
    engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    land(engine, leased(engine, device, size=5))
    with engine.begin() as connection:
        batches.cancel(connection, small.campaign_id)
    assert counts(engine, small.campaign_id) == {"done": 5, "cancelled": 7}
    submit(Campaign.from_document(document()))
    assert counts(engine, small.campaign_id) == {"done": 5, "pending": 7}
    assert len(leased(engine, device).jobs) == 7


def test_a_target_any_stays_one_job_when_the_farm_gets_another_type(
    engine: Engine, announce: Announce, small: Stored, submit: Submit
) -> None:
    announce(cpu(2, kind="cpu-other"))
    assert submit(Campaign.from_document(document())).jobs == 0
    other = submit(Campaign.from_document(document(name="newer")))
    assert other.jobs == 12
    batch_id = form(engine, kind="cpu-other")
    assert batch_id is not None  # and may be measured by either type


def test_what_cannot_run_is_stored_with_its_reason_and_never_dispatched(
    engine: Engine, device: int, submit: Submit
) -> None:
    stored = submit(Campaign.from_document(document(kernels=[{"family": "blas", "threads": [1, 64]}])))
    assert counts(engine, stored.campaign_id) == {"pending": 6, "invalid": 6}
    with engine.connect() as connection:
        assert {p["error"] for p in jobs.problems(connection, stored.campaign_id)} == {
            "blas needs 64 threads, the device has 2"
        }
    assert len(leased(engine, device).jobs) == 6


# --- refused by one device of a pool -----------------------------------------------------------------


def asked(engine: Engine, device_of: dict[str, int]) -> tuple[int, Lease] | None:
    """The device that the coordinator's next batch goes to, and its lease; any of the type for a queue of the type."""
    batch_id = form(engine, kind="recorded-cpu-test")
    if batch_id is None:
        return None
    with engine.connect() as connection:
        queue = connection.execute(text("SELECT queue FROM batches WHERE id = :id"), {"id": batch_id}).scalar_one()
    device_id = device_of.get(queue.removeprefix("device."), next(iter(device_of.values())))
    lease = claim(engine, batch_id, device_id)
    assert lease is not None
    return device_id, lease


def test_a_job_is_invalid_where_every_device_of_its_pool_refused_it(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    device_of = {f"REC-{n}": announce(recording(n)) for n in (1, 2, 3)}
    stored = submit(Campaign.from_document(document()))
    first, _, last = device_of.values()
    has: dict[int, set[int]] = {}
    asks: Counter[tuple[int, int]] = Counter()
    while (one := asked(engine, device_of)) is not None:
        device_id, lease = one
        ids = sorted(job.id for job in lease.jobs)
        if not has:
            # The first device has all but three; of these the last one has one, and nobody the two others.
            has = {device: set() for device in device_of.values()} | {first: set(ids[3:]), last: {ids[0]}}
        asks.update((device_id, job_id) for job_id in ids)
        missing = set(ids) - has[device_id]
        land(engine, lease, {i: Failure(FailureKind.INVALID, "not in the recording") for i in missing})
    assert counts(engine, stored.campaign_id) == {"done": 10, "invalid": 2}
    assert max(asks.values()) == 1
    with engine.begin() as connection:
        lost = connection.execute(text("SELECT state, attempts FROM jobs WHERE state = 'invalid'")).all()
        assert [tuple(row) for row in lost] == [("invalid", 1)] * 2
        assert connection.execute(text("SELECT max(attempts) FROM jobs WHERE state = 'done'")).scalar_one() == 0
        assert campaigns.finish(connection) == [stored.campaign_id]


def test_jobs_that_only_a_drained_device_may_take_are_stuck(engine: Engine, announce: Announce, submit: Submit) -> None:
    device_of = {f"REC-{n}": announce(recording(n)) for n in (1, 2)}
    stored = submit(Campaign.from_document(document()))
    with engine.begin() as connection:
        devices.set_state(connection, device_of["REC-2"], DeviceState.DRAINED, "a test")
        connection.execute(text("UPDATE devices SET last_seen_at = clock_timestamp()"))
    one = asked(engine, {"REC-1": device_of["REC-1"]})
    assert one is not None
    land(engine, one[1], {one[1].jobs[0].id: Failure(FailureKind.INVALID, "not in the recording")})
    with engine.connect() as connection:
        stands = replace(estimates.read_farm_state(connection, Settings()), coordinated=True)
    (stuck,) = estimates.what_is_stuck(stands, of=[stored.campaign_id])
    assert (stuck.jobs, stuck.cause) == (1, estimates.Cause.REFUSED)
    assert "REC-2" in stuck.why
    assert "farm devices resume REC-2" in stuck.why


def test_what_the_devices_that_are_here_refused_does_not_wait_for_one_that_is_gone(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    device_of = {f"REC-{n}": announce(recording(n)) for n in (1, 2)}
    stored = submit(Campaign.from_document(document()))
    one = asked(engine, device_of)
    assert one is not None
    land(engine, one[1], {job.id: Failure(FailureKind.INVALID, "not in the recording") for job in one[1].jobs})
    assert counts(engine, stored.campaign_id) == {"pending": 12}
    with engine.begin() as connection:
        assert batches.give_up(connection) == 0
        devices.leave(connection, device_of["REC-2"])
    assert asked(engine, {"REC-1": device_of["REC-1"]}) is None
    with engine.begin() as connection:
        assert batches.give_up(connection) == 12
    assert counts(engine, stored.campaign_id) == {"invalid": 12}


def test_what_a_card_refuses_its_equals_are_not_asked_for(engine: Engine, announce: Announce, submit: Submit) -> None:
    ids = [announce(cpu(number)) for number in (1, 2)]
    stored = submit(Campaign.from_document(document()))
    lease = leased(engine, ids[0])
    land(engine, lease, {job.id: Failure(FailureKind.INVALID, "too large") for job in lease.jobs})
    assert counts(engine, stored.campaign_id) == {"invalid": 12}
