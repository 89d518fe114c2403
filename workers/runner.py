"""Runs batches on a device: claims a batch, measures its jobs one by one, and lands the rows.

While the device measures a job, a thread prepares the next ones. Rows land before the next batch is claimed. So a device
holds one lease, one connection, and at most one job that may be the cause if its process dies.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm.db import batches, measurements, probation, sentinels
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.engine import Fault, FaultLog, fault_of
from farm.db.states import FailureKind
from farm.errors import (
    CanaryFailed,
    DevicePoisoned,
    FarmError,
    InvalidOnDevice,
    KernelMissing,
    KernelUnreachable,
    LeaseHeld,
    LeaseLost,
    first_line,
)
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH, Versions
from farm.measurement import Measurement, Source
from farm.metrics import Metrics
from farm.monitoring.worker_metrics import (
    BATCH,
    CLAIM,
    DATABASE_ERRORS,
    JOBS,
    LAND,
    LEASES_LOST,
    MARK,
    MEASURING,
    WINDOW,
)
from workers import spans
from workers.canary import RULES, SENTINEL_RULES, Sentinel, prove
from workers.devices import Device
from workers.failure_kinds import kind_of
from workers.preparation import AHEAD, Preparation
from workers.spans import BatchSpans

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_HUNG = 86
"""Exit status of a process that ended itself because a job outlived its time."""

EXIT_SENTINEL = 88
"""Exit status of a process in which the device's own sentinel hung, or made its context unusable."""

EXIT_TRIAL = 90
"""Exit status of a process in which a trial of the device hung."""

TRIAL_AFTER_FAILURES = 3
"""After this many failures in a row the device gets a trial (`farm.db.probation`), and each time their number has doubled."""

TRIAL_SECONDS = 60.0
"""How long a trial may take."""

LANDING_SECONDS = 30.0
"""How long a lease may be renewed beyond the longest job, to land the rows."""

CLAIM_PATIENCE_SECONDS = 10.0
"""How long to retry a claim while the database does not respond. The batch is sent again anyway."""

HELD_PATIENCE_SECONDS = 15.0
"""How long to retry while another session holds a lock that a mark or a landing needs. Then the batch is abandoned.

Such a session may be idle for hours. It blocks only the batches that need its rows, so the device can measure others.
"""

RETRY_SECONDS = 0.5
"""Time between two attempts while the database does not respond."""

UNREACHABLE_KERNELS = 3
"""After this many jobs of a batch whose kernels could not be fetched, the rest of the batch is handed back."""

UNREACHABLE_PAUSE_SECONDS = 5.0
"""Pause before the next batch in that case."""

SUSPICIOUS_FAILURES = 3
"""If this many jobs of a batch failed, and more than were measured, the device must measure its canary again."""

CORRUPTED_JOBS = 2
"""After this many jobs of a batch with corrupted results, the rest of the batch is handed back, for other devices."""


