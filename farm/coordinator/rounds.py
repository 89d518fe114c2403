"""Decides the next rounds of searches when a short round has no open job."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sqlalchemy import Engine

from farm.coordinator.rate_limits import RateLimit
from farm.coordinator.steps import OneByOne
from farm.db import learning, rounds
from farm.db.engine import take_time

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Time between two checks."""


@dataclass
class Rounds:
    """Decides rounds of one farm. Any number of processes may run it at the same time."""

    engine: Engine
    _rate_limit: RateLimit = field(default_factory=lambda: RateLimit(CHECK_SECONDS), init=False)

    def reconcile(self) -> None:
        """Decides due rounds, at most every `CHECK_SECONDS`, each in its own transaction."""
        if not self._rate_limit.due():
            return
        some = OneByOne()
        with some.each(), self.engine.begin() as connection:
            learning.request(connection)
        with some.each(), self.engine.begin() as connection:
            for campaign_id, error in learning.abandon(connection).items():
                log.warning("a learning round could not be decided: %s", error, extra={"campaign_id": campaign_id})
        with self.engine.connect() as connection:
            due = rounds.due(connection)
        for lane_id in due:
            with some.each():
                self._decide(lane_id)
        some.end()

    def _decide(self, lane_id: int) -> None:
        with self.engine.begin() as connection:
            take_time(connection)  # it stores jobs, perhaps many
            decision = rounds.decide(connection, lane_id)
        if decision is not None:
            what = f"round {decision.round} of a search is over; {decision.jobs:,} jobs of later rounds follow"
            log.info(what, extra={"campaign_id": decision.campaign_id})
