"""Trainings that were asked for happen: they are sent, sent again, and started again where their trainer died."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from celery import Celery
from sqlalchemy import Engine

from farm.broker import TRAIN, TRAIN_QUEUE
from farm.coordinator.sending import send
from farm.db import trainings
from farm.db.tables import TrainingState
from farm.settings import Settings

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the trainings."""

SILENT_SECONDS = 60.0
"""A trainer that was not heard of for this long has lost its training. It speaks every few seconds."""

MOST_STARTS = 3
"""A training whose trainer died this often is not started again: it may be what kills them."""


@dataclass
class Trainings:
    """Looks after the trainings of one farm. Any number of processes may, at the same time."""

    engine: Engine
    app: Celery
    settings: Settings
    _due: float = field(default=0.0, init=False)

    def tend(self) -> bool:
        """Takes back and sends what is to be, at most every `LOOK_SECONDS`. False where the broker does not answer."""
        if time.monotonic() < self._due:
            return True
        self._due = time.monotonic() + LOOK_SECONDS
        with self.engine.begin() as connection:
            taken = trainings.take_back(connection, silent_after=SILENT_SECONDS, most_starts=MOST_STARTS)
            waiting = trainings.unsent(connection, resend_after=self.settings.resend_after_seconds)
        for training_id, state in taken.items():
            again = "it is started again" if state is TrainingState.REQUESTED else "it is given up"
            log.warning("a trainer died or fell silent while training; %s", again, extra={"training_id": training_id})
        sent = send(self.app, TRAIN, ((training_id, TRAIN_QUEUE) for training_id in waiting))
        if sent:
            with self.engine.begin() as connection:
                trainings.mark_sent(connection, sent)
        return len(sent) == len(waiting)
