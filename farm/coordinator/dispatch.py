"""Which batches to form now, how large, and handing their ids to the broker."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine

from farm.broker import MEASURE_BATCH
from farm.coordinator.costs import CostBook
from farm.coordinator.schedule import Assignment, LiveDevice, Schedule
from farm.coordinator.sending import send
from farm.coordinator.steps import OneByOne
from farm.db import batches, devices, fair_shares, worker_versions
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

FIRST_BATCH_JOBS = 4
"""Jobs in a batch while nothing is known of their cost."""

SPREAD = 4
"""Jobs may be this much cheaper than their mean before a batch holds less than it could."""

MOST_IN_A_TURN = 200
"""Batches formed in one turn at the most, so that sending and repairing are never far away."""

AWAITED_SECONDS = 120.0
"""How long a device that fell silent is waited for by jobs that failed on the only other one: as long as a host may take
to start again. Without it, a bad device would use up all their attempts meanwhile."""

MOST_IN_A_TRANSACTION = 20
"""Batches of one lane formed in one transaction: a campaign that is being cancelled waits no longer than that."""


def most_jobs(mean_s: float | None, settings: Settings) -> int:
    """How many jobs to look at for a batch: few while their cost is unknown, so that a wrong guess costs little."""
    if mean_s is None:
        return min(FIRST_BATCH_JOBS, settings.batch_max_jobs)
    if mean_s <= 0:
        return settings.batch_max_jobs
    return max(1, min(settings.batch_max_jobs, math.ceil(SPREAD * settings.batch_seconds / mean_s)))


def read_schedule(engine: Engine, settings: Settings) -> Schedule:
    """What waits, what is in flight and who lives, as of now."""
    with engine.connect() as connection:
        silent_after = settings.silent_after_seconds
        live = devices.live(connection, silent_after=silent_after)
        awaited = devices.awaited(connection, silent_after=silent_after, within=AWAITED_SECONDS)
        work = batches.candidates(connection)
        unread = any(one.refused_by and one.refused_by[0] < 0 for one in work)
        running = worker_versions.of_devices(connection) if unread else {}
        return Schedule(
            [LiveDevice(*device, version_id=running.get(device[0])) for device in live],
            work,
            batches.flights(connection, batch_seconds=settings.batch_seconds),
            outstanding=settings.outstanding_batches,
            awaited=[LiveDevice(*device, version_id=running.get(device[0])) for device in awaited],
            shares=fair_shares.stored(connection),
            weights=settings.weights_of_owners,
            batch_seconds=settings.batch_seconds,
        )


def make_way(engine: Engine, schedule: Schedule) -> list[int]:
    """Takes back batches that nobody has claimed where work of a higher priority waits for their queue: workers take
    batches in the order in which they were sent. Returns their ids."""
    gone: list[int] = []
    for queue, priority in schedule.urgent():
        with engine.begin() as connection:
            below = batches.make_way(connection, queue=queue, priority=priority, most=MOST_IN_A_TURN)
        schedule.make_room(queue, len(below))
        gone += below
    return gone


def form_batches(
    engine: Engine,
    schedule: Schedule,
    costs: CostBook,
    settings: Settings,
    *,
    count: Callable[[int], object] = lambda formed: None,
) -> int:
    """Fills the live devices' queues. Returns how many batches were formed; `count` is told so after each transaction.

    Batches that follow one another in a lane share a transaction, so that the lane is locked once for them; never two
    lanes, so that nobody waits for this in a circle. `engine` may be hasty: a batch that is lost in a power cut was
    never formed, and its jobs still wait.

    A lane that another session holds is left out. Raises `PartlyFailed` where a lane failed for another reason, after the
    others.
    """
    some = OneByOne()
    if schedule.started or schedule.idle:
        with some.each(), engine.begin() as connection:
            fair_shares.add(connection, schedule.started)
            fair_shares.remove(connection, schedule.idle)
    formed = 0
    assignment = schedule.next()
    while assignment is not None and formed < MOST_IN_A_TURN:
        done = some.attempt(_form_of_lane, engine, schedule, assignment, costs, settings)
        if done is None:
            schedule.nothing_there(assignment)
            assignment = schedule.next()
        else:
            of_lane, assignment = done
            formed += of_lane
            count(of_lane)
    some.end()
    return formed


def _form_of_lane(
    engine: Engine, schedule: Schedule, assignment: Assignment, costs: CostBook, settings: Settings
) -> tuple[int, Assignment | None]:
    """Forms batches that follow one another in a lane. Returns how many, and what follows."""
    lane_id, formed, following = assignment.work.lane_id, 0, assignment
    with engine.begin() as connection:
        active = batches.lock(connection, lane_id)
        for _ in range(MOST_IN_A_TRANSACTION):
            batch_id = _form(connection, following, costs, settings) if active else None
            if batch_id is None:
                schedule.nothing_there(following)
            else:
                schedule.formed(following)
                formed += 1
            another = schedule.next()
            if another is None or another.work.lane_id != lane_id:
                return formed, another
            following = another
    return formed, following


def _form(connection: Connection, assignment: Assignment, costs: CostBook, settings: Settings) -> int | None:
    work, kind = assignment.work, assignment.device_type
    cost, mean_s = costs.of(
        work.lane_id,
        kind,
        lambda: batches.recently_finished(connection, lane_id=work.lane_id, device_type=kind),
    )
    return batches.form(
        connection,
        work,
        queue=assignment.queue,
        # One job first: its row, and what a job costs, are known soon.
        jobs=1 if mean_s is None and costs.is_first(work.lane_id, kind) else most_jobs(mean_s, settings),
        seconds=settings.batch_seconds,
        cost=cost,
    )


@dataclass(frozen=True, slots=True)
class Sent:
    """Messages of batches that went to the broker in one turn."""

    first: int
    again: int
    # Whether the broker took all that were to be sent.
    whole: bool


def send_batches(engine: Engine, app: Celery, settings: Settings) -> Sent:
    """Sends the ids of batches that were never sent, or whose message may be lost."""
    with engine.connect() as connection:
        waiting = batches.unsent(connection, resend_after=settings.resend_after_seconds)
    sent, again = send(app, MEASURE_BATCH, waiting), 0
    if sent:
        with engine.begin() as connection:
            again = batches.mark_sent(connection, sent)
    return Sent(first=len(sent) - again, again=again, whole=len(sent) == len(waiting))
