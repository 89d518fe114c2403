"""Trainings and kernels that were asked for happen: they are sent, sent again, and started again where a program died."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection, Engine

from farm.broker.queues import BUILD, BUILD_QUEUE, TRAIN, TRAIN_QUEUE
from farm.coordinator.rate_limits import Pace
from farm.coordinator.sending import send
from farm.db import kernels, trainings
from farm.db.states import KernelState, TrainingState
from farm.db.task_rows import MOST_STARTS
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks."""

SILENT_SECONDS = 60.0
"""A trainer or builder that was not heard of for this long has lost what it had. It speaks every few seconds."""


class Rows(Protocol):
    """The queries of such tasks: see `farm.db.task_rows`."""

    def take_back(self, connection: Connection, *, silent_after: float, most_starts: int) -> Mapping[int, StrEnum]: ...

    def unsent(self, connection: Connection, *, resend_after: float) -> list[int]: ...

    def mark_sent(self, connection: Connection, ids: Sequence[int]) -> None: ...


@dataclass
class Errands:
    """Dispatches the tasks of one kind of one farm. Any number of processes may, at the same time."""

    engine: Engine
    app: Celery
    settings: Settings
    rows: Rows
    task: str
    queue: str
    given_up: StrEnum  # the state of those that are not started again
    _pace: Pace = field(default_factory=lambda: Pace(LOOK_SECONDS), init=False)

    def tend(self) -> bool:
        """Takes back and sends what is to be, at most every `LOOK_SECONDS`. False where the broker does not answer."""
        if not self._pace.due():
            return True
        with self.engine.begin() as connection:
            taken = self.rows.take_back(connection, silent_after=SILENT_SECONDS, most_starts=MOST_STARTS)
            waiting = self.rows.unsent(connection, resend_after=self.settings.resend_after_seconds)
        for errand_id, state in taken.items():
            again = "it is given up" if state is self.given_up else "it is started again"
            log.warning("%s of %d: its program died or fell silent; %s", self.task, errand_id, again)
        sent = send(self.app, self.task, ((errand_id, self.queue) for errand_id in waiting))
        if sent:
            with self.engine.begin() as connection:
                self.rows.mark_sent(connection, sent)
        return len(sent) == len(waiting)


def trainings_of(engine: Engine, app: Celery, settings: Settings) -> Errands:
    """The farm's trainings."""
    return Errands(engine, app, settings, trainings, TRAIN, TRAIN_QUEUE, TrainingState.FAILED)


def builds_of(engine: Engine, app: Celery, settings: Settings) -> Errands:
    """The farm's kernels to be built."""
    return Errands(engine, app, settings, kernels, BUILD, BUILD_QUEUE, KernelState.FAILED)
