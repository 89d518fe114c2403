"""The process that measures, as Celery's parent starts it: it imports what measuring needs with its first batch.

Until then it holds half the memory. What it does is in `workers.tasks`.
"""

from __future__ import annotations

import signal
from functools import cache
from types import ModuleType
from typing import Any

from celery import shared_task, signals

from farm.broker.queues import MEASURE_BATCH, TRY_DEVICE
from farm.services.process_groups import end_with_parent
from workers.stopping import STOP_SIGNAL, stopping


@shared_task(name=MEASURE_BATCH)
def measure_batch(batch_id: int) -> None:
    """Measures the batch of that id (see `workers.tasks`)."""
    _tasks().measure_batch(batch_id)


@shared_task(name=TRY_DEVICE)
def try_device(device_id: int) -> None:
    """Gives the device a trial (see `workers.tasks`)."""
    _tasks().try_device(device_id)


@cache
def _tasks() -> ModuleType:
    from farm.logs import set_up_logging
    from farm.settings import settings
    from workers import tasks

    set_up_logging(settings(), "worker")
    return tasks


@signals.setup_logging.connect
def _logging(**_: Any) -> None:
    """Keeps Celery from setting up the logging: each of the two processes does, the child with its first batch."""


@signals.worker_process_init.connect
def _set_up(**_: Any) -> None:
    end_with_parent(signal.SIGKILL)
    signal.signal(STOP_SIGNAL, lambda *_: stopping.set())
