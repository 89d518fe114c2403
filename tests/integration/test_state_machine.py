"""Random interleavings of workers, coordinators, people and faults on real Postgres, against a model of the farm.

Every step is a transition through the farm's own functions. After each, the tables must hold what the model says, job by
job, and break no promise (`audit`). At the end of an example the faults end, and all that is left must come to its end.

A short, always equal run by default. `FARM_TEST_EXAMPLES=2000` makes that many longer examples, different each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, Engine, event, text

from farm.campaign import Campaign, plan
from farm.coordinator.dispatch import form_batches, make_way, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.coordinator.schedule import Schedule
from farm.db import archive, batches, campaigns, deletions, devices, jobs, kernels, migrate, worker_versions
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.engine import HASTY, make_engine
from farm.db.kernels import BuildAttempt as Build
from farm.db.states import (
    BatchState,
    CampaignState,
    DeletionKind,
    DeviceState,
    FailureKind,
    JobRecord,
    JobState,
    KernelState,
)
from farm.db.task_rows import MAX_ATTEMPTS
from farm.errors import LeaseHeld, LeaseLost
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH
from farm.measurement import Measurement
from farm.settings import Settings
from support.farm_model import Batch, Device, FarmModel, Job, Kernel
from support.farm_model import Campaign as ModelCampaign
from support.invariants import faults, unfinished
from support.kernel_builds import TOOLCHAINS_HERE
from support.samples import ahead, card, cpu, document, row

T = TypeVar("T")

DEVICES = (
    cpu(1, kind="cpu-a"),
    cpu(2, kind="cpu-a"),
    cpu(3, kind="cpu-b", threads=1),
    card(1, kind="card-a"),
    card(2, kind="card-b", capability=(8, 0)),
    cpu(4, kind="cpu-a", threads=4),
    cpu(5, kind="cpu-c"),
)
TRAITS = {identity.uuid: identity.traits for identity in DEVICES}
AT_FIRST = 5  # of these devices; the others are announced later


def _campaign(
    name: str, owner: str, targets: object, max_attempts: int, threads: Sequence[int], **problems: object
) -> Campaign:
    return Campaign.from_document(
        document(
            name=name,
            owner=owner,
            targets=targets,
            measure={"max_attempts": max_attempts},
            problems={"m": [64, 128, 256], "n": 64, "k": 32, "types": ["f32"], **problems},
            kernels=[{"family": "blas", "threads": threads}],
        )
    )


CATALOGUE = (
    _campaign("anywhere", "ann", "any", 2, [1, 2]),
    Campaign.from_document(
        ahead(problems={"m": [64, 128], "n": 64, "k": 32, "types": ["f16"]}, measure={"max_attempts": 2})
    ),
    _campaign("types", "bob", [{"type": "cpu-a"}, {"type": "cpu-b"}], 3, [1]),
    _campaign("each", "bob", [{"each": "cpu-a"}], 1, [1, 4]),
    _campaign("refused", "ann", [{"type": "cpu-b"}], 2, [1, 2]),
    Campaign.from_document(
        ahead(
            name="one-type",
            targets=[{"type": "card-a"}],
            problems={"m": 64, "n": [64, 128, 256], "k": 64, "types": ["f16"]},
        )
    ),
    _campaign("pinned", "cy", [{"device": "CPU-3"}], 2, [1], k=[32, 64]),
    _campaign("large", "cy", "any", 3, [1, 2], m=[64, 128, 256, 512]),
)


class End(Enum):
    """What becomes of a worker with its batch."""

    LANDS = "it lands what it measured"
    HANDED_BACK = "it dies, and its parent hands the batch back"
    PAUSED = "it stands still until its lease has passed, and goes on in vain"
    LEFT = "it goes on later, or never"


class Store(Enum):
    """What a worker may find where a built kernel should be."""

    EMPTY = "no store has it"


Outcome = FailureKind | Store | None
Served = tuple[int, Sequence[Outcome], End]

STEERING = {
    CampaignState.ACTIVE: (batches.resume, (CampaignState.PAUSED,)),
    CampaignState.PAUSED: (batches.pause, (CampaignState.ACTIVE,)),
    CampaignState.CANCELLED: (batches.cancel, (CampaignState.ACTIVE, CampaignState.PAUSED)),
}
"""How a campaign gets to that state, and from which."""

PICK = st.integers(0, 9)
DIES = st.sampled_from((False, False, False, True))
SIZE = st.integers(1, 4)
OUTCOMES = st.lists(st.sampled_from((None, None, None, *FailureKind, *Store)), min_size=1, max_size=4)
BECAME = st.sampled_from(("built", "built", "built", "failed", "does not compile"))
BUILDS = st.lists(BECAME, max_size=4)
SERVED = st.lists(st.tuples(PICK, OUTCOMES, st.sampled_from((End.LANDS, End.LANDS, *End))), min_size=2, max_size=6)
COORDINATOR = st.integers(0, 1)
KINDS = st.none() | st.lists(st.sampled_from(FailureKind), unique=True)
UNKNOWN = 10**12
"""The id of no batch."""

LONG = 100_000.0
"""Seconds. Time passes only where a rule says so."""

QUIET_ROUNDS = 100
"""Turns of a coordinator after which whatever was left must have come to its end."""


def chosen(things: Sequence[T], pick: int) -> T:
    return things[pick % len(things)]


class Died(BaseException):
    """A process ended just before it would have committed."""


@dataclass
class Worker:
    """A worker's process, with what it believes: it may long have lost its lease."""

    lease: Lease
    begun: int = 0
    results: list[tuple[ClaimedJob, Measurement]] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    missing: dict[int, Binary] = field(default_factory=dict)

    @property
    def rest(self) -> Sequence[ClaimedJob]:
        return self.lease.jobs[self.begun :]


