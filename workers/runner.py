"""What a worker does with a batch: claim it, measure job by job, land the rows."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from farm.db import batches
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.engine import quick_commit
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

    A kernel that hangs cannot be interrupted from Python, and the process that holds the device is disposable.
    """

    def __init__(self, end_process: Callable[[], None] = lambda: os._exit(EXIT_HUNG)) -> None:
        self._end_process = end_process

    @contextmanager
    def of(self, seconds: float, job: ClaimedJob) -> Iterator[None]:
        timer = threading.Timer(seconds, self._end, args=(seconds, job))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, seconds: float, job: ClaimedJob) -> None:
        log.error("a job took more than %g s and is ended with its process", seconds, extra={"job_id": job.id})
        self._end_process()


class Runner:
    """Measures batches on one open device. Must be used from one thread.

    Once `stopping` is set, the job in hand is finished, what was measured is landed, and the rest goes back.
    """

    def __init__(
        self, engine: Engine, device: Device, device_id: int, *, lease_seconds: float, stopping: threading.Event
    ) -> None:
        self._engine = engine
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
        with self._engine.begin() as connection, quick_commit(connection):
            batches.mark(connection, lease, job, lease_seconds=seconds)
