"""The parent process of a device: the Celery worker that `workers.process` runs."""

from __future__ import annotations

import logging
import time

from celery import Celery
from sqlalchemy.exc import DBAPIError

from farm.broker.celery_app import consume, make_app
from farm.broker.queues import queue_of_device, queue_of_type
from farm.db import batches, device_sessions, devices
from farm.db.engine import FaultLog
from farm.devices import DeviceIdentity
from farm.errors import SessionLost
from farm.logs import set_up_logging
from farm.services.urls import broker_url
from farm.settings import settings
from workers import tasks
from workers.device_lock import EXIT_SESSION_LOST
from workers.spawning import spawn_without_tracker

log = logging.getLogger(__name__)

CHILD_POOL = "workers.child_pool:ChildPool"
"""Imported where the Celery worker starts."""

RETRY_SECONDS = 1.0
"""Time between two attempts while the database does not respond."""


def app() -> Celery:
    """The Celery application on the broker that `farm-worker` sets."""
    url = settings().broker_url
    assert url is not None, "farm-worker sets FARM_BROKER_URL"
    return make_app(broker_url(url.get_secret_value()), include=("workers.child",))


def take_over() -> DeviceIdentity:
    """Hands back the batches of an earlier worker of this device. Retries until the database accepts it.

    Raises `SessionLost` if another `farm-worker` serves the device now.
    """
    faults = FaultLog(log)
    while True:
        try:
            with tasks.engine().begin() as connection:
                session = tasks.session()
                if session is not None:
                    device_sessions.check(connection, tasks.device_id(), session)
                reason = "its worker ended and was started again"
                batches.release_all(connection, device_id=tasks.device_id(), reason=reason)
                return devices.identity(connection, tasks.device_id())
        except DBAPIError as error:
            faults.fails(error, "waiting for it", device_id=tasks.device_id())
            time.sleep(RETRY_SECONDS)


def serve() -> int:
    """Serves the device until the worker is stopped. Returns the exit status."""
    set_up_logging(settings(), "worker")
    try:
        identity = take_over()
    except SessionLost as error:
        log.error("%s This worker ends", error, extra={"device_id": tasks.device_id()})
        return EXIT_SESSION_LOST
    queues = [queue_of_device(identity.uuid), queue_of_type(identity.type)]
    spawn_without_tracker()
    return consume(app(), pool=CHILD_POOL, queues=queues, name=f"{identity.uuid}@%h", refused=tasks.count_refused)
