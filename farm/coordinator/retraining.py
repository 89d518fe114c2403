"""Models are made again by themselves: when campaigns ended, and when many rows have landed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sqlalchemy import Engine

from farm.coordinator.rate_limits import RateLimit
from farm.db import trainings
from farm.settings import Settings

log = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
"""Between two looks. A training takes longer."""

WHILE_RUNNING = 10
"""How many times as many rows it takes where no campaign ended."""


@dataclass
class Retraining:
    """Asks for trainings. One process at a time, the leading coordinator: two would ask twice."""

    engine: Engine
    settings: Settings
    _rate_limit: RateLimit = field(default_factory=lambda: RateLimit(CHECK_SECONDS), init=False)

    def reconcile(self) -> None:
        """Asks for those that are due, at most every `CHECK_SECONDS`."""
        if not self.settings.train_new_rows or not self._rate_limit.due():
            return
        enough = self.settings.train_new_rows
        with self.engine.begin() as connection:
            due = trainings.due(connection, of_ended=enough, whatever_runs=WHILE_RUNNING * enough)
            for device_type in due:
                trainings.request(connection, device_type=device_type)
        for device_type, rows in due.items():
            log.info("a model for %s is asked for: %d rows since the last", device_type, rows)
