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

from farm.coordinator import exported
from farm.coordinator.estimates import Cause, read_farm_state, what_is_stuck
from farm.db import gauges
from farm.db.engine import DISPATCHING, make_engine
from farm.errors import first_line
from farm.metrics import PREFIX, VERSION, Gauge, Metrics, PrometheusMetrics, serving
from farm.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import GaugeMetricFamily

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0
"""The farm's state is not read more often than this, however many ask."""

READ_SECONDS = 5.0
"""A reading that takes longer is given up."""

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
    watch = Watch(PrometheusMetrics(registry, exported.COUNTS, (exported.TURN,)))
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


def _gauge(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    """A gauge with the values of its labels. One without labels has the single key `()`."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(PREFIX + gauge.name, gauge.help, labels=gauge.labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauges_of(reading: _Reading) -> Iterator[GaugeMetricFamily]:
    """The state of the farm. Every known label has a value, zeros too."""
    farm, holders, contended = reading.farm, reading.farm.lock_holders, reading.farm.contended
    yield _gauge(exported.JOBS, _by(farm.jobs))
    yield _gauge(exported.CAMPAIGN_JOBS, _by_two(farm.campaigns))
    yield _gauge(exported.STUCK, {(cause,): reading.stuck.get(cause, 0) for cause in Cause})
    yield _gauge(exported.DEVICES, _by_two(farm.devices))
    yield _gauge(exported.BATCHES, _by_two(farm.batches))
    yield _gauge(exported.OLDEST, {(): farm.oldest_unclaimed_s})
    yield _gauge(exported.KERNELS, _by(farm.kernels))
    yield _gauge(exported.VERSIONS, _by(farm.versions))
    yield _gauge(exported.UNSUPPORTED, {(): farm.unsupported})
    yield _gauge(exported.CONTENDED, {(): sum(one.contended_at is not None for one in contended)})
    yield _gauge(exported.OVERLAPPED, {(): sum(one.overlapped_rows for one in contended)})
    yield _gauge(exported.BUILDERS, {(): farm.builders})
    yield _gauge(exported.POWER, _of_devices(farm.sensors, "power_w"))
    yield _gauge(exported.POWER_LIMIT, _of_devices(farm.sensors, "power_limit_w"))
    yield _gauge(exported.SM_CLOCK, _of_devices(farm.sensors, "sm_clock_mhz"))
    yield _gauge(exported.TEMPERATURE, _of_devices(farm.sensors, "temperature_c"))
    yield _gauge(exported.DATABASE_SIZE, {(): farm.database.size_bytes})
    yield _gauge(exported.CONNECTIONS, {(): farm.database.connections})
    yield _gauge(exported.MAX_CONNECTIONS, {(): farm.database.max_connections})
    yield _gauge(exported.LOCK_HOLDERS, {(): len(holders)})
    yield _gauge(exported.LOCK_HELD, {(): max((one.held_s or 0.0 for one in holders), default=0.0)})


S = TypeVar("S", bound=str)


def _by(counts: Mapping[S, int]) -> dict[tuple[str, ...], float]:
    return {(name,): n for name, n in counts.items()}


def _by_two(counts: Mapping[str, Mapping[S, int]]) -> dict[tuple[str, ...], float]:
    return {(first, second): n for first, of_first in counts.items() for second, n in of_first.items()}


def _of_devices(sensors: Sequence[gauges.Sensors], field: str) -> dict[tuple[str, ...], float]:
    """A number of each device that has it."""
    values = {(one.device, one.device_type): getattr(one, field) for one in sensors}
    return {key: value for key, value in values.items() if value is not None}


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
        yield _gauge(exported.LEADING, {(): leading})
        yield _gauge(exported.METRICS_VERSION, {(): VERSION})
        if self._watch.term is not None:
            yield _gauge(exported.TERM, {(): self._watch.term})
        if not leading:
            return
        failing = self._watch.failing()
        seconds: dict[tuple[str, ...], float] = {
            (step,): failing[step][1] if step in failing else 0 for step in exported.STEPS
        }
        yield _gauge(exported.STEP_FAILING, seconds)
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
            self._watch.metrics.count(exported.ERRORS, value="database")
            return None
