"""The Celery application of a device's worker, and its one task.

The parent process consumes messages, says that the device lives, and hands back the batch of a child that died.
The child process, started afresh by `spawn`, opens the device and measures.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from functools import cache
from typing import Any

from billiard.process import active_children
from celery import shared_task, signals
from celery.exceptions import WorkerLostError
from sqlalchemy import Engine

from farm.broker import MEASURE_BATCH
from farm.db import batches, devices
from farm.db.engine import make_engine
from farm.errors import DevicePoisoned, FarmError
from farm.logs import set_up_logging
from farm.settings import settings
from workers.devices import open_device
from workers.runner import Runner

log = logging.getLogger(__name__)

DEVICE_ID = "FARM_WORKER_DEVICE_ID"
"""The environment variable by which `farm-worker` tells a device's processes which device is theirs."""

EXIT_POISONED = 87

STOP_SIGNAL = signal.SIGUSR2
"""Sent by the parent to its child when the worker is to stop: finish the job in hand, hand back the rest."""

_stopping = threading.Event()


def device_id() -> int:
    """The database id of the device that this process serves."""
    return int(os.environ[DEVICE_ID])


@cache
def engine(*, hasty: bool = False) -> Engine:
    url = settings().database_url
    assert url is not None, "farm-worker sets FARM_DATABASE_URL"
    name = f"farm worker {device_id()}"
    return make_engine(url.get_secret_value(), application=name, pool_size=2, hasty=hasty)


@cache
def _runner() -> Runner:
    """Opens the device, in the child process and on its first batch."""
    with engine().begin() as connection:
        identity = devices.identity(connection, device_id())
    device = open_device(identity)
    device.open()
    return Runner(
        engine(),
        engine(hasty=True),
        device,
        device_id(),
        lease_seconds=settings().lease_seconds,
        stopping=_stopping,
    )


@shared_task(name=MEASURE_BATCH)
def measure_batch(batch_id: int) -> None:
    """Measures the batch of that id. What it holds is looked up; a message that means nothing here does nothing."""
    try:
        runner = _runner()
    except Exception as error:
        if not isinstance(error, FarmError):
            log.exception("opening the device raised", extra={"device_id": device_id()})
        with engine().begin() as connection:
            devices.could_not_open(connection, device_id(), f"it could not be opened: {error}")
        log.error("the device could not be opened and is quarantined: %s", error, extra={"device_id": device_id()})
        return
    try:
        runner.run_batch(int(batch_id))
    except DevicePoisoned:
        log.exception("this process ends, a fresh one takes its place", extra={"batch_id": batch_id})
        os._exit(EXIT_POISONED)


@signals.setup_logging.connect
def _logging(**_: Any) -> None:
    set_up_logging(settings(), "worker")


@signals.worker_process_init.connect
def _set_up_child(**_: Any) -> None:
    set_up_logging(settings(), "worker")
    signal.signal(STOP_SIGNAL, lambda *_: _stopping.set())


# --- the parent --------------------------------------------------------------------------------------


def _beat() -> None:
    while not _stopping.is_set():
        try:
            with engine().begin() as connection:
                devices.heartbeat(connection, device_id())
        except Exception as error:  # whatever is wrong with the database now, the next beat tries again
            log.warning("the database did not take a heartbeat: %s", str(error).splitlines()[0])
        _stopping.wait(settings().heartbeat_seconds)


@signals.worker_ready.connect
def _start_beating(**_: Any) -> None:
    threading.Thread(target=_beat, name="heartbeat", daemon=True).start()


@signals.worker_shutting_down.connect
def _leave(**_: Any) -> None:
    _stopping.set()
    for child in active_children():
        os.kill(child.pid, STOP_SIGNAL)
    with engine().begin() as connection:
        devices.leave(connection, device_id())


@signals.task_failure.connect
def _hand_back(exception: BaseException | None = None, args: Any = (), **_: Any) -> None:
    """The child died in the middle of a batch: its jobs wait again at once, not when the lease has passed."""
    if isinstance(exception, WorkerLostError) and args:
        with engine().begin() as connection:
            batches.release(
                connection, int(args[0]), device_id=device_id(), reason="its worker process died", suspect=True
            )