class Deadline:
    """Ends this process if a block takes longer than its time limit.

    A kernel that hangs cannot be interrupted from Python, and the process that holds the device is disposable. One
    thread watches all jobs, because starting a thread takes longer than a short job.
    """

    def __init__(self, end_process: Callable[[int], None] = os._exit, *, look_s: float = 0.25) -> None:
        self._end_process = end_process
        self._look_s = look_s
        self._watched: tuple[float, str, int, dict[str, int]] | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, seconds: float, what: str, *, status: int = EXIT_HUNG, **ids: int) -> Iterator[None]:
        """Ends the process with that exit status if the block takes longer."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)
            self._thread.start()
        self._watched = (time.monotonic() + seconds, what, status, ids)
        try:
            yield
        finally:
            self._watched = None

    def _watch(self) -> None:
        while True:
            time.sleep(self._look_s)
            watched = self._watched
            if watched is not None and time.monotonic() > watched[0]:
                _, what, status, ids = watched
                log.error("%s exceeded its time limit; its process is ended", what, extra=ids)
                self._end_process(status)
                return


@dataclass
class _Outcome:
    """The results of a batch on the device, before they are landed."""

    results: list[tuple[ClaimedJob, Measurement]] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    missing: dict[int, Binary] = field(default_factory=dict)  # kernels that jobs wait for, by job id
    unreachable: dict[int, KernelUnreachable] = field(default_factory=dict)  # by job id; no fault of theirs
    sentinel: tuple[Configuration, Measurement] | None = None
    poison: DevicePoisoned | None = None
    # Jobs that failed since the last measured one, and why the device is at fault.
    in_a_row: list[int] = field(default_factory=list)
    unfit: str | None = None

    @property
    def suspicious(self) -> bool:
        failed = self._failed_as(FailureKind.FAILED, FailureKind.CORRUPTED)
        return failed >= SUSPICIOUS_FAILURES and failed > len(self.results)

    @property
    def corrupts(self) -> bool:
        return self._failed_as(FailureKind.CORRUPTED) >= CORRUPTED_JOBS

    def _failed_as(self, *kinds: FailureKind) -> int:
        return sum(failure.kind in kinds for failure in self.failures.values())


class Runner:
    """Measures batches on one open device. Must be used from one thread, and holds no connection between two calls.

    Its sentinel is measured after every `sentinel_jobs` jobs; 0: never. It comes before the first job of a batch, when no
    job is named that could be blamed for it.

    `engine` should not be durable: one mark goes through it before each job, and must not cost what a short job takes.
    Landing waits for the disk all the same.

    Once `stopping` is set, the job in hand is finished, what was measured is landed, and the rest goes back.
    """

    def __init__(
        self,
        engine: Engine,
        device: Device,
        device_id: int,
        *,
        lease_seconds: float,
        stopping: threading.Event,
        deadline: Deadline | None = None,
        metrics: Metrics | None = None,
        sentinel_jobs: int = 0,
        versions: Versions = BUILT_WITH,
        session: int | None = None,
        batch_spans: BatchSpans | None = None,
    ) -> None:
        self._engine = engine
        self._marks = engine.execution_options(isolation_level="AUTOCOMMIT")  # one round trip
        self._device = device
        self._device_id = device_id
        self._lease_seconds = lease_seconds
        self._versions = versions
        self._session = session
        self._stopping = stopping
        self._deadline = deadline or Deadline()
        self._metrics = metrics or Metrics()
        self._spans = batch_spans or BatchSpans()
        self._sentinel = Sentinel(device, every_jobs=sentinel_jobs)
        self._faults = FaultLog(log)
        self._failures_in_a_row, self._next_trial = 0, TRIAL_AFTER_FAILURES
        self._preparation = Preparation(device)
        weakref.finalize(self, self._preparation.end)

    @property
    def at_sentinel(self) -> bool:
        """Whether the sentinel is what the device measured last: then a poisoned context is no job's fault."""
        return self._sentinel.in_hand

    def run_batch(self, batch_id: int) -> int:
        """Claims, measures and lands a batch; returns the number of rows landed.

        Returns 0 if another worker has the batch, or if the lease was lost on the way. Then nothing is written.
        Raises `DevicePoisoned` and `CanaryFailed` after landing what was measured before; the former after a lost lease too.
        Raises `LeaseHeld` if the device holds another batch, `SessionLost` if another worker serves it now, and `DBAPIError` if
        the database accepts no claim, mark or landing. Then the batch is handed back, and no job is blamed.
        """
        self._spans.begin()
        lease = self._claim(batch_id)
        if lease is None:
            log.debug("nothing to claim", extra={"batch_id": batch_id})
            return 0
        ids = {"batch_id": batch_id, "campaign_id": lease.campaign_id}
        outcome = _Outcome()
        try:
            with self._traced(lease, outcome), self._metrics.time(BATCH):
                self._measure(lease, outcome)
                self._land(lease, outcome)
        except LeaseLost as error:
            self._metrics.count(LEASES_LOST)
            log.warning("%s", error, extra=ids)
            if outcome.poison is not None:
                raise outcome.poison from None
            return 0
        except Exception as error:  # not raised by a device: a fault of the farm itself
            self._abandon(batch_id, error)
            raise
        self._metrics.count(JOBS, len(outcome.results), value="measured")
        for job_id, failure in (*lease.refused.items(), *outcome.failures.items()):
            self._metrics.count(JOBS, value=failure.kind.value)
            log.warning("%s: %s", failure.kind, failure.message, extra={"job_id": job_id, **ids})
        if outcome.missing:
            log.warning("%d jobs wait for kernels that are in no store", len(outcome.missing), extra=ids)
        if outcome.unreachable:
            log.warning("%s", next(iter(outcome.unreachable.values())), extra=ids)
            if outcome.poison is None:
                self._stopping.wait(UNREACHABLE_PAUSE_SECONDS)
        if outcome.corrupts:
            log.error("the device corrupts results: the rest of the batch goes back", extra=ids)
        if outcome.unfit is not None:
            log.error("the device is on probation: %s", outcome.unfit, extra={"device_id": self._device_id, **ids})
        log.info("landed %d of %d", len(outcome.results), len(lease.jobs) + len(lease.refused), extra=ids)
        if outcome.poison is not None:
            raise outcome.poison
        if outcome.suspicious:
            log.warning("most jobs of a batch failed: the device must prove itself", extra=ids)
            prove(self._device)
        return len(outcome.results)

    @contextmanager
    def _traced(self, lease: Lease, outcome: _Outcome) -> Iterator[None]:
        """Hands on the spans of a batch after the block, which measures and lands it."""
        try:
            yield
        except Exception as error:
            self._spans.send(lease, 0, outcome.failures, error)
            raise
        self._spans.send(lease, len(outcome.results), outcome.failures, None)

    def _claim(self, batch_id: int) -> Lease | None:
        def claim() -> Lease | None:
            with self._engine.begin() as connection:
                return batches.claim(
                    connection,
                    batch_id,
                    device_id=self._device_id,
                    lease_seconds=self._lease_seconds,
                    session=self._session,
                )

        with self._metrics.time(CLAIM), self._spans.step(spans.CLAIM):
            return self._patiently(claim, CLAIM_PATIENCE_SECONDS)

    def _abandon(self, batch_id: int, error: Exception) -> bool:
        """Hands the batch back, with one attempt. If it fails, the worker's parent process does it later.

        Returns whether the database accepted it.
        """
        reason = f"its worker could not go on: {first_line(getattr(error, 'orig', None) or error)}"
        try:
            with self._engine.begin() as connection:
                batches.abandon(connection, batch_id, device_id=self._device_id, reason=reason)
        except DBAPIError as refused:
            self._faults.fails(refused, "the batch is handed back later", batch_id=batch_id)
            return False
        return True

    def _measure(self, lease: Lease, outcome: _Outcome) -> None:
        if lease.jobs and not self._stopping.is_set() and self._sentinel.is_due(lease.campaign_id):
            self._measure_sentinel(lease, outcome)
        if outcome.poison is not None:
            return
        following = iter(lease.jobs[1:])
        for place, job in enumerate(lease.jobs):
            if self._stopping.is_set() or len(outcome.unreachable) >= UNREACHABLE_KERNELS or not self._mark(lease, job):
                break  # the rest of the batch goes back
            for later in islice(following, 1 if place else AHEAD):
                self._preparation.ask(later.configuration)
            if not self._measure_job(lease, job, outcome):
                break
            if not self._is_fit(lease, job, outcome):
                break  # the rest goes back, with what failed in a row
            if outcome.corrupts:
                break  # the rest goes back; the coordinator quarantines the device
        self._sentinel.count(len(outcome.results))

    def _measure_job(self, lease: Lease, job: ClaimedJob, outcome: _Outcome) -> bool:
        """Measures one job and records the outcome. False if the device cannot continue."""
        try:
            deadline = self._deadline.of(lease.rules.job_seconds, "a job", job_id=job.id)
            with deadline, self._metrics.time(MEASURING), self._spans.step(spans.JOB, job):
                row = self._device.measure(job.configuration, lease.rules)
            if row.source is not Source.RECORDED:  # a recording's window was another device's
                self._metrics.count(WINDOW, row.window_s)
            outcome.results.append((job, row))
        except DevicePoisoned as error:
            outcome.failures[job.id] = Failure(kind_of(error), str(error))
            outcome.poison = error
            return False
        except KernelMissing as error:
            outcome.missing[job.id] = error.binary
        except KernelUnreachable as error:
            outcome.unreachable[job.id] = error
        except FarmError as error:
            outcome.failures[job.id] = Failure(kind_of(error), str(error))
        except Exception as error:  # a defect of a device: the job fails, its neighbours are measured
            log.exception("the device raised", extra={"job_id": job.id, "batch_id": lease.batch_id})
            outcome.failures[job.id] = Failure(kind_of(error), f"{type(error).__name__}: {error}")
        return True

    def _is_fit(self, lease: Lease, job: ClaimedJob, outcome: _Outcome) -> bool:
        """Counts failures in a row. False if the device is at fault; then they do not count as attempts of their jobs."""
        if job.id not in outcome.failures:
            if job.id not in outcome.missing and job.id not in outcome.unreachable:
                self._failures_in_a_row, self._next_trial = 0, TRIAL_AFTER_FAILURES
                outcome.in_a_row.clear()
            return True
        if outcome.failures[job.id].kind is not FailureKind.FAILED:
            return True
        self._failures_in_a_row += 1
        outcome.in_a_row.append(job.id)
        if self._failures_in_a_row < self._next_trial or not self._mark(lease, job):
            return True
        why: str | None
        try:
            why = self.try_device(job.configuration)
        except DevicePoisoned as error:
            why, outcome.poison = str(error), error
        self._next_trial *= 2
        if why is None:
            return True
        outcome.unfit = f"{self._failures_in_a_row} jobs failed in a row, and a trial: {why}"
        for job_id in outcome.in_a_row:
            del outcome.failures[job_id]
        self._failures_in_a_row, self._next_trial = 0, TRIAL_AFTER_FAILURES
        return False

    def try_device(self, like: Configuration | None = None) -> str | None:
        """A trial: measures a configuration that another device of the type measured, or the canary.

        Returns why the device failed it; None if it passed. Raises `DevicePoisoned`. `like`: see `probation.known_good`.
        """

        def look() -> Configuration | None:
            with self._engine.begin() as connection:
                return probation.known_good(connection, self._device_id, like)

        known = self._patiently(look, CLAIM_PATIENCE_SECONDS)
        with self._deadline.of(TRIAL_SECONDS, "a trial", status=EXIT_TRIAL, device_id=self._device_id):
            if known is not None:
                try:
                    self._device.measure(known, RULES)
                except DevicePoisoned:
                    raise
                except (InvalidOnDevice, KernelMissing):
                    pass  # not a fault of the device
                except Exception as error:
                    why = str(error) if isinstance(error, FarmError) else f"{type(error).__name__}: {error}"
                    return f"{known}, which another device measured: {why}"
                else:
                    return None
            try:
                prove(self._device)
            except CanaryFailed as error:
                if isinstance(error.__cause__, DevicePoisoned):
                    raise error.__cause__ from error
                return str(error)
        return None

    def _measure_sentinel(self, lease: Lease, outcome: _Outcome) -> None:
        """Measures the sentinel under the lease of the claim, which can be renewed for longer than the sentinel may take."""
        ids = {"batch_id": lease.batch_id, "campaign_id": lease.campaign_id}
        try:
            with self._deadline.of(SENTINEL_RULES.job_seconds, "the sentinel", status=EXIT_SENTINEL, **ids):
                outcome.sentinel = self._sentinel.measure(lease.campaign_id)
        except DevicePoisoned as error:
            log.warning("the sentinel made the device's context unusable: %s", error, extra=ids)
            outcome.poison = error
        if outcome.sentinel is not None:
            self._metrics.count(WINDOW, outcome.sentinel[1].window_s)

    def _mark(self, lease: Lease, job: ClaimedJob) -> bool:
        """Before each job: renews the lease, records the job as the suspect if this process dies, and checks that it is not stopped."""
        busy = lease.rules.job_seconds + LANDING_SECONDS

        def mark() -> bool:
            with self._marks.connect() as connection:
                return batches.mark(connection, lease, job, lease_seconds=self._lease_seconds, busy_seconds=busy)

        with self._metrics.time(MARK):
            return self._patiently(mark, busy, batch_id=lease.batch_id)

    def _land(self, lease: Lease, outcome: _Outcome) -> None:
        def land() -> None:
            with self._engine.begin() as connection:
                batches.land(
                    connection, lease, outcome.results, outcome.failures, outcome.missing, versions=self._versions
                )
                if outcome.sentinel is not None:
                    sentinels.land(connection, lease, *outcome.sentinel)
                if outcome.unfit is not None:
                    probation.begin(connection, self._device_id, outcome.unfit, tried=True)

        patience_s = lease.rules.job_seconds + LANDING_SECONDS
        with self._metrics.time(LAND), self._spans.step(spans.LAND):
            try:
                self._patiently(land, patience_s, batch_id=lease.batch_id)
            except measurements.UNSTORABLE:
                self._patiently(lambda: self._set_aside_refused(lease, outcome), patience_s, batch_id=lease.batch_id)
                self._patiently(land, patience_s, batch_id=lease.batch_id)

    def _set_aside_refused(self, lease: Lease, outcome: _Outcome) -> None:
        """Turns rows that cannot be stored into failures of their jobs, without effect on other jobs."""
        with self._engine.connect() as connection:
            refused = batches.refusals(connection, lease, outcome.results)
        outcome.results = [(job, row) for job, row in outcome.results if job.id not in refused]
        outcome.failures |= refused

    def _patiently(self, action: Callable[[], T], seconds: float, *, batch_id: int | None = None) -> T:
        """Retries the action for up to `seconds` while the database does not accept it, so that no row is lost.

        With `batch_id`, a batch that this device holds, it stops earlier if another session has held a lock (`Fault.HELD`)
        for `HELD_PATIENCE_SECONDS` without a break: it abandons the batch and raises. If the batch's own row is locked, that
        fails and it retries, because the device may have no second lease.

        It also retries after errors of the farm itself, such as a missing privilege, which an administrator may grant. Only an
        error that a row causes is raised at once. Running the action twice is harmless: if the first time was committed after
        all, the second time finds the lease gone.
        """
        end = time.monotonic() + seconds
        held_since: float | None = None
        while True:
            began = time.monotonic()
            try:
                done = action()
            except LeaseHeld:  # the parent process hands back batches that the device holds and does not measure
                held_since = None
                if time.monotonic() > end or self._stopping.is_set():
                    raise
            except DBAPIError as error:
                fault, now = fault_of(error), time.monotonic()
                if fault is not Fault.HELD:
                    held_since = None
                elif held_since is None:
                    held_since = began
                if fault is Fault.ROW or now > end:
                    raise
                held_too_long = held_since is not None and now - held_since > HELD_PATIENCE_SECONDS
                if batch_id is not None and held_too_long and self._abandon(batch_id, error):
                    raise
                self._metrics.count(DATABASE_ERRORS)
                self._faults.fails(error, "retrying", device_id=self._device_id)
            else:
                self._faults.works()
                return done
            time.sleep(RETRY_SECONDS)