class FarmMachine(RuleBasedStateMachine):
    """Two coordinators, a worker or several on each device, builders, people, a broker that loses and repeats, and time."""

    engine: ClassVar[Engine]

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.model = FarmModel()
        self.schedules: dict[int, list[Schedule]] = {0: [], 1: []}  # the newest first
        self.bag = [UNKNOWN]  # batch ids that are with the broker
        self.workers: list[Worker] = []  # the newest first
        self.builds: list[Build] = []  # what builders believe that they have in work, the newest first
        self.steps = 0
        self.kernel_ids: dict[str, int] = {}
        self.lives: int | None = None
        empty(self.engine)
        event.listen(self.engine, "commit", self._before_commit)
        for _ in range(AT_FIRST):
            self.announce_another(dies=False)

    # --- processes that die ---

    def _before_commit(self, _: Connection) -> None:
        if self.lives is not None:
            if self.lives == 0:
                raise Died
            self.lives -= 1

    @contextmanager
    def dying_after(self, commits: int | None) -> Iterator[None]:
        """The process dies instead of committing once more than that. None: it lives."""
        self.lives = commits
        try:
            with suppress(Died):
                yield
        finally:
            self.lives = None

    @contextmanager
    def transaction(self, *, dies: bool = False) -> Iterator[Connection]:
        """One transaction of a process, which may die before it commits: nothing may come of it then."""
        with self.dying_after(0 if dies else None), self.engine.begin() as connection:
            yield connection

    # --- people ---

    @initialize(which=PICK, other=PICK, builds=BUILDS, size=SIZE, served=SERVED)
    def begin(self, which: int, other: int, builds: Sequence[str], size: int, served: Sequence[Served]) -> None:
        for pick in (which, other):
            self.submit(which=pick, priority=0, dies=False)
        self.go_on(builds=builds, size=size, served=served)

    @rule(which=PICK, priority=st.sampled_from((0, 5)), dies=DIES)
    def submit(self, which: int, priority: int, dies: bool) -> None:
        base = chosen(CATALOGUE, which)
        campaign = Campaign.from_document({**base.document, "priority": priority})
        assert campaign.digest == base.digest
        with self.transaction(dies=dies) as connection:
            known = campaigns.known_devices(connection)
            planned = list(plan(campaign, known, allow_missing=False).jobs())
            stored = campaigns.store(connection, campaign, planned)
        if dies:
            return
        assert stored.new == (stored.campaign_id not in self.model.campaigns)
        self._learn_kernels()
        self.model.want_again(
            [self.kernel_ids[b.hash(BUILT_WITH)] for job in planned for b in job.binaries], lost=False
        )
        told = self.model.campaigns.setdefault(
            stored.campaign_id, ModelCampaign(stored.campaign_id, priority, campaign.measure.max_attempts)
        )
        told.priority = priority
        there = {(job.pool, job.configuration_id) for job in self.model.jobs_of(told.id)}
        anywhere = {job.configuration_id for job in self.model.jobs_of(told.id) if job.any_device}
        missing = {
            (job.pool.name, str(job.configuration.id)): job
            for job in planned
            if (job.pool.name, str(job.configuration.id)) not in there
            and not (job.any_device and str(job.configuration.id) in anywhere)
        }
        with self.reads.connect() as connection:
            found = [r for r in connection.execute(_JOBS, {"id": told.id}) if r.id not in self.model.jobs]
        assert {(r.pool, r.configuration_id) for r in found} == missing.keys()
        assert stored.jobs == len(missing)
        for r in found:
            refused = missing[r.pool, r.configuration_id].invalid_reason is not None
            job = Job(r.id, told.id, r.lane_id, r.pool, r.configuration_id, r.any_device)
            needs = [self.kernel_ids[b.hash(BUILT_WITH)] for b in missing[r.pool, r.configuration_id].binaries]
            if refused:
                job.state, job.kinds = JobRecord.INVALID, [FailureKind.INVALID]
            elif any(self.model.kernels[i].state != KernelState.BUILT for i in needs):
                job.state, job.needs = JobRecord.WAITING, frozenset(needs)
            self.model.jobs[job.id] = job
        if told.state in (CampaignState.DONE, CampaignState.CANCELLED) and self.model.not_counted_as_final(told.id):
            told.state = CampaignState.ACTIVE

    def _learn_kernels(self) -> None:
        """Those that somebody asked for by now."""
        with self.reads.connect() as connection:
            self.kernel_ids = {r.hash: r.id for r in connection.execute(_KERNELS)}
        for kernel_id in self.kernel_ids.values():
            self.model.kernels.setdefault(kernel_id, Kernel(kernel_id))

    def _campaigns(self) -> list[ModelCampaign]:
        """Those that something is measured of first."""
        running = {self.model.campaign_of(batch).id for batch in self.model.batches_in(BatchState.LEASED)}
        return sorted(self.model.campaigns.values(), key=lambda campaign: campaign.id not in running)

    @rule(pick=PICK, to=st.sampled_from(tuple(STEERING)), dies=DIES)
    def steer(self, pick: int, to: CampaignState, dies: bool) -> None:
        """Cancel, pause or resume."""
        campaign = chosen(self._campaigns(), pick)
        transition, may = STEERING[to]
        with self.transaction(dies=dies) as connection:
            changed = transition(connection, campaign.id)
        assert changed == (campaign.state in may)
        if changed and not dies:
            self.model.steer(campaign, to)

    @rule(pick=PICK, dies=DIES)
    def delete_and_restore(self, pick: int, dies: bool) -> None:
        """Whoever measures it loses the lease, and no job counts an attempt. It comes back as it was, cancelled if open."""
        campaign = chosen(self._campaigns(), pick)
        with self.reads.connect() as connection:
            digest = connection.execute(_DIGEST, {"id": campaign.id}).scalar_one()
        with self.transaction(dies=dies) as connection:
            deletions.delete_campaign(connection, digest, by="ann", cancel=True)
        if dies:
            return
        with self.transaction() as connection:
            archive.restore(connection, DeletionKind.CAMPAIGN, digest)
        is_open = any(job.state in (JobRecord.OPEN, JobRecord.WAITING) for job in self.model.jobs_of(campaign.id))
        if is_open and campaign.state in (CampaignState.ACTIVE, CampaignState.PAUSED):
            self.model.steer(campaign, CampaignState.CANCELLED)
        for batch in self.model.batches_in(BatchState.QUEUED, BatchState.LEASED):
            if self.model.campaign_of(batch).id == campaign.id:
                self.model.release(batch, suspect=False)

    @precondition(lambda self: any(j.state in (JobRecord.DEAD, JobRecord.INVALID) for j in self.model.jobs.values()))
    @rule(
        pick=PICK,
        states=st.sampled_from(((JobState.DEAD,), (JobState.INVALID,), (JobState.DEAD, JobState.INVALID))),
        kinds=KINDS,
        every=st.integers(1, 3),
        dies=DIES,
    )
    def retry(
        self, pick: int, states: Sequence[JobState], kinds: list[FailureKind] | None, every: int, dies: bool
    ) -> None:
        campaign = chosen(list(self.model.campaigns.values()), pick)
        ids = None if every == 1 else [job.id for job in self.model.jobs.values() if job.id % every == 0]
        with self.transaction(dies=dies) as connection:
            opened = batches.retry(connection, campaign.id, states=states, job_ids=ids, kinds=kinds)
        meant = [
            job
            for job in self.model.jobs_of(campaign.id)
            if job.state in states and (ids is None or job.id in ids) and (kinds is None or job.kinds[-1] in kinds)
        ]
        assert opened == len(meant)
        if meant and not dies:
            for job in meant:
                job.state, job.attempts, job.avoid = JobRecord.OPEN, 0, None
            if campaign.state == CampaignState.DONE:
                campaign.state = CampaignState.ACTIVE

    @rule(pick=PICK, state=st.sampled_from(DeviceState), dies=DIES)
    def set_device_state(self, pick: int, state: DeviceState, dies: bool) -> None:
        device = chosen(list(self.model.devices.values()), pick)
        with self.transaction(dies=dies) as connection:
            devices.set_state(connection, device.id, state, "said so")
        if not dies:
            device.state = state

    # --- coordinators: the steps of a turn, by either of two, in any order ---

    @rule(who=COORDINATOR, size=SIZE)
    def turn(self, who: int, size: int) -> None:
        """All steps of a turn as the coordinator takes them."""
        self.reap(dies=False)
        self.let_go(dies=False)
        self.end_exhausted(dies=False)
        self.look(who=who, outstanding=2)
        self.recall(who=who, pick=0, dies=False)
        self.make_way(who=who, pick=0, commits=None)
        self.form(who=who, pick=0, size=size, commits=None)
        self.send(again=False, most=1000, dies=False)
        self.count(folds=True, finishes=True, dies=False)

    @rule(dies=DIES)
    def reap(self, dies: bool) -> None:
        lapsed = [batch for batch in self.model.batches_in(BatchState.LEASED) if batch.lapsed]
        with self.transaction(dies=dies) as connection:
            assert batches.reap(connection) == [batch.id for batch in lapsed]
        if not dies:
            for batch in lapsed:
                self.model.release(batch, suspect=True)

    @rule(who=COORDINATOR, outstanding=st.integers(1, 2))
    def look(self, who: int, outstanding: int) -> None:
        self.schedules[who].insert(0, read_schedule(self.reads, farm_settings(outstanding_batches=outstanding)))
        del self.schedules[who][3:]

    @precondition(lambda self: any(self.schedules.values()))
    @rule(who=COORDINATOR, pick=PICK, dies=DIES)
    def recall(self, who: int, pick: int, dies: bool) -> None:
        served = chosen(self.schedules[who] or self.schedules[1 - who], pick).queues
        unserved = [batch for batch in self.model.batches_in(BatchState.QUEUED) if batch.queue not in served]
        with self.transaction(dies=dies) as connection:
            assert batches.recall(connection, served=served) == [batch.id for batch in unserved]
        if not dies:
            for batch in unserved:
                self.model.release(batch, suspect=False)

    @precondition(lambda self: any(self.schedules.values()))
    @rule(who=COORDINATOR, pick=PICK, size=SIZE, commits=st.none() | st.integers(0, 2))
    def form(self, who: int, pick: int, size: int, commits: int | None) -> None:
        """From any schedule that it ever read. One that dies on the way forgets all it read."""
        schedule = chosen(self.schedules[who] or self.schedules[1 - who], pick)
        formed = list[int]()  # empty where it died
        with self.dying_after(commits):
            formed.append(form_batches(self.engine, schedule, CostBook(), farm_settings(batch_max_jobs=size)))
        with self.reads.connect() as connection:
            new = [r for r in connection.execute(_BATCHES) if r.id not in self.model.batches]
        for batch_id, queue, lane_id, job_ids in new:
            self._check_formed([self.model.jobs[i] for i in job_ids], lane_id, queue, size)
            assert queue in schedule.queues
            self.model.batches[batch_id] = Batch(batch_id, queue, job_ids)
            for i in job_ids:
                self.model.jobs[i].avoid, self.model.jobs[i].exhausted = None, False
        assert formed in ([], [len(new)])
        if not formed:
            self.schedules[who].clear()

    @precondition(lambda self: any(self.schedules.values()))
    @rule(who=COORDINATOR, pick=PICK, commits=st.none() | st.integers(0, 1))
    def make_way(self, who: int, pick: int, commits: int | None) -> None:
        """What nobody has claimed goes back where more urgent work waits, as far as a schedule knew."""
        schedule = chosen(self.schedules[who] or self.schedules[1 - who], pick)
        urgent = dict(schedule.urgent())
        with self.dying_after(commits):
            make_way(self.engine, schedule)
        with self.reads.connect() as connection:
            gone = set(connection.execute(_RELEASED).scalars())
        for batch in self.model.batches_in(BatchState.QUEUED):
            if batch.id in gone:
                priority = min(self.model.campaigns[self.model.jobs[i].campaign_id].priority for i in batch.job_ids)
                assert priority < urgent[batch.queue]
                self.model.release(batch, suspect=False)

    def _check_formed(self, formed: list[Job], lane_id: int, queue: str, size: int) -> None:
        """That these jobs waited, and may go together to that queue."""
        assert 1 <= len({job.id for job in formed}) == len(formed) <= size
        for job in formed:
            assert job.state == JobRecord.OPEN
            assert self.model.batch_of(job) is None
            assert job.lane_id == lane_id
            assert self.model.campaigns[job.campaign_id].state == CampaignState.ACTIVE
            assert not job.solo or len(formed) == 1
            serving = [device for device in self.model.devices.values() if queue in device.queues]
            assert all(job.pool == f"device:{d.uuid}" or d.type in job.pool.split(":")[1].split(",") for d in serving)
            if job.solo or job.avoid is not None:
                assert queue.startswith("device.")

    @rule(again=st.booleans(), most=st.integers(1, 9), dies=DIES)
    def send(self, again: bool, most: int, dies: bool) -> None:
        """One that dies after it sent notes nothing: the messages are there all the same."""
        with self.reads.connect() as connection:
            waiting = batches.unsent(connection, resend_after=0 if again else LONG)
        unclaimed = self.model.batches_in(BatchState.QUEUED)
        assert waiting == [(batch.id, batch.queue) for batch in unclaimed if again or not batch.sends]
        sent = [batch_id for batch_id, _ in waiting[:most]]
        self.bag += sent
        before = sum(self.model.batches[i].sends > 0 for i in sent)
        with self.transaction(dies=dies) as connection:
            assert batches.mark_sent(connection, sent) == before
        if not dies:
            for i in sent:
                self.model.batches[i].sends += 1

    @rule(folds=st.booleans(), finishes=st.booleans(), dies=DIES)
    def count(self, folds: bool, finishes: bool, dies: bool) -> None:
        with self.transaction(dies=dies) as connection:
            folded = batches.fold(connection) if folds else None
            finished = campaigns.finish(connection) if finishes else None
        if not dies:
            assert folded == (self.model.fold() if folds else None)
            assert (finished and sorted(finished)) == (self.model.finish() if finishes else None)

    @rule(dies=DIES)
    def let_go(self, dies: bool) -> None:
        """Jobs whose kernels are over wait no more."""
        with self.transaction(dies=dies) as connection:
            gone = batches.release_waiting(connection)
        if not dies:
            assert gone == self.model.let_go()

    @rule(dies=DIES)
    def end_exhausted(self, dies: bool) -> None:
        """Jobs that failed on one device wait no more where no other may try them."""
        with self.transaction(dies=dies) as connection:
            ended = batches.end_exhausted(connection)
        if not dies:
            assert ended == self.model.end_exhausted()

    @rule(dies=DIES)
    def send_builds(self, dies: bool) -> None:
        with self.reads.connect() as connection:
            unsent = kernels.unsent(connection, resend_after=LONG)
        assert unsent == self.model.unsent()
        with self.transaction(dies=dies) as connection:
            kernels.mark_sent(connection, unsent)
        if not dies:
            for kernel_id in unsent:
                self.model.kernels[kernel_id].sent = True

    # --- builders ---

    @precondition(lambda self: self.model.kernels)
    @rule(pick=PICK, dies=DIES)
    def start_building(self, pick: int, dies: bool) -> None:
        """A message reaches a builder: of a kernel that is wanted, or of one that another has, or that is over."""
        in_order = sorted(self.model.kernels.values(), key=lambda kernel: kernel.state != KernelState.WANTED)
        kernel = chosen(in_order, pick)
        with self.transaction(dies=dies) as connection:
            started = kernels.start(connection, kernel.id, TOOLCHAINS_HERE, builder="here")
        assert (started is not None) == (kernel.state == KernelState.WANTED)
        if started is not None and not dies:
            kernel.state, kernel.starts = KernelState.BUILDING, kernel.starts + 1
            assert started.number == kernel.starts
            self.builds.insert(0, started)
            del self.builds[4:]

    @precondition(lambda self: self.builds)
    @rule(pick=PICK, became=BECAME, dies=DIES)
    def end_building(self, pick: int, became: str, dies: bool) -> None:
        """By a builder that may long have lost the kernel."""
        started = chosen(self.builds, pick)
        kernel = self.model.kernels[started.kernel_id]
        has_it = (kernel.state, kernel.starts) == (KernelState.BUILDING, started.number)
        with self.transaction(dies=dies) as connection:
            assert kernels.beat(connection, started) == has_it
            if became == "built":
                held = kernels.built(connection, started, record={}, signature="", builder="here")
            else:
                final = became == "does not compile"
                held = kernels.failed(connection, started, error=became, final=final, builder="here")
        assert held == has_it
        if held and not dies:
            self.model.build_ended(kernel, built=became == "built", final=became == "does not compile")

    def _build_next(self, became: str) -> None:
        if any(kernel.state == KernelState.WANTED for kernel in self.model.kernels.values()):
            self.start_building(pick=0, dies=False)
            self.end_building(pick=0, became=became, dies=False)

    @rule(dies=DIES)
    def builders_fall_silent(self, dies: bool) -> None:
        silent = [kernel for kernel in self.model.kernels.values() if kernel.state == KernelState.BUILDING]
        with self.transaction(dies=dies) as connection:
            taken = kernels.take_back(connection, silent_after=0, max_attempts=MAX_ATTEMPTS)
        assert taken.keys() == {kernel.id for kernel in silent}
        if not dies:
            for kernel in silent:
                self.model.build_ended(kernel, built=False)
                assert taken[kernel.id] == kernel.state

    # --- the broker ---

    @precondition(lambda self: self.bag)
    @rule(pick=PICK, to=PICK, stays=st.booleans(), dies=DIES)
    def deliver(self, pick: int, to: int, stays: bool, dies: bool) -> None:
        """A message reaches a worker: the right one, a wrong one, or one after another."""
        position = pick % len(self.bag)
        batch = self.model.batches.get(self.bag[position]) or Batch(self.bag[position], "", [])
        in_order = sorted(self.model.devices.values(), key=lambda d: (not self.model.can_claim(batch, d), d.id))
        self.claim(batch, chosen(in_order, to), dies=dies)
        if not stays:
            del self.bag[position]

    def claim(self, batch: Batch, device: Device, *, dies: bool) -> Worker | None:
        if self.model.would_take(batch, device) and self.model.holds(device):
            with pytest.raises(LeaseHeld), self.transaction() as connection:
                batches.claim(connection, batch.id, device_id=device.id, lease_seconds=LONG)
            return None
        with self.transaction(dies=dies) as connection:
            lease = batches.claim(connection, batch.id, device_id=device.id, lease_seconds=LONG)
        assert (lease is not None) == self.model.can_claim(batch, device)
        if lease is None or dies:
            return None
        assert sorted(job.id for job in lease.jobs) == sorted(batch.job_ids)
        batch.state, batch.device_id = BatchState.LEASED, device.id
        self.workers.insert(0, Worker(lease))
        del self.workers[6:]
        return self.workers[0]

    @precondition(lambda self: self.bag)
    @rule()
    def lose_all_messages(self) -> None:
        self.bag.clear()

    # --- workers ---

    def _workers(self) -> list[Worker]:
        """Those whose lease is worth something first."""
        return sorted(self.workers, key=lambda worker: self._held(worker) is None)

    def _held(self, worker: Worker) -> Batch | None:
        """The worker's batch, where its lease is worth anything."""
        batch = self.model.batches[worker.lease.batch_id]
        return batch if batch.state == BatchState.LEASED and not batch.lapsed else None

    @rule(builds=BUILDS, size=SIZE, served=SERVED)
    def go_on(self, builds: Sequence[str], size: int, served: Sequence[Served]) -> None:
        """Builders take what is wanted; a turn, and its messages reach workers that may claim their batches."""
        for became in builds:
            self._build_next(became)
        self.turn(who=0, size=size)
        for pick, outcomes, end in served:
            waiting = [batch for batch in self.model.batches_in(BatchState.QUEUED) if batch.id in self.bag]
            able = [(b, d) for b in waiting for d in self.model.devices.values() if self.model.can_claim(b, d)]
            if able:
                self._serve(*chosen(able, pick), outcomes, end)

    def _serve(self, batch: Batch, device: Device, outcomes: Sequence[Outcome], end: End) -> None:
        worker = self.claim(batch, device, dies=False)
        assert worker is not None
        for outcome in outcomes:
            self._measure_next(worker, outcome, dies=False)
        match end:
            case End.LANDS:
                self._land(worker, dies=False)
            case End.HANDED_BACK:
                self._hand_back(worker.lease, device.id, suspect=True, dies=False)
            case End.PAUSED:
                self._let_pass(batch)
                self._measure_next(worker, None, dies=False)
                self._land(worker, dies=False)

    @precondition(lambda self: any(worker.rest for worker in self.workers))
    @rule(pick=PICK, outcomes=OUTCOMES, dies=DIES)
    def measure(self, pick: int, outcomes: Sequence[Outcome], dies: bool) -> None:
        worker = chosen([worker for worker in self._workers() if worker.rest], pick)
        for outcome in outcomes:
            self._measure_next(worker, outcome, dies=dies)

    def _measure_next(self, worker: Worker, outcome: Outcome, *, dies: bool) -> None:
        if not worker.rest:
            return
        job, batch = worker.rest[0], self._held(worker)
        if batch is None:
            with pytest.raises(LeaseLost), self.transaction() as connection:
                batches.mark(connection, worker.lease, job, lease_seconds=LONG)
            return
        with self.transaction(dies=dies) as connection:
            starts = batches.mark(connection, worker.lease, job, lease_seconds=LONG)
        assert starts == self.model.may_start(batch)
        if dies:
            return
        batch.current = job.id if starts else None
        worker.begun += 1
        if not starts:
            worker.begun = len(worker.lease.jobs)
        elif isinstance(outcome, Store) and (binary := self._binary(worker, job)) is not None:
            worker.missing[job.id] = binary
        elif outcome is None or isinstance(outcome, Store):
            worker.results.append((job, row()))
        else:
            worker.failures[job.id] = Failure(outcome, "so it was drawn")
            if outcome is FailureKind.KILLED:
                worker.begun = len(worker.lease.jobs)

    def _binary(self, worker: Worker, job: ClaimedJob) -> Binary | None:
        return job.configuration.binary(TRAITS[self.model.devices[worker.lease.device_id].uuid])

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, dies=DIES)
    def land(self, pick: int, dies: bool) -> None:
        """At the end, in the middle, again, or long after the lease was lost."""
        self._land(chosen(self._workers(), pick), dies=dies)

    def _land(self, worker: Worker, *, dies: bool) -> None:
        batch = self._held(worker)
        if batch is None:
            with pytest.raises(LeaseLost), self.transaction() as connection:
                batches.land(connection, worker.lease, worker.results, worker.failures, worker.missing)
            return
        with self.transaction(dies=dies) as connection:
            batches.land(connection, worker.lease, worker.results, worker.failures, worker.missing)
        if not dies:
            self._learn_kernels()
            failures = {job_id: failure.kind for job_id, failure in worker.failures.items()}
            missing = {job_id: self.kernel_ids[b.hash(BUILT_WITH)] for job_id, b in worker.missing.items()}
            self.model.land(batch, [job.id for job, _ in worker.results], failures, missing)

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, by_its_own=st.booleans(), suspect=st.booleans(), dies=DIES)
    def hand_back(self, pick: int, by_its_own: bool, suspect: bool, dies: bool) -> None:
        lease = chosen(self.workers, pick).lease
        others = [device.id for device in self.model.devices.values() if device.id != lease.device_id]
        self._hand_back(lease, lease.device_id if by_its_own else others[0], suspect=suspect, dies=dies)

    def _hand_back(self, lease: Lease, device_id: int, *, suspect: bool, dies: bool) -> None:
        batch = self.model.batches[lease.batch_id]
        with self.transaction(dies=dies) as connection:
            held = batches.release(connection, batch.id, device_id=device_id, reason="it was killed", suspect=suspect)
        assert held == (device_id == lease.device_id and batch.state == BatchState.LEASED)
        if held and not dies:
            self.model.release(batch, suspect=suspect)

    @rule(pick=PICK, dies=DIES)
    def start_again(self, pick: int, dies: bool) -> None:
        device = chosen(list(self.model.devices.values()), pick)
        held = [batch for batch in self.model.batches_in(BatchState.LEASED) if batch.device_id == device.id]
        with self.transaction(dies=dies) as connection:
            released = batches.release_all(connection, device_id=device.id, reason="it was started again")
        assert released == [batch.id for batch in held]
        if not dies:
            for batch in held:
                self.model.release(batch, suspect=True)

    @rule(pick=PICK, silent=st.booleans(), dies=DIES)
    def beat(self, pick: int, silent: bool, dies: bool) -> None:
        """A worker says that it lives, or that it leaves. A lease that has passed stays so."""
        device = chosen(list(self.model.devices.values()), pick)
        with self.transaction(dies=dies) as connection:
            if silent:
                devices.leave(connection, device.id)
            else:
                devices.heartbeat(connection, device.id)
                held = batches.held_by(connection, device.id)
                if held is not None:
                    batches.renew(connection, held, device_id=device.id, lease_seconds=LONG)
        if not dies:
            device.silent = silent

    @precondition(lambda self: len(self.model.devices) < len(DEVICES))
    @rule(dies=DIES)
    def announce_another(self, dies: bool) -> None:
        identity = DEVICES[len(self.model.devices)]
        with self.transaction(dies=dies) as connection:
            device_id = devices.register(connection, host="here", host_facts={}, device=identity)
            worker_versions.announce(connection, device_id)
        if not dies:
            self.model.devices[device_id] = Device(
                device_id, identity.uuid, identity.type, (identity.backend, identity.traits)
            )

    # --- time ---

    @precondition(lambda self: self.model.batches_in(BatchState.LEASED))
    @rule(pick=PICK)
    def let_a_lease_pass(self, pick: int) -> None:
        self._let_pass(chosen(self.model.batches_in(BatchState.LEASED)[::-1], pick))

    def _let_pass(self, batch: Batch) -> None:
        with self.transaction() as connection:
            connection.execute(_EXPIRE, {"id": batch.id})
        batch.lapsed = True

    # --- what must hold ---

    @invariant()
    def tables_hold_what_they_should(self) -> None:
        self.steps += 1
        with self.reads.connect() as connection:
            assert faults(connection) == []
            assert self.model.differences(connection) == []
            for campaign in campaigns.overview(connection):
                counted = {state: n for state, n in campaign["counts"].items() if n}
                assert counted == self.model.counts(campaign["id"])
            if self.model.campaigns:
                campaign_id = chosen(list(self.model.campaigns), self.steps)
                seen = {job["job_id"]: job["state"] for job in jobs.listed(connection, campaign_id)}
                assert seen == {job.id: self.model.seen_state(job) for job in self.model.jobs_of(campaign_id)}

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # otherwise an example that failed, or was given up, is cleared away
                self.come_to_an_end()
        finally:
            event.remove(self.engine, "commit", self._before_commit)

    def come_to_an_end(self) -> None:
        """The faults end, workers are upgraded, people resume and submit again what they stopped: every job comes to its end."""
        self._restore()
        for _ in range(QUIET_ROUNDS):
            with self.reads.connect() as connection:
                if not unfinished(connection):
                    break
            self._honest_turn()
            self.tables_hold_what_they_should()
        with self.reads.connect() as connection:
            assert unfinished(connection) == []

    def _restore(self) -> None:
        for device in self.model.devices.values():
            with self.transaction() as connection, patch.object(worker_versions, "vocabulary", lambda: "all"):
                worker_versions.announce(connection, device.id)
                devices.set_state(connection, device.id, DeviceState.ACTIVE, None)
                devices.heartbeat(connection, device.id)
            device.state, device.silent, device.version = DeviceState.ACTIVE, False, 1
        with self.reads.connect() as connection:
            digests = {c["id"]: c["digest"] for c in campaigns.overview(connection)}
        positions = {campaign.digest: position for position, campaign in enumerate(CATALOGUE)}
        for campaign in self.model.campaigns.values():
            if campaign.state == CampaignState.PAUSED:
                with self.transaction() as connection:
                    assert batches.resume(connection, campaign.id)
                campaign.state = CampaignState.ACTIVE
            elif campaign.state == CampaignState.CANCELLED:
                self.submit(which=positions[digests[campaign.id]], priority=campaign.priority, dies=False)
        for batch in self.model.batches_in(BatchState.LEASED):
            self._let_pass(batch)
        self.builders_fall_silent(dies=False)

    def _honest_turn(self) -> None:
        """A turn of a coordinator, and honest workers that take all there is: what was lost on the way is sent again."""
        for _ in self.model.kernels:
            self._build_next("built")
        self.turn(who=0, size=3)
        self.send(again=True, most=1000, dies=False)
        for batch in self.model.batches_in(BatchState.QUEUED):
            able = [device for device in self.model.devices.values() if self.model.can_claim(batch, device)]
            self._serve(batch, able[0], [None] * len(batch.job_ids), End.LANDS)


