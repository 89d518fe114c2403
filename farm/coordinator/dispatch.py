"""Forms batches, decides their size, and sends their ids to the broker."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine

from farm.broker.queues import MEASURE_BATCH
from farm.coordinator import spans
from farm.coordinator.job_costs import CostBook
from farm.coordinator.schedule import Assignment, LiveDevice, Schedule
from farm.coordinator.sending import send
from farm.coordinator.steps import OneByOne
from farm.db import batches, devices, fair_shares, worker_versions
from farm.db.batches import PendingJobs
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

FIRST_BATCH_JOBS = 4
"""Jobs of a batch with unknown cost."""

SPREAD = 4
"""Maximum factor by which jobs may be cheaper than their mean without a batch getting too small."""

MAX_BATCHES_PER_TURN = 1000
"""Maximum batches to form in one turn, so that sending and repair come soon."""

MAX_JOBS_PER_TURN = 100_000
"""Maximum jobs of these batches."""

MAX_MESSAGES_PER_TURN = 2 * MAX_BATCHES_PER_TURN
"""Maximum messages of one turn, for new batches and repeated ones."""

MAX_RECALLED = 200
"""Maximum batches of a queue to release for a higher priority in one turn."""

MAX_JOBS_PER_TRANSACTION = 10_000
"""Maximum jobs of the batches of one transaction. A cancel waits until that transaction ends."""


def max_jobs(mean_s: float | None, settings: Settings) -> int:
    """Maximum jobs of a batch: few while their cost is unknown."""
    if mean_s is None:
        return min(FIRST_BATCH_JOBS, settings.batch_max_jobs)
    if mean_s <= 0:
        return settings.batch_max_jobs
    return max(1, min(settings.batch_max_jobs, math.ceil(SPREAD * settings.batch_seconds / mean_s)))


def read_schedule(engine: Engine, settings: Settings) -> Schedule:
    """Reads waiting jobs, batches in flight and live devices."""
    with engine.connect() as connection:
        live = devices.live(connection, silent_after=settings.silent_after_seconds)
        work = batches.candidates(connection)
        unread = any(one.refused_by and one.refused_by[0] < 0 for one in work)
        running = worker_versions.of_devices(connection) if unread else {}
        return Schedule(
            [LiveDevice(*device, version_id=running.get(device[0])) for device in live],
            work,
            batches.flights(connection, batch_seconds=settings.batch_seconds),
            outstanding=settings.outstanding_batches,
            shares=fair_shares.stored(connection),
            weights=settings.weights_of_owners,
            batch_seconds=settings.batch_seconds,
        )


def make_way(engine: Engine, schedule: Schedule) -> list[int]:
    """Releases unclaimed batches if jobs of a higher priority wait for their queue. Returns their ids.

    Workers take batches in the order in which they were sent."""
    gone: list[int] = []
    for queue, priority in schedule.urgent():
        with engine.begin() as connection:
            below = batches.make_way(connection, queue=queue, priority=priority, limit=MAX_RECALLED)
        schedule.make_room(queue, len(below))
        gone += below
    return gone


@dataclass(frozen=True, slots=True)
class _PlannedBatch:
    assignment: Assignment
    plan: batches.BatchPlan


def form_batches(
    engine: Engine,
    schedule: Schedule,
    costs: CostBook,
    settings: Settings,
    *,
    count: Callable[[int], object] = lambda formed: None,
) -> int:
    """Fills the live devices' queues. Returns how many batches were formed; `count` is told so after each transaction.

    The schedule plans ahead, as if every batch could be formed. Then the batches of a job group are formed together, with few
    round trips to the database; what comes of them is sent in the order of the plan. Where a job group has fewer jobs than planned, the
    schedule takes back the rest and plans again.

    A transaction takes one job group, so no two transactions wait for each other. `engine` may be hasty: a batch that is lost in a
    power cut was never formed, and its jobs still wait.

    A job group that another session holds is left out. Raises `PartlyFailed` where a job group failed for another reason, after the
    others.
    """
    some = OneByOne()
    if schedule.started or schedule.idle:
        with some.each(), engine.begin() as connection:
            fair_shares.add(connection, schedule.started)
            fair_shares.remove(connection, schedule.idle)
    formed, jobs, trusted = 0, 0, defaultdict[PendingJobs, int](lambda: 1)
    while formed < MAX_BATCHES_PER_TURN and jobs < MAX_JOBS_PER_TURN:
        room = MAX_BATCHES_PER_TURN - formed, MAX_JOBS_PER_TURN - jobs
        planned = some.attempt(_plan, engine, schedule, costs, settings, room, trusted)
        if not planned:
            break
        shut = set[int]()
        for part in _parts(planned):
            lane_id = part[0].assignment.work.lane_id
            done = None if lane_id in shut else some.attempt(_form_in_group, engine, lane_id, part)
            if done is None:
                shut.add(lane_id)
            unformed, exhausted = done or (part, part)
            schedule.not_formed([one.assignment for one in unformed])
            for one in exhausted:
                schedule.nothing_there(one.assignment)
            jobs += sum(one.plan.jobs for one in part) - sum(one.plan.jobs for one in unformed)
            formed += len(part) - len(unformed)
            count(len(part) - len(unformed))
    some.end()
    return formed


def _plan(
    engine: Engine,
    schedule: Schedule,
    costs: CostBook,
    settings: Settings,
    room: tuple[int, int],
    trusted: dict[PendingJobs, int],
) -> list[_PlannedBatch]:
    """What the schedule would form next, in its order: so many batches at most, and until they may hold so many jobs.

    Failed jobs are few. Each group of them gets as many batches as `trusted` says: twice as many each time.
    """
    found = list[tuple[Assignment, batches.BatchPlan]]()
    jobs, retries = 0, Counter[PendingJobs]()
    with engine.connect() as connection:
        while len(found) < room[0] and jobs < room[1] and (assignment := schedule.next()) is not None:
            work = assignment.work
            if work.retry and retries[work] == trusted[work]:
                trusted[work] *= 2
                break
            retries[work] += work.retry
            plan = _size(connection, assignment, costs, settings)
            schedule.formed(assignment)
            found.append((assignment, plan))
            jobs += plan.jobs
        ids = batches.reserve(connection, len(found)) if found else []
    return [_PlannedBatch(one, replace(plan, id=number)) for (one, plan), number in zip(found, ids, strict=True)]


def _size(connection: Connection, assignment: Assignment, costs: CostBook, settings: Settings) -> batches.BatchPlan:
    work, kind = assignment.work, assignment.device_type
    cost, mean_s = costs.of(
        work.lane_id,
        kind,
        lambda: batches.recently_finished(connection, lane_id=work.lane_id, device_type=kind),
    )
    # One job first: its row, and what a job costs, are known soon.
    first = mean_s is None and costs.is_first(work.lane_id, kind)
    return batches.BatchPlan(
        queue=assignment.queue,
        jobs=1 if first or work.solo else max_jobs(mean_s, settings),
        seconds=settings.batch_seconds,
        cost=cost,
    )


def _parts(planned: Iterable[_PlannedBatch]) -> Iterator[list[_PlannedBatch]]:
    """What is formed in one transaction each: of one job group, in the order of the plan, and not too many jobs."""
    of_groups = defaultdict[int, list[_PlannedBatch]](list)
    for one in planned:
        of_groups[one.assignment.work.lane_id].append(one)
    for of_group in of_groups.values():
        part, jobs = list[_PlannedBatch](), 0
        for one in of_group:
            if part and jobs + one.plan.jobs > MAX_JOBS_PER_TRANSACTION:
                yield part
                part, jobs = [], 0
            part.append(one)
            jobs += one.plan.jobs
        yield part


def _form_in_group(
    engine: Engine, lane_id: int, part: Sequence[_PlannedBatch]
) -> tuple[Sequence[_PlannedBatch], Sequence[_PlannedBatch]] | None:
    """Forms batches of a job group in one transaction.

    Returns those that were not formed, and one of each work without jobs left; None where the job group cannot be taken.
    """
    of_works = defaultdict[PendingJobs, list[_PlannedBatch]](list)
    for one in part:
        of_works[one.assignment.work].append(one)
    unformed, exhausted = list[_PlannedBatch](), list[_PlannedBatch]()
    made, began_ns = list[tuple[PendingJobs, Sequence[int], Sequence[batches.BatchPlan]]](), time.time_ns()
    with engine.begin() as connection:
        if not batches.lock(connection, lane_id):
            return None
        for work, of_work in of_works.items():
            formed = batches.form_many(connection, work, [one.plan for one in of_work])
            made.append((work, formed.ids, [one.plan for one in of_work]))
            unformed += of_work[len(formed.ids) :]
            if not formed.more:
                exhausted.append(of_work[0])
    for work, ids, plans in made:
        spans.batches_formed(engine, work, ids, plans, began_ns, time.time_ns())
    return unformed, exhausted


@dataclass(frozen=True, slots=True)
class SentMessages:
    """Messages of batches that went to the broker in one turn."""

    first: int
    again: int
    # Whether the broker took all that were to be sent.
    whole: bool


def send_batches(engine: Engine, app: Celery, settings: Settings) -> SentMessages:
    """Sends the ids of batches that were never sent, or whose message may be lost."""
    with engine.connect() as connection:
        waiting = batches.unsent(connection, resend_after=settings.resend_after_seconds, limit=MAX_MESSAGES_PER_TURN)
    began_ns = time.time_ns()
    sent, again = send(app, MEASURE_BATCH, waiting), 0
    if sent:
        taken = set(sent)
        spans.messages_sent(engine, (one for one in waiting if one[0] in taken), began_ns, time.time_ns())
        with engine.begin() as connection:
            again = batches.mark_sent(connection, sent)
    return SentMessages(first=len(sent) - again, again=again, whole=len(sent) == len(waiting))
