"""The state machine of jobs and batches, on real Postgres: who may measure what, and what lands."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from samples import cpu, document, row
from sqlalchemy import Engine, text

from farm.broker import queue_of_type
from farm.campaign import Campaign
from farm.coordinator.dispatch import form_batches
from farm.db import batches, campaigns, devices
from farm.db.batches import Failure, Lease
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.errors import LeaseLost
from farm.settings import Settings

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
QUEUE = queue_of_type("cpu-test")


def form(engine: Engine, jobs: int = 100, *, kind: str = "cpu-test") -> int | None:
    with engine.begin() as connection:
        work = batches.next_work(connection, device_type=kind, device_uuid=None)
        return None if work is None else batches.form(connection, work, queue=queue_of_type(kind), jobs=jobs)


def claim(engine: Engine, batch_id: int, device_id: int, lease_seconds: float = 60) -> Lease | None:
    with engine.begin() as connection:
        return batches.claim(connection, batch_id, device_id=device_id, lease_seconds=lease_seconds)


def leased(engine: Engine, device_id: int, jobs: int = 100, lease_seconds: float = 60) -> Lease:
    batch_id = form(engine, jobs)
    assert batch_id is not None
    lease = claim(engine, batch_id, device_id, lease_seconds)
    assert lease is not None
    return lease


def land(engine: Engine, lease: Lease, failures: dict[int, Failure] | None = None) -> None:
    failures = failures or {}
    results = [(job, row()) for job in lease.jobs if job.id not in failures]
    with engine.begin() as connection:
        batches.land(connection, lease, results, failures)


def counts(engine: Engine, campaign_id: int) -> dict[str, int]:
    with engine.connect() as connection:
        return {state: n for state, n in campaigns.counts(connection, campaign_id).items() if n}


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM measurements")).scalar_one())


def expire(engine: Engine, lease: Lease) -> None:
    """As if the lease's time had gone by."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE id = :id"),
            {"id": lease.batch_id},
        )


@pytest.fixture
def device(announce: Announce) -> int:
    return announce(cpu())


@pytest.fixture
def small(device: int, submit: Submit) -> Stored:
    return submit(Campaign.from_document(document()))


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
    land(engine, lease, {first: Failure("invalid", "too large"), second: Failure("failed", "a hiccup")})
    assert counts(engine, small.campaign_id) == {"done": 10, "invalid": 1, "pending": 1}
    for _ in range(2):
        lease = leased(engine, device)
        land(engine, lease, {second: Failure("failed", "a hiccup")})
    assert counts(engine, small.campaign_id) == {"done": 10, "invalid": 1, "dead": 1}
    with engine.connect() as connection:
        assert {p["error"] for p in campaigns.problems(connection, small.campaign_id)} == {"too large", "a hiccup"}


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


def test_nothing_of_a_cancelled_campaign_starts_or_lands(engine: Engine, device: int, small: Stored) -> None:
    held = leased(engine, device, jobs=3)
    waiting = form(engine, jobs=3)
    with engine.begin() as connection:
        assert campaigns.cancel(connection, small.campaign_id) == 12
    assert waiting is not None
    assert claim(engine, waiting, device) is None
    assert form(engine) is None
    with pytest.raises(LeaseLost):
        land(engine, held)
    assert counts(engine, small.campaign_id) == {"cancelled": 12}
    with engine.connect() as connection:
        assert batches.outstanding(connection) == {}


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
        devices.could_not_open(connection, broken, "no driver")
        connection.execute(text("UPDATE devices SET state = 'drained' WHERE id = :id"), {"id": drained})
        assert devices.live(connection, silent_after=60) == []
        assert devices.quarantined_on(connection, "here") == {"Test CPU 1": "no driver"}
    assert announce(cpu(1)) == broken
    announce(cpu(2))
    with engine.begin() as connection:
        assert devices.live(connection, silent_after=60) == [("CPU-1", "cpu-test")]


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
    for jobs in (12, 4, 4, 4, 4, 4, 4):
        batch_id = form(engine, jobs)
        with engine.connect() as connection:
            statement = text("SELECT campaign_id FROM batches WHERE id = :id")
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
    with engine.begin() as connection:
        assert form_batches(connection, settings) == 2
        assert form_batches(connection, settings) == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET last_seen_at = clock_timestamp() - interval '1 hour'"))
        connection.execute(text("UPDATE batches SET state = 'released'"))
        assert form_batches(connection, settings) == 0


def test_batches_grow_to_the_device_time_that_is_asked_for(engine: Engine, device: int, submit: Submit) -> None:
    submit(Campaign.from_document(document(problems={"m": "64..640 +64", "n": 64, "k": [32, 64], "types": ["f32"]})))
    lease = leased(engine, device, jobs=4)
    land(engine, lease)
    with engine.begin() as connection:
        connection.execute(text("UPDATE batches SET claimed_at = finished_at - interval '0.8 s'"))
        form_batches(connection, Settings(batch_seconds=2.0, outstanding_batches=1))
        assert connection.execute(text("SELECT jobs FROM batches WHERE state = 'queued'")).scalar_one() == 10


# --- submitting ------------------------------------------------------------------------------------


def test_the_same_campaign_twice_is_the_same_campaign(engine: Engine, small: Stored, submit: Submit) -> None:
    again = submit(Campaign.from_document(document(description="another text", priority=7)))
    assert again == Stored(small.campaign_id, new=False, configurations=0, jobs=0)


def test_a_cancelled_campaign_goes_on_when_it_is_submitted_again(
    engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    land(engine, leased(engine, device, jobs=5))
    with engine.begin() as connection:
        campaigns.cancel(connection, small.campaign_id)
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
        assert {p["error"] for p in campaigns.problems(connection, stored.campaign_id)} == {
            "blas needs 64 threads, the device has 2"
        }
    assert len(leased(engine, device).jobs) == 6
