"""Automatic trainings: when campaigns ended, and when many rows have landed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sqlalchemy import Engine

from farm.coordinator.rate_limits import RateLimit
from farm.db import trainings
from farm.settings import Settings

log = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
"""Time between two checks. A training takes longer."""

WHILE_RUNNING = 10
"""Factor of rows that are needed if no campaign has ended."""


@dataclass
class Retraining:
    """Requests trainings. Only the leading coordinator runs it: two would request twice."""

    engine: Engine
    settings: Settings
    _rate_limit: RateLimit = field(default_factory=lambda: RateLimit(CHECK_SECONDS), init=False)

    def reconcile(self) -> None:
        """Requests due trainings, at most every `CHECK_SECONDS`."""
        if not self.settings.train_new_rows or not self._rate_limit.due():
            return
        enough = self.settings.train_new_rows
        with self.engine.begin() as connection:
            due = trainings.due(connection, of_ended=enough, whatever_runs=WHILE_RUNNING * enough)
            for device_type in due:
                trainings.request(connection, device_type=device_type)
        for device_type, rows in due.items():
            log.info("a training for %s is requested: %d rows since the last", device_type, rows)
