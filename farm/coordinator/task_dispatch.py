"""Dispatches trainings and builds: sends them, sends them again, and takes them back when a program died."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection, Engine

from farm.broker.queues import BUILD, BUILD_QUEUE, TRAIN, TRAIN_QUEUE
from farm.coordinator.rate_limits import RateLimit
from farm.coordinator.sending import send
from farm.db import kernels, trainings
from farm.db.states import KernelState, TrainingState
from farm.db.task_rows import MAX_ATTEMPTS
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Time between two checks."""

SILENT_SECONDS = 60.0
"""A trainer or builder without a heartbeat for this long loses its task. Heartbeats come every few seconds."""


class TaskQueries(Protocol):
    """The queries of such tasks: see `farm.db.task_rows`."""

    def take_back(self, connection: Connection, *, silent_after: float, max_attempts: int) -> Mapping[int, StrEnum]: ...

    def unsent(self, connection: Connection, *, resend_after: float) -> list[int]: ...

    def mark_sent(self, connection: Connection, ids: Sequence[int]) -> None: ...


@dataclass
class TaskDispatcher:
    """Dispatches the tasks of one kind of one farm. Any number of processes may, at the same time."""

    engine: Engine
    app: Celery
    settings: Settings
    rows: TaskQueries
    task: str
    queue: str
    given_up: StrEnum  # the state of those that are not started again
    _rate_limit: RateLimit = field(default_factory=lambda: RateLimit(CHECK_SECONDS), init=False)

    def reconcile(self) -> bool:
        """Takes back and sends tasks, at most every `CHECK_SECONDS`. Returns False if the broker does not answer."""
        if not self._rate_limit.due():
            return True
        with self.engine.begin() as connection:
            taken = self.rows.take_back(connection, silent_after=SILENT_SECONDS, max_attempts=MAX_ATTEMPTS)
            waiting = self.rows.unsent(connection, resend_after=self.settings.resend_after_seconds)
        for task_id, state in taken.items():
            again = "it is given up" if state is self.given_up else "it is started again"
            log.warning("%s of %d: its program died or fell silent; %s", self.task, task_id, again)
        sent = send(self.app, self.task, ((task_id, self.queue) for task_id in waiting))
        if sent:
            with self.engine.begin() as connection:
                self.rows.mark_sent(connection, sent)
        return len(sent) == len(waiting)


def trainings_of(engine: Engine, app: Celery, settings: Settings) -> TaskDispatcher:
    """The farm's trainings."""
    return TaskDispatcher(engine, app, settings, trainings, TRAIN, TRAIN_QUEUE, TrainingState.FAILED)


def builds_of(engine: Engine, app: Celery, settings: Settings) -> TaskDispatcher:
    """The farm's kernels to be built."""
    return TaskDispatcher(engine, app, settings, kernels, BUILD, BUILD_QUEUE, KernelState.FAILED)
