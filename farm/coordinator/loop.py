"""The coordinator's turns: form, send, repair, finish; one leader at a time."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm.coordinator.costs import CostBook
from farm.coordinator.dispatch import MOST_IN_A_TURN, form_batches, make_way, read_schedule, send_batches
from farm.coordinator.errands import Errands, builds_of, trainings_of
from farm.coordinator.health import quarantine_refuted
from farm.coordinator.leading import Lead, leadership
from farm.coordinator.learning import Learning
from farm.coordinator.metrics import ERRORS, FOLDED, FORMED, REAPED, RECALLED, RESENT, SENT, TURN, Watch
from farm.coordinator.pace import Pace
from farm.coordinator.rounds import Rounds
from farm.db import batches, campaigns
from farm.errors import NotLeading, first_line
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.25
BUSY_SECONDS = 0.05
HEALTH_SECONDS = 5.0


@dataclass
class Coordinator:
    """Dispatches for one farm. Each step of a turn is a transaction of its own: a crash between two leaves what the
    next turn, of this coordinator or another, repairs.
    """

    engine: Engine
    app: Celery
    settings: Settings
    watch: Watch = field(default_factory=Watch)
    costs: CostBook = field(default_factory=CostBook)
    _trainings: Errands = field(init=False)
    _builds: Errands = field(init=False)
    _rounds: Rounds = field(init=False)
    _learning: Learning = field(init=False)
    _health: Pace = field(default_factory=lambda: Pace(HEALTH_SECONDS), init=False)

    def __post_init__(self) -> None:
        self._trainings = trainings_of(self.engine, self.app, self.settings)
        self._builds = builds_of(self.engine, self.app, self.settings)
        self._rounds = Rounds(self.engine)
        self._learning = Learning(self.engine, self.settings)

    def turn(self) -> int:
        """One turn. Returns the number of batches that were formed."""
        count = self.watch.metrics.count
        with self.engine.begin() as connection:
            reaped = batches.reap(connection)
        count(REAPED, len(reaped))
        for batch_id in reaped:
            log.warning("a lease passed without being renewed", extra={"batch_id": batch_id})
        with self.engine.begin() as connection:
            let_go = batches.let_go(connection)
        if let_go:
            log.info("%d jobs no longer wait for kernels", let_go)
        with self.engine.begin() as connection:
            if given_up := batches.give_up(connection):
                log.info("%d jobs were refused by every device that could have them", given_up)
        schedule = read_schedule(self.engine, self.settings)
        with self.engine.begin() as connection:
            recalled = batches.recall(connection, served=schedule.queues)
        count(RECALLED, len(recalled))
        if recalled:
            log.warning("%d batches waited for devices that are gone, and were taken back", len(recalled))
        if taken_back := make_way(self.engine, schedule):
            log.info("%d batches were taken back for campaigns of a higher priority", len(taken_back))
        formed = form_batches(self.engine, schedule, self.costs, self.settings)
        count(FORMED, formed)
        sent = send_batches(self.engine, self.app, self.settings)
        count(SENT, sent.first)
        count(RESENT, sent.again)
        if not all([self._trainings.tend(), self._builds.tend(), sent.whole]):
            count(ERRORS, value="broker")
        with self.engine.begin() as connection:
            folded = batches.fold(connection, weights=self.settings.weights_of_owners)
            finished = campaigns.finish(connection)
        count(FOLDED, folded)
        for campaign_id in finished:
            log.info("campaign finished", extra={"campaign_id": campaign_id})
        self._rounds.tend()
        self._learning.tend()
        if self._health.due():
            quarantine_refuted(self.engine, self.settings)
            self.costs.forget_old()
        return formed


def run(engine: Engine, app: Celery, settings: Settings, stop: threading.Event, watch: Watch | None = None) -> None:
    """Leads, or waits to, until `stop`. A database that goes away is waited for; another coordinator may lead meanwhile."""
    watch = watch or Watch()
    costs = CostBook()
    while not stop.is_set():
        try:
            with leadership(engine, stop, watch) as lead:
                if lead is not None:
                    _lead(lead, Coordinator(lead.engine, app, settings, watch, costs), stop)
        except NotLeading:
            continue  # it has been logged
        except DBAPIError as error:
            _wait_for_the_database(error, watch, stop)


def _lead(lead: Lead, coordinator: Coordinator, stop: threading.Event) -> None:
    """Turns, until `stop`. Raises `NotLeading`."""
    watch = coordinator.watch
    while not stop.is_set():
        lead.check()
        try:
            with watch.metrics.time(TURN):
                formed = coordinator.turn()
        except DBAPIError as error:
            lead.check()
            _wait_for_the_database(error, watch, stop)
            continue
        if formed < MOST_IN_A_TURN:
            stop.wait(BUSY_SECONDS if formed else IDLE_SECONDS)


def _wait_for_the_database(error: DBAPIError, watch: Watch, stop: threading.Event) -> None:
    watch.metrics.count(ERRORS, value="database")
    log.warning("the database does not answer (%s); trying again", first_line(error.orig))
    stop.wait(1.0)
