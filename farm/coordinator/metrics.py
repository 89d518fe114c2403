"""What Prometheus learns from a coordinator: its own turns, and the state of the farm from the one that leads.

The farm's state is read when it is asked for, by the thread that answers and over a connection of its own, so that a
turn never waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm.coordinator.estimates import Cause, read_farm_state, what_is_stuck
from farm.db import gauges
from farm.db.engine import DISPATCHING, make_engine
from farm.errors import first_line
from farm.metrics import PREFIX, Count, Duration, Metrics, PrometheusMetrics, serving
from farm.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import GaugeMetricFamily

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0
"""The farm's state is not read more often than this, however many ask."""

READ_SECONDS = 5.0
"""A reading that takes longer is given up."""

TURN = Duration(
    "coordinator_turn",
    "Time of one turn of the leading coordinator: repair, form, send, count.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
FORMED = Count("batches_formed", "Batches formed of jobs that waited.")
SENT = Count("batches_sent", "Batches sent to the broker for the first time.")
RESENT = Count("batches_resent", "Messages of batches sent again, because no worker had claimed the batch.")
REAPED = Count("batches_reaped", "Batches taken back because their lease passed.")
RECALLED = Count("batches_recalled", "Batches taken back because no live device serves their queue.")
FOLDED = Count("batches_folded", "Batches that ended and were added to the counters of their lanes.")
ERRORS = Count(
    "coordinator_service_errors", "Turns or readings that a service did not answer.", "service", ("database", "broker")
)
STEPS = (
    "reap", "let_go", "give_up", "schedule", "recall", "make_way", "form", "send", "trainings", "builds", "fold",
    "finish", "rounds", "learning", "health",
)  # fmt: skip
"""The steps of a turn, in their order: see `farm.coordinator.loop`."""

STEP_ERRORS = Count(
    "coordinator_step_errors", "Errors of the steps of a turn. The other steps run all the same.", "step", STEPS
)

COUNTS = (FORMED, SENT, RESENT, REAPED, RECALLED, FOLDED, ERRORS, STEP_ERRORS)

SLOW_SECONDS = 5.0
"""A step that has not ended for this long is named as one that fails is. With the next renewal of the term, which is 3 s later
at most, everybody can read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """A step of the turn that fails, or that has not ended for long. `since_s` is by the monotonic clock."""

    step: str
    error: str
    since_s: float


@dataclass
class Watch:
    """What a coordinator says of itself while it works. One thread says it, and others may ask."""

    metrics: Metrics = field(default_factory=Metrics)
    leading: bool = False
    term: int | None = None
    """The term in which it leads, or led last."""
    _failing: tuple[StepFailure, ...] = ()
    _in_hand: StepFailure | None = None

    def begin(self, step: str | None) -> None:
        """That step begins; None: it has ended."""
        self._in_hand = (
            None if step is None else StepFailure(step=step, error="it has not ended", since_s=time.monotonic())
        )

    def fails(self, failing: StepFailure) -> None:
        """The step failed just now, and has since then."""
        self.works_again(failing.step)
        self._failing += (failing,)

    def works_again(self, step: str) -> None:
        self._failing = tuple(one for one in self._failing if one.step != step)

    def failing(self) -> dict[str, tuple[str, float]]:
        """The error, and for how many seconds, of each step that fails or has not ended for `SLOW_SECONDS`."""
        now, in_hand = time.monotonic(), self._in_hand
        slow = [] if in_hand is None or now - in_hand.since_s < SLOW_SECONDS else [in_hand]
        return {one.step: (one.error, now - one.since_s) for one in (*slow, *self._failing)}

    def lead(self, term: int | None) -> None:
        """It leads from now on in that term, or no longer."""
        self.leading = term is not None
        self._failing = ()
        self.term = self.term if term is None else term


@contextmanager
def watching(settings: Settings, database_url: str) -> Iterator[Watch]:
    """A watch that Prometheus can scrape inside the block; without metrics, one that exports nothing.

    Raises `BadMetricsAddress` and `MetricsAddressUnusable`.
    """
    if settings.coordinator_metrics is None:
        yield Watch()
        return
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    watch = Watch(PrometheusMetrics(registry, COUNTS, (TURN,)))
    session = {**DISPATCHING, "statement_timeout": f"{READ_SECONDS:g}s"}
    engine = make_engine(database_url, application="farm coordinator metrics", pool_size=1, session=session)
    registry.register(FarmCollector(engine, watch, settings))
    try:
        with serving("FARM_COORDINATOR_METRICS", settings.coordinator_metrics, registry):
            yield watch
    finally:
        engine.dispose()


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the farm stands, and how many jobs of active campaigns are stuck for each cause."""

    farm: gauges.FarmGauges
    stuck: Mapping[Cause, int]


def _gauge(
    name: str, meaning: str, values: Mapping[tuple[str, ...], float], *, labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    """A gauge with the values of its labels. One without labels has the single key `()`."""
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(PREFIX + name, meaning, labels=labels)
    for key, value in values.items():
        gauge.add_metric(key, value)
    return gauge


def _gauges_of(reading: _Reading) -> Iterator[GaugeMetricFamily]:
    """The state of the farm. Every known label has a value, zeros too."""
    farm, holders, contended = reading.farm, reading.farm.lock_holders, reading.farm.contended
    by_type = ("device_type", "state")
    yield _gauge("jobs", "Jobs of the active campaigns, by state.", _by(farm.jobs), labels=("state",))
    yield _gauge(
        "jobs_stuck",
        "Jobs of the active campaigns that will not be measured as things stand, by cause.",
        {(cause,): reading.stuck.get(cause, 0) for cause in Cause},
        labels=("cause",),
    )
    yield _gauge(
        "devices",
        "Devices by type and state; live and silent ones would take work.",
        _by_two(farm.devices),
        labels=by_type,
    )
    yield _gauge("batches", "Unclaimed and leased batches.", _by_two(farm.batches), labels=by_type)
    yield _gauge(
        "oldest_unclaimed_batch_age_seconds",
        "Age of the oldest unclaimed batch; 0 without any.",
        {(): farm.oldest_unclaimed_s},
    )
    yield _gauge("kernels", "Kernels that are built ahead of time, by state.", _by(farm.kernels), labels=("state",))
    yield _gauge(
        "worker_versions",
        "Live devices by the version that their worker runs.",
        _by(farm.versions),
        labels=("version",),
    )
    yield _gauge(
        "jobs_unsupported",
        "Jobs that wait because a version of the workers cannot read them.",
        {(): farm.unsupported},
    )
    yield _gauge(
        "devices_contended",
        "Devices that a second farm-worker wanted to serve in the last ten minutes.",
        {(): sum(one.contended_at is not None for one in contended)},
    )
    yield _gauge(
        "rows_overlapped",
        "Rows that two workers measured on one device at the same time, and that are no results.",
        {(): sum(one.overlapped_rows for one in contended)},
    )
    yield _gauge("builders", "Builders with a recent heartbeat.", {(): farm.builders})
    yield _gauge(
        "lock_holders",
        "Sessions of Postgres that have held locks on tables of the farm for more than some seconds.",
        {(): len(holders)},
    )
    yield _gauge(
        "lock_held_seconds",
        "For how long the oldest of these sessions has held its locks; 0 where there is none.",
        {(): max((one.held_s or 0.0 for one in holders), default=0.0)},
    )


S = TypeVar("S", bound=str)


def _by(counts: Mapping[S, int]) -> dict[tuple[str, ...], float]:
    return {(name,): n for name, n in counts.items()}


def _by_two(counts: Mapping[str, Mapping[S, int]]) -> dict[tuple[str, ...], float]:
    return {(first, second): n for first, of_first in counts.items() for second, n in of_first.items()}


class FarmCollector:
    """Whether this coordinator leads, and where it does, how the farm stands."""

    def __init__(self, engine: Engine, watch: Watch, settings: Settings) -> None:
        self._engine = engine
        self._watch = watch
        self._settings = settings
        self._reading = threading.Lock()
        self._due = 0.0
        self._last: _Reading | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        leading = self._watch.leading
        yield _gauge("coordinator_leading", "1 where this coordinator leads, 0 where it waits to.", {(): leading})
        if self._watch.term is not None:
            meaning = "The term in which this coordinator leads, or led last; each leader has a higher one."
            yield _gauge("coordinator_term", meaning, {(): self._watch.term})
        if not leading:
            return
        failing = self._watch.failing()
        yield _gauge(
            "coordinator_step_failing_seconds",
            "For how long a step of the turn has failed, or has not ended; 0 where it works.",
            {(step,): failing[step][1] if step in failing else 0 for step in STEPS},
            labels=("step",),
        )
        if (reading := self._read()) is not None:
            yield from _gauges_of(reading)

    def _read(self) -> _Reading | None:
        """The farm as of the last few seconds; None where the database does not say."""
        if self._reading.acquire(blocking=False):  # while another thread reads, the last answer is good enough
            try:
                if time.monotonic() >= self._due:
                    self._last = self._read_now()
                    self._due = time.monotonic() + REFRESH_SECONDS
            finally:
                self._reading.release()
        return self._last

    def _read_now(self) -> _Reading | None:
        try:
            with self._engine.connect() as connection:
                found = gauges.read(connection, silent_after=self._settings.silent_after_seconds)
                stuck = Counter[Cause]()
                for one in what_is_stuck(read_farm_state(connection, self._settings)):
                    stuck[one.cause] += one.jobs
                return _Reading(found, stuck)
        except DBAPIError as error:
            log.warning("the farm's state could not be read: %s", first_line(error))
            self._watch.metrics.count(ERRORS, value="database")
            return None
