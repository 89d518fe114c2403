# ruff: noqa: B023 - what runs at once runs within its round
"""What happens at the same moment: threads on real Postgres. A deadlock, or a promise that is broken, fails a test."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from farm.campaign import Campaign, plan
from farm.coordinator.dispatch import form_batches, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.db import batches, campaigns, devices, jobs, kernels
from farm.db.batches import Failure, Lease
from farm.db.campaigns import Stored
from farm.db.engine import DISPATCHING, FROZEN_SECONDS, HASTY, MEASURING, make_engine
from farm.db.states import DeviceState, FailureKind, JobState, KernelState
from farm.devices import DeviceIdentity
from farm.errors import LeaseHeld, LeaseLost
from farm.metrics import Metrics
from farm.settings import Settings
from support.batch_steps import claim, counts, expire, form, leased, rows
from support.homes import eventually
from support.invariants import faults, unfinished
from support.kernel_builds import TOOLCHAINS_HERE
from support.races import at_once, nothing_is_broken
from support.samples import ahead, card, cpu, document, row
from support.scripted_device import Scripted
from workers import runner
from workers.runner import Runner

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
FAILED = Failure(FailureKind.FAILED, "a hiccup")
FINAL = {JobState.DONE, JobState.INVALID, JobState.DEAD}


@pytest.fixture
def each_round(engine: Engine, device: int, submit: Submit) -> Callable[[int], Iterator[Stored]]:
    """A campaign of 12 jobs with one attempt each for each of so many rounds, alone on the farm."""

    def rounds(n: int) -> Iterator[Stored]:
        for number in range(n):
            stored = submit(Campaign.from_document(document(name=f"round-{number}", measure={"max_attempts": 1})))
            yield stored
            nothing_is_broken(engine)
            stop(engine, stored.campaign_id, batches.cancel)

    return rounds


def store(engine: Engine, campaign: Campaign) -> Stored:
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        return campaigns.store(connection, campaign, plan(campaign, known, allow_missing=True).jobs())


def land(engine: Engine, lease: Lease, failed: Sequence[int] = ()) -> None:
    results = [(job, row()) for job in lease.jobs if job.id not in failed]
    with engine.begin() as connection:
        batches.land(connection, lease, results, dict.fromkeys(failed, FAILED))


def reap(engine: Engine, lease: Lease) -> None:
    expire(engine, lease)
    with engine.begin() as connection:
        batches.reap(connection)


def start_again(engine: Engine, device_id: int) -> None:
    with engine.begin() as connection:
        batches.release_all(connection, device_id=device_id, reason="it was started again")


def hand_back(engine: Engine, lease: Lease) -> None:
    with engine.begin() as connection:
        batches.release(connection, lease.batch_id, device_id=lease.device_id, reason="it died", suspect=True)


def fold(engine: Engine) -> None:
    with engine.begin() as connection:
        batches.fold(connection)
        campaigns.finish(connection)


def retry(engine: Engine, campaign_id: int) -> int:
    with engine.begin() as connection:
        return batches.retry(connection, campaign_id)


def stop(engine: Engine, campaign_id: int, how: Callable[[Connection, int], bool]) -> bool:
    with engine.begin() as connection:
        return how(connection, campaign_id)


def test_coordinators_form_from_the_same_lanes(engine: Engine, device: int, submit: Submit) -> None:
    problems = {"m": "8..400 +8", "n": 64, "k": 32, "types": ["f32"]}
    made = [submit(Campaign.from_document(document(name=name, owner=name, problems=problems))) for name in ("a", "b")]
    settings = Settings(outstanding_batches=25, batch_max_jobs=3)
    schedules = [read_schedule(engine, settings) for _ in range(4)]
    formed = at_once(*[lambda s=s: form_batches(engine, s, CostBook(), settings) for s in schedules])
    nothing_is_broken(engine)
    # Each leaves out a lane that another one has in hand, so some may be left for the next turn.
    formed.append(
        form_batches(
            engine, read_schedule(engine, Settings(outstanding_batches=1000, batch_max_jobs=3)), CostBook(), settings
        )
    )
    queued = sum(counts(engine, one.campaign_id).get("queued", 0) for one in made)
    with engine.connect() as connection:
        batch_jobs = list(connection.execute(text("SELECT jobs FROM batches")).scalars())
    assert len(batch_jobs) == sum(n for n in formed if isinstance(n, int))
    assert queued == sum(batch_jobs) == 200


def test_of_many_claims_of_many_batches_one_of_each_wins(engine: Engine, announce: Announce, submit: Submit) -> None:
    ids = [announce(cpu(n)) for n in range(1, 9)]
    submit(Campaign.from_document(document(problems={"m": "8..96 +8", "n": 64, "k": 32, "types": ["f32"]})))
    waiting = [batch_id for batch_id in (form(engine, 2) for _ in range(12)) if batch_id is not None]

    def claim_all(device_id: int) -> list[int]:
        won = list[int]()
        for batch_id in random.Random(device_id).sample(waiting, len(waiting)):
            lease = claim(engine, batch_id, device_id)
            if lease is not None:
                won.append(batch_id)
                land(engine, lease)
        return won

    claimed = at_once(*[lambda i=i: claim_all(i) for i in ids])
    assert sorted(one for some in claimed if isinstance(some, list) for one in some) == waiting
    nothing_is_broken(engine)


def test_landing_against_the_reaper_and_a_worker_that_starts_again(
    engine: Engine, device: int, each_round: Callable[[int], Iterator[Stored]]
) -> None:
    for stored in each_round(20):
        before, lease = rows(engine), leased(engine, device)
        landed = at_once(lambda: land(engine, lease), lambda: reap(engine, lease), lambda: start_again(engine, device))
        lost = isinstance(landed[0], LeaseLost)
        assert counts(engine, stored.campaign_id) == ({"pending": 12} if lost else {"done": 12})
        assert rows(engine) == before + (0 if lost else 12)


def test_a_suspect_that_many_hand_back_at_once_counts_one_attempt(
    engine: Engine, device: int, each_round: Callable[[int], Iterator[Stored]]
) -> None:
    for stored in each_round(20):
        lease = leased(engine, device)
        with engine.begin() as connection:
            batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
        at_once(lambda: hand_back(engine, lease), lambda: reap(engine, lease), lambda: start_again(engine, device))
        assert counts(engine, stored.campaign_id) == {"pending": 11, "dead": 1}
        with engine.connect() as connection:
            assert jobs.failures_by_kind(connection, stored.campaign_id) == {"killed": 1}


@pytest.mark.parametrize("how", [batches.cancel, batches.pause])
def test_stopping_a_campaign_against_forming_claiming_marking_and_landing(
    engine: Engine,
    announce: Announce,
    device: int,
    each_round: Callable[[int], Iterator[Stored]],
    how: Callable[[Connection, int], bool],
) -> None:
    other = announce(cpu(2))
    for stored in each_round(20):
        lease, waiting = leased(engine, device, size=3), form(engine, 3)
        assert waiting is not None
        _, stopped, claimed, formed = at_once(
            lambda: land(engine, lease, failed=[lease.jobs[2].id]),
            lambda: stop(engine, stored.campaign_id, how),
            lambda: claim(engine, waiting, other),
            lambda: form(engine, 3),
        )
        assert stopped is True
        nothing_is_broken(engine)  # so that nothing is queued, whoever came first
        assert formed is None or counts(engine, stored.campaign_id).get("queued", 0) == 0
        if isinstance(claimed, Lease):
            with engine.begin() as connection:
                assert not batches.mark(connection, claimed, claimed.jobs[0], lease_seconds=60)
            start_again(engine, other)
        seen = counts(engine, stored.campaign_id)
        rest = "cancelled" if how is batches.cancel else "pending"
        assert seen == {"done": 2, rest: 10}  # what failed on one device may still be measured by the other


def test_noting_what_was_sent_waits_for_no_worker_that_claims_it(engine: Engine, device: int, submit: Submit) -> None:
    submit(Campaign.from_document(document()))
    first, second = form(engine, 1), form(engine, 1)
    assert first is not None
    assert second is not None
    with engine.begin() as claiming:
        claiming.execute(text("SELECT id FROM batches WHERE id = :id FOR NO KEY UPDATE"), {"id": first})
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            batches.mark_sent(connection, [first, second])
    with engine.connect() as connection:
        assert [batch_id for batch_id, _ in batches.unsent(connection, resend_after=60)] == [first]


def _set_states(engine: Engine, state: DeviceState) -> None:
    with engine.begin() as connection:
        for row in devices.overview(connection, silent_after=60):
            devices.set_state(connection, row["device_id"], state, None)


def test_retrying_against_landing_folding_and_forming(
    engine: Engine, announce: Announce, device: int, each_round: Callable[[int], Iterator[Stored]]
) -> None:
    other = announce(cpu(2))
    for stored in each_round(20):
        first, second = leased(engine, device, size=5), leased(engine, other, size=5)
        _set_states(engine, DeviceState.DRAINED)  # so that no other device is expected, and what fails is dead
        land(engine, first, failed=[job.id for job in first.jobs])
        opened, *_ = at_once(
            lambda: retry(engine, stored.campaign_id),
            lambda: land(engine, second, failed=[job.id for job in second.jobs]),
            lambda: fold(engine),
            lambda: form(engine, 12),
        )
        assert opened in (5, 10)
        seen = counts(engine, stored.campaign_id)
        assert seen.get("dead", 0) == 10 - int(str(opened))
        assert seen.get("pending", 0) + seen.get("queued", 0) == 2 + int(str(opened))
        _set_states(engine, DeviceState.ACTIVE)


def test_folding_by_two_against_landing_counts_every_batch_once(
    engine: Engine, announce: Announce, device: int, submit: Submit
) -> None:
    ids = [device, *(announce(cpu(n)) for n in range(2, 7))]
    stored = [submit(Campaign.from_document(document(name=name, owner=name))) for name in ("a", "b", "c")]
    while batch_ids := [b for b in (form(engine, 1) for _ in range(6)) if b is not None]:
        leases = [lease for n, b in enumerate(batch_ids) if (lease := claim(engine, b, ids[n])) is not None]
        for lease in leases[::2]:
            land(engine, lease)
        at_once(*[lambda: fold(engine)] * 2, *[lambda one=one: land(engine, one) for one in leases[1::2]])
        nothing_is_broken(engine)
    fold(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT sum(measured) FROM devices")).scalar_one() == rows(engine) == 36
        assert connection.execute(text("SELECT sum(done) FROM lanes")).scalar_one() == 36
    assert all(counts(engine, one.campaign_id) == {"done": 12} for one in stored)


def test_the_same_campaign_submitted_by_many_at_once(engine: Engine, device: int) -> None:
    for number in range(10):
        campaign = Campaign.from_document(document(name=f"round-{number}"))
        stored = [s for s in at_once(*[lambda c=campaign: store(engine, c)] * 4) if isinstance(s, Stored)]
        assert len({one.campaign_id for one in stored}) == 1
        assert sorted((one.new, one.jobs) for one in stored) == [(False, 0)] * 3 + [(True, 12)]
        assert counts(engine, stored[0].campaign_id) == {"pending": 12}


def test_campaigns_that_share_new_pools_and_configurations_submitted_at_once(engine: Engine, device: int) -> None:
    for number in range(15):
        types = [{"type": f"cpu-{number}-{n}"} for n in range(6)]
        m = [64 + number, 128 + number]
        at_once(
            *[
                lambda name=name, targets=targets: store(
                    engine,
                    Campaign.from_document(
                        document(
                            name=f"{name}-{number}",
                            targets=targets,
                            problems={"m": m if name == "a" else m[::-1], "n": 64, "k": 32, "types": ["f32"]},
                        )
                    ),
                )
                for name, targets in (("a", types), ("b", types[::-1]), ("c", types[:3]))
            ]
        )
    nothing_is_broken(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM pools")).scalar_one() == 15 * 6
        assert connection.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 15 * (6 + 6 + 3) * 4


ENDING = [kind for kind in FailureKind if kind is not FailureKind.UNSUPPORTED]
"""What a version does not support waits for a worker of another version, of which a storm has none."""


class Storm:
    """Coordinators, workers, people and a witness, all at once, until every job has come to its end."""

    def __init__(self, engine: Engine, made: Sequence[Campaign], device_ids: Sequence[int]) -> None:
        self.engine = engine
        self.made = made
        self.device_ids = device_ids
        self.sent: list[int] = []
        self.calm = threading.Event()
        self.over = threading.Event()
        self.settings = Settings(outstanding_batches=3, batch_max_jobs=5)

    def run(self, threads: Sequence[Callable[[], None]]) -> None:
        def guarded(thread: Callable[[], None]) -> None:
            try:
                thread()
            except BaseException:
                self.calm.set()
                self.over.set()
                raise

        at_once(*[lambda t=t: guarded(t) for t in threads])

    def coordinator(self) -> None:
        while not self.over.is_set():
            with self.engine.begin() as connection:
                batches.reap(connection)
                kernels.take_back(connection, silent_after=0.05, max_attempts=20)
            with self.engine.begin() as connection:
                kernels.mark_sent(connection, kernels.unsent(connection, resend_after=0.0))
            with self.engine.begin() as connection:
                batches.release_waiting(connection)
            schedule = read_schedule(self.engine, self.settings)
            with self.engine.begin() as connection:
                batches.recall(connection, served=schedule.queues)
            form_batches(self.engine, schedule, CostBook(), self.settings)
            with self.engine.begin() as connection:
                waiting = [batch_id for batch_id, _ in batches.unsent(connection, resend_after=0.0)]
                batches.mark_sent(connection, waiting)
            self.sent = waiting
            fold(self.engine)
            if self.calm.is_set():
                with self.engine.connect() as connection:
                    if not unfinished(connection):
                        self.over.set()

    def builder(self) -> None:
        """Builds, fails to build, and falls silent."""
        chance = random.Random(7)
        while not self.over.is_set():
            with self.engine.connect() as connection:
                waiting = [k["kernel_id"] for k in kernels.listed(connection, states=[KernelState.WANTED])]
            for kernel_id in waiting:
                with self.engine.begin() as connection:
                    started = kernels.start(connection, kernel_id, TOOLCHAINS_HERE, builder="here")
                if started is None or chance.random() < 0.2:
                    continue
                with self.engine.begin() as connection:
                    if chance.random() < 0.2:
                        kernels.failed(connection, started, error="no", final=False, builder="here")
                    else:
                        kernels.built(connection, started, record={}, signature="", builder="here")

    def worker(self, device_id: int) -> None:
        chance = random.Random(device_id)
        while not self.over.is_set():
            for batch_id in chance.sample(waiting := self.sent, len(waiting)):
                with suppress(LeaseHeld, LeaseLost):
                    lease = claim(self.engine, batch_id, device_id, 0.05 if chance.random() < 0.2 else 60)
                    if lease is not None:
                        self._measure(lease, chance)
            with self.engine.begin() as connection:
                devices.heartbeat(connection, device_id)
                held = batches.held_by(connection, device_id)
                if held is not None:
                    batches.renew(connection, held, device_id=device_id, lease_seconds=60)

    def _measure(self, lease: Lease, chance: random.Random) -> None:
        results, failures, missing = [], {}, {}
        for job in lease.jobs:
            with self.engine.begin() as connection:
                if not batches.mark(connection, lease, job, lease_seconds=0.05 if chance.random() < 0.05 else 60):
                    break
            binary = job.configuration.binary(card().traits)
            if binary is not None and chance.random() < 0.1:
                missing[job.id] = binary
            elif chance.random() < 0.8:
                results.append((job, row()))
            else:
                failures[job.id] = Failure(chance.choice(ENDING), "so it came")
        if chance.random() < 0.1:
            start_again(self.engine, lease.device_id)
        with self.engine.begin() as connection:
            batches.land(connection, lease, results, failures, missing)

    def people(self) -> None:
        chance = random.Random(0)
        for _ in range(60):
            with self.engine.begin() as connection:
                campaign_id = chance.choice([one["id"] for one in campaigns.overview(connection)])
            match chance.randrange(5):
                case 0:
                    stop(self.engine, campaign_id, batches.cancel)
                case 1:
                    stop(self.engine, campaign_id, batches.pause)
                case 2:
                    stop(self.engine, campaign_id, batches.resume)
                case 3:
                    retry(self.engine, campaign_id)
                case 4:
                    store(self.engine, chance.choice(self.made))
        with self.engine.connect() as connection:
            paused = [one["id"] for one in campaigns.overview(connection) if one["state"] == "paused"]
        for campaign_id in paused:
            stop(self.engine, campaign_id, batches.resume)
        for campaign in self.made:
            store(self.engine, campaign)
        self.calm.set()

    def witness(self) -> None:
        """One snapshot after another: nothing is ever broken."""
        looking = self.engine.execution_options(isolation_level="REPEATABLE READ")
        while not self.over.is_set():
            with looking.connect() as connection:
                assert faults(connection) == []


def test_a_storm_of_everybody_ends_with_every_job_final(engine: Engine, database_url: str, announce: Announce) -> None:
    ids = [announce(cpu(n, kind=f"cpu-{n % 2}")) for n in range(1, 5)] + [announce(card(n)) for n in (5, 6)]
    problems = {"m": "64..512 +64", "n": 64, "k": [32, 64], "types": ["f32"]}
    targets = ("any", [{"type": "cpu-0"}], [{"each": "cpu-1"}])
    made = [
        Campaign.from_document(document(name=f"c{n}", owner=f"owner-{n % 2}", targets=target, problems=problems))
        for n, target in enumerate(targets)
    ]
    made.append(Campaign.from_document(ahead(problems={**problems, "types": ["f16"]})))
    stored = [store(engine, campaign) for campaign in made]
    # A connection for each, so that nobody waits for one.
    wide = make_engine(database_url, application="storm", pool_size=20)
    storm = Storm(wide, made, ids)
    everybody = [storm.coordinator, storm.coordinator, storm.people, storm.witness, storm.builder]
    storm.run([*everybody, *(lambda i=i: storm.worker(i) for i in ids)])
    wide.dispose()
    nothing_is_broken(engine)
    for one in stored:
        seen = counts(engine, one.campaign_id)
        assert set(seen) <= FINAL
        assert seen["done"] > 0


def test_a_process_that_stands_still_in_a_transaction_holds_up_nobody(
    engine: Engine, database_url: str, device: int, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = submit(Campaign.from_document(document()))
    batch_id = form(engine, 3)
    assert batch_id is not None
    session = {**HASTY, "idle_in_transaction_session_timeout": "500ms"}
    frozen = make_engine(database_url, application="frozen", pool_size=1, session=session, pre_ping=False)
    awake = threading.Event()
    times: list[None] = []
    real = batches.claim

    def standing_still_at_first(*arguments: Any, **named: Any) -> Lease | None:
        lease = real(*arguments, **named)
        times.append(None)
        if len(times) == 1:
            assert awake.wait(120)
        return lease

    monkeypatch.setattr(batches, "claim", standing_still_at_first)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    working = Runner(
        frozen, Scripted(lambda n, _: row()), device, lease_seconds=60, stopping=threading.Event(), metrics=Metrics()
    )
    landed: list[int] = []
    thread = threading.Thread(target=lambda: landed.append(working.run_batch(batch_id)))
    thread.start()
    try:
        eventually(lambda: times)
        with engine.begin() as connection:
            assert batches.mark_sent(connection, [batch_id]) == 0  # leaves out the row that the frozen one has
        with engine.begin() as connection:
            batches.pause(connection, stored.campaign_id)
            batches.resume(connection, stored.campaign_id)
    finally:
        awake.set()
        thread.join(120)
        frozen.dispose()
    assert landed == [0]  # the pause took the batch back before the worker woke up and asked again
    assert len(times) == 2
    nothing_is_broken(engine)


def test_sessions_of_workers_and_coordinators_end_when_they_stand_still(database_url: str) -> None:
    for session in (HASTY, DISPATCHING, MEASURING):
        engine = make_engine(database_url, application="test", session=session)
        with engine.connect() as connection:
            timeout = connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        engine.dispose()
        assert timeout == f"{FROZEN_SECONDS}s"
