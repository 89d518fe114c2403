"""What a worker does with a batch: claim it, measure job by job, land the rows."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from farm.db import batches
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.errors import DevicePoisoned, FarmError, InvalidOnDevice, LeaseLost
from farm.measurement import Measurement
from workers.devices import Device

log = logging.getLogger(__name__)

EXIT_HUNG = 86
"""Exit status of a process that ended itself because a job outlived its time."""

LANDING_SECONDS = 30.0
"""What a lease allows beyond the longest job, to land the rows."""


class Deadline:
    """Ends this process when a job takes longer than it may.

    A kernel that hangs cannot be interrupted from Python, and the process that holds the device is disposable. One
    thread watches all jobs: starting a thread for each would cost more than a short job.
    """

    def __init__(self, end_process: Callable[[], None] = lambda: os._exit(EXIT_HUNG), *, look_s: float = 0.25) -> None:
        self._end_process = end_process
        self._look_s = look_s
        self._watched: tuple[float, ClaimedJob] | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, seconds: float, job: ClaimedJob) -> Iterator[None]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)
            self._thread.start()
        self._watched = (time.monotonic() + seconds, job)
        try:
            yield
        finally:
            self._watched = None

    def _watch(self) -> None:
        while True:
            time.sleep(self._look_s)
            watched = self._watched
            if watched is not None and time.monotonic() > watched[0]:
                log.error("a job outlived its time and is ended with its process", extra={"job_id": watched[1].id})
                self._end_process()
                return


class Runner:
    """Measures batches on one open device. Must be used from one thread.

    `hasty` is an engine whose commits do not wait for the disk: marks go through it, one before each job, and must not
    cost what a short job takes.

    Once `stopping` is set, the job in hand is finished, what was measured is landed, and the rest goes back.
    """

    def __init__(
        self,
        engine: Engine,
        hasty: Engine,
        device: Device,
        device_id: int,
        *,
        lease_seconds: float,
        stopping: threading.Event,
    ) -> None:
        self._engine = engine
        self._hasty = hasty
        self._marks: Connection | None = None
        self._device = device
        self._device_id = device_id
        self._lease_seconds = lease_seconds
        self._stopping = stopping
        self._deadline = Deadline()

    def run_batch(self, batch_id: int) -> int:
        """Claims, measures and lands a batch; returns the number of rows landed.

        0 where another worker has the batch, or where the lease was lost on the way: then nothing is written.
        Raises `DevicePoisoned` after landing what was measured before.
        """
        with self._engine.begin() as connection:
            lease = batches.claim(connection, batch_id, device_id=self._device_id, lease_seconds=self._lease_seconds)
        if lease is None:
            log.debug("nothing to claim", extra={"batch_id": batch_id})
            return 0
        results: list[tuple[ClaimedJob, Measurement]] = []
        failures: dict[int, Failure] = {}
        poison: DevicePoisoned | None = None
        try:
            for job in lease.jobs:
                if self._stopping.is_set():
                    break  # the rest of the batch goes back
                self._renew(lease, job)
                try:
                    with self._deadline.of(lease.rules.job_seconds, job):
                        results.append((job, self._device.measure(job.configuration, lease.rules)))
                except DevicePoisoned as error:
                    failures[job.id] = Failure("killed", str(error))
                    poison = error
                    break
                except InvalidOnDevice as error:
                    failures[job.id] = Failure("invalid", str(error))
                except FarmError as error:
                    failures[job.id] = Failure("failed", str(error))
                except Exception as error:  # a defect of a device: the job fails, its neighbours are measured
                    log.exception("the device raised", extra={"job_id": job.id, "batch_id": batch_id})
                    failures[job.id] = Failure("failed", f"{type(error).__name__}: {error}")
            with self._engine.begin() as connection:
                batches.land(connection, lease, results, failures)
        except LeaseLost as error:
            log.warning("%s", error, extra={"batch_id": batch_id, "campaign_id": lease.campaign_id})
            return 0
        for job_id, failure in failures.items():
            log.warning("%s: %s", failure.kind, failure.message, extra={"job_id": job_id, "batch_id": batch_id})
        log.info(
            "landed %d of %d",
            len(results),
            len(lease.jobs),
            extra={"batch_id": batch_id, "campaign_id": lease.campaign_id},
        )
        if poison is not None:
            raise poison
        return len(results)

    def _renew(self, lease: Lease, job: ClaimedJob) -> None:
        """Before each job: the lease lasts for the job and the landing, and the job is the suspect if we die."""
        seconds = max(self._lease_seconds, lease.rules.job_seconds + LANDING_SECONDS)
        if self._marks is None:
            self._marks = self._hasty.connect()
        try:
            batches.mark(self._marks, lease, job, lease_seconds=seconds)
        except DBAPIError:
            self.close()
            raise

    def close(self) -> None:
        """Gives back the connection that marks go through; the next batch makes another."""
        if self._marks is not None:
            self._marks.close()
            self._marks = None
