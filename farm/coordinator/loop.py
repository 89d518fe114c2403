"""The coordinator's turns: form, send, repair, finish; one leader at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm.coordinator.dispatch import MAX_BATCHES_PER_TURN, form_batches, make_way, read_schedule, send_batches
from farm.coordinator.exported import ERRORS, FOLDED, FORMED, REAPED, RECALLED, RESENT, SENT, STEPS, TURN
from farm.coordinator.job_costs import CostBook
from farm.coordinator.leading import Lead, leadership
from farm.coordinator.metrics import StepFailure, Watch
from farm.coordinator.quarantine import CorruptionWatch, quarantine_refuted, send_trials
from farm.coordinator.rate_limits import RateLimit
from farm.coordinator.retraining import Retraining
from farm.coordinator.rounds import Rounds
from farm.coordinator.schedule import Schedule
from farm.coordinator.sending import refusal
from farm.coordinator.steps import Steps
from farm.coordinator.task_dispatch import TaskDispatcher, builds_of, trainings_of
from farm.db import batches, campaigns, worker_logins
from farm.errors import NotLeading, first_line
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.25
BUSY_SECONDS = 0.05
HEALTH_SECONDS = 5.0


@dataclass
class Outage:
    """When the database was last seen to be away: workers could not renew their leases then."""

    clock: Callable[[], float] = time.monotonic
    _seen_s: float | None = field(default=None, init=False)

    def seen(self) -> None:
        self._seen_s = self.clock()

    def within(self, seconds: float) -> bool:
        """Whether it was away in the last so many seconds."""
        return self._seen_s is not None and self.clock() - self._seen_s < seconds


@dataclass
class Coordinator:
    """Dispatches for one farm. Each step of a turn has transactions of its own: a crash between two leaves what the
    next turn, of this coordinator or another, repairs.
    """

    engine: Engine
    app: Celery
    settings: Settings
    watch: Watch = field(default_factory=Watch)
    costs: CostBook = field(default_factory=CostBook)
    outage: Outage = field(default_factory=Outage)
    _trainings: TaskDispatcher = field(init=False)
    _builds: TaskDispatcher = field(init=False)
    _rounds: Rounds = field(init=False)
    _learning: Retraining = field(init=False)
    _corruption: CorruptionWatch = field(init=False)
    _health: RateLimit = field(default_factory=lambda: RateLimit(HEALTH_SECONDS), init=False)
    _steps: Steps = field(init=False)
    _schedule: Schedule | None = field(default=None, init=False)
    _formed: int = field(default=0, init=False)
    _broker_answers: bool = field(default=True, init=False)
    _refused_since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._trainings = trainings_of(self.engine, self.app, self.settings)
        self._builds = builds_of(self.engine, self.app, self.settings)
        self._rounds = Rounds(self.engine)
        self._learning = Retraining(self.engine, self.settings)
        self._corruption = CorruptionWatch(self.engine, self.settings)
        self._steps = Steps(self.watch)

    def turn(self) -> int:
        """One turn. Returns the number of batches that were formed.

        A step that fails keeps no other from running. Raises `NotLeading`, and `DBAPIError` where the database is out of
        reach.
        """
        self._schedule, self._formed, self._broker_answers = None, 0, True
        actions: dict[str, Callable[[], object]] = {
            "reap": self._reap,
            "let_go": self._let_go,
            "give_up": self._give_up,
            "schedule": self._read_schedule,
            "recall": self._recall,
            "make_way": self._make_way,
            "form": self._form,
            "send": self._send,
            "trainings": lambda: self._note(self._trainings.reconcile()),
            "builds": lambda: self._note(self._builds.reconcile()),
            "fold": self._fold,
            "finish": self._finish,
            "rounds": self._rounds.reconcile,
            "learning": self._learning.reconcile,
            "health": self._look_after_devices,
        }
        for name in STEPS:
            self._steps.run(name, actions[name])
        if not self._broker_answers:
            self.watch.metrics.count(ERRORS, value="broker")
        return self._formed

    def _reap(self) -> None:
        away = self.outage.within(self.settings.lease_seconds)
        with self.engine.begin() as connection:
            reaped = batches.reap(connection, suspect=not away)
        self.watch.metrics.count(REAPED, len(reaped))
        for batch_id in reaped:
            log.warning("a lease passed without being renewed", extra={"batch_id": batch_id})

    def _let_go(self) -> None:
        with self.engine.begin() as connection:
            let_go = batches.release_waiting(connection)
        if let_go:
            log.info("%d jobs no longer wait for kernels", let_go)

    def _give_up(self) -> None:
        with self.engine.begin() as connection:
            given_up = batches.give_up(connection)
        if given_up:
            log.info("%d jobs were refused by every device that could have them", given_up)

    def _read_schedule(self) -> None:
        self._schedule = read_schedule(self.engine, self.settings)

    def _recall(self) -> None:
        if self._schedule is None:
            return
        with self.engine.begin() as connection:
            recalled = batches.recall(connection, served=self._schedule.queues)
        self.watch.metrics.count(RECALLED, len(recalled))
        if recalled:
            log.warning("%d batches waited for devices that are gone, and were taken back", len(recalled))

    def _make_way(self) -> None:
        if self._schedule is not None and (taken_back := make_way(self.engine, self._schedule)):
            log.info("%d batches were taken back for campaigns of a higher priority", len(taken_back))

    def _form(self) -> None:
        if self._schedule is None:
            return
        form_batches(self.engine, self._schedule, self.costs, self.settings, count=self._count_formed)

    def _count_formed(self, formed: int) -> None:
        self._formed += formed
        self.watch.metrics.count(FORMED, formed)

    def _send(self) -> None:
        sent = send_batches(self.engine, self.app, self.settings)
        self.watch.metrics.count(SENT, sent.first)
        self.watch.metrics.count(RESENT, sent.again)
        self._note(sent.whole)
        self._report_refusal(refused=not sent.whole)

    def _report_refusal(self, *, refused: bool) -> None:
        """Reports the step `send` as failing while the broker takes no batches. `send` in `sending` logs it once."""
        if refused:
            if self._refused_since_s is None:
                self._refused_since_s = time.monotonic()
            why = f"the broker takes no messages ({refusal(self.app)})"
            self.watch.fails(StepFailure(step="send", error=why, since_s=self._refused_since_s))
        elif self._refused_since_s is not None:
            self._refused_since_s = None
            self.watch.works_again("send")

    def _note(self, broker_answers: bool) -> None:
        self._broker_answers &= broker_answers

    def _fold(self) -> None:
        with self.engine.begin() as connection:
            folded = batches.fold(connection, weights=self.settings.weights_of_owners)
        self.watch.metrics.count(FOLDED, folded)

    def _finish(self) -> None:
        with self.engine.begin() as connection:
            finished = campaigns.finish(connection)
        for campaign_id in finished:
            log.info("campaign finished", extra={"campaign_id": campaign_id})

    def _look_after_devices(self) -> None:
        if self._health.due():
            self.costs.forget_old()
            quarantine_refuted(self.engine, self.settings)
            self._corruption.quarantine()
            send_trials(self.engine, self.app, self.settings)
            with self.engine.begin() as connection:
                logins = worker_logins.end_long_transactions(connection)
            for login in logins:
                log.warning(
                    "a session of the login %s was ended: its transaction went on for minutes, or it had an advisory lock",
                    login,
                )
            with self.engine.begin() as connection:
                ended = batches.end_exhausted(connection)
            if ended:
                log.info("%d jobs failed on one device, and no other is expected that may try them", ended)


def run(engine: Engine, app: Celery, settings: Settings, stop: threading.Event, watch: Watch | None = None) -> None:
    """Leads, or waits to, until `stop`. A database that goes away is waited for; another coordinator may lead meanwhile."""
    watch = watch or Watch()
    costs, outage = CostBook(), Outage()
    while not stop.is_set():
        try:
            with leadership(engine, stop, watch) as lead:
                if lead is not None:
                    _lead(lead, Coordinator(lead.engine, app, settings, watch, costs, outage), stop)
        except NotLeading:
            continue  # it has been logged
        except DBAPIError as error:
            _wait_for_the_database(error, watch, outage, stop)


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
            _wait_for_the_database(error, watch, coordinator.outage, stop)
            continue
        if formed < MAX_BATCHES_PER_TURN:
            stop.wait(BUSY_SECONDS if formed else IDLE_SECONDS)


def _wait_for_the_database(error: DBAPIError, watch: Watch, outage: Outage, stop: threading.Event) -> None:
    outage.seen()
    watch.metrics.count(ERRORS, value="database")
    log.warning("the database does not answer (%s); trying again", first_line(error.orig))
    stop.wait(1.0)