_DIGEST = text("SELECT digest FROM campaigns WHERE id = :id")
_JOBS = text("""
SELECT j.id, j.lane_id, p.name AS pool, j.configuration_id::text, j.any_device
FROM lanes l JOIN jobs j ON j.lane_id = l.id JOIN pools p ON p.id = l.pool_id WHERE l.campaign_id = :id ORDER BY j.id
""")
_KERNELS = text("SELECT id, hash FROM kernels ORDER BY id")
_RELEASED = text("SELECT id FROM batches WHERE state = 'released'")
_BATCHES = text("SELECT id, queue, lane_id, job_ids FROM batches ORDER BY id")
_EXPIRE = text("UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE id = :id")


@cache
def farm_settings(**changes: Any) -> Settings:
    """Settings under which sizes and silence do not depend on how fast this runs."""
    return Settings(batch_seconds=1e7, silent_after_seconds=LONG, **changes)


_EMPTY = text("""
ALTER TABLE measurements DISABLE TRIGGER measurements_append_only;
TRUNCATE campaigns, configurations, lanes, jobs, batches, returned_jobs, failures, measurements, environments,
    pools, devices, hosts, trainings, kernels, kernel_code, kernel_definitions, waiting_jobs, builders, deletions, deleted_rows, fair_shares,
    device_overlaps RESTART IDENTITY;
ALTER TABLE measurements ENABLE TRIGGER measurements_append_only;
""")


def empty(engine: Engine) -> None:
    """Empties every table. Rows of results cannot be removed otherwise."""
    with engine.begin() as connection:
        connection.execute(_EMPTY)


@pytest.fixture
def hasty(database_url: str) -> Iterator[Engine]:
    """A migrated database that does not wait for the disk."""
    engine = make_engine(database_url, application="test", session=HASTY, pre_ping=False)
    migrate.upgrade(engine)
    yield engine
    engine.dispose()


EXAMPLES = int(os.environ.get("FARM_TEST_EXAMPLES", "0"))


@pytest.mark.long
@pytest.mark.timeout(0 if EXAMPLES else 900)
def test_any_order_of_faults_loses_no_job_and_measures_none_twice(hasty: Engine) -> None:
    class Farm(FarmMachine):
        engine = hasty

    run_state_machine_as_test(
        Farm,
        settings=settings(
            max_examples=EXAMPLES or 40,
            stateful_step_count=100 if EXAMPLES else 50,
            derandomize=not EXAMPLES,
            # Shrinking takes longer than the limit, which would hide what failed.
            phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
