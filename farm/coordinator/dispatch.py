"""Which batches to form now, how large, and handing their ids to the broker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import Connection, Engine

from farm.broker import MEASURE_BATCH, queue_of_device, queue_of_type
from farm.db import batches, devices
from farm.settings import Settings

log = logging.getLogger(__name__)

FIRST_BATCH_JOBS = 4
"""Jobs in a batch while nothing is known of their cost."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and the live devices behind it. Exactly one of `device_type` and `device_uuid` is given."""

    name: str
    live_devices: int
    device_type: str | None = None
    device_uuid: str | None = None


def queues_of(live: list[tuple[str, str]]) -> Iterator[Queue]:
    """The queues that the live devices, given as (uuid, type), serve."""
    for device_uuid, _ in live:
        yield Queue(queue_of_device(device_uuid), 1, device_uuid=device_uuid)
    for device_type, count in Counter(device_type for _, device_type in live).items():
        yield Queue(queue_of_type(device_type), count, device_type=device_type)


def batch_size(seconds_per_job: float | None, settings: Settings) -> int:
    """How many jobs make about `batch_seconds` of device time.

    Few while the cost is unknown, so that a wrong guess costs little; never more than `batch_max_jobs`.
    """
    if seconds_per_job is None:
        return min(FIRST_BATCH_JOBS, settings.batch_max_jobs)
    if seconds_per_job <= 0:
        return settings.batch_max_jobs
    return max(1, min(settings.batch_max_jobs, round(settings.batch_seconds / seconds_per_job)))


def form_batches(connection: Connection, settings: Settings) -> int:
    """Fills every live device's queues up to `outstanding_batches` per device. Returns how many were formed."""
    formed = 0
    live = devices.live(connection, silent_after=settings.silent_after_seconds)
    outstanding = batches.outstanding(connection)
    for queue in queues_of(live):
        wanted = settings.outstanding_batches * queue.live_devices - outstanding.get(queue.name, 0)
        for _ in range(wanted):
            work = batches.next_work(connection, device_type=queue.device_type, device_uuid=queue.device_uuid)
            if work is None:
                break
            cost = batches.seconds_per_job(connection, campaign_id=work.campaign_id, queue=queue.name)
            if batches.form(connection, work, queue=queue.name, jobs=batch_size(cost, settings)) is not None:
                formed += 1
    return formed


def send_batches(engine: Engine, app: Celery, settings: Settings) -> int:
    """Sends the ids of batches that were never sent, or whose message may be lost. Returns how many.

    A broker that does not answer is logged and tried again at the next turn: the batches are safe in Postgres.
    """
    with engine.begin() as connection:
        waiting = batches.unsent(connection, resend_after=settings.resend_after_seconds)
    sent: list[int] = []
    try:
        for batch_id, queue in waiting:
            app.send_task(MEASURE_BATCH, args=(batch_id,), queue=queue, retry=False)
            sent.append(batch_id)
    except OperationalError as error:
        log.warning("the broker does not answer (%s); %d batches wait to be sent", error, len(waiting) - len(sent))
    if sent:
        with engine.begin() as connection:
            batches.mark_sent(connection, sent)
    return len(sent)
