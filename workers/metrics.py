"""Prometheus metrics of a host: the work of each of its devices, over HTTP from `farm-worker`.

The processes of a device count into memory-mapped files (prometheus_client's multiprocess mode), which `farm-worker`
adds up for each request. A file belongs to a role, not to a process: a child that replaces a dead one continues its counts,
so that no counts are lost and there are never more files than roles. There are no gauges, because a dead process would leave
them behind.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from farm.devices import DeviceIdentity
from farm.metrics import Metrics, PrometheusMetrics, serving
from farm.monitoring.worker_metrics import (
    BATCH,
    CANARY_FAILURES,
    CHILD_DEATHS,
    CLAIM,
    DATABASE_ERRORS,
    JOBS,
    LAND,
    LEASES_LOST,
    MARK,
    MEASURING,
    REFUSED,
    WINDOW,
)
from farm.services.home import Home
from farm.settings import Settings
from farm.variables import WORKER_METRICS_DEVICE, WORKER_METRICS_DEVICE_TYPE

log = logging.getLogger(__name__)

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that tells prometheus_client where the files are. `farm-worker` sets it."""

DEVICE_UUID, DEVICE_TYPE = WORKER_METRICS_DEVICE, WORKER_METRICS_DEVICE_TYPE
"""The environment variables by which `farm-worker` tells a device's processes their labels; unset: metrics are off."""

PARENT, CHILD = "parent", "child"
"""The roles of a device's processes: one of each lives at a time."""

_COUNTS = {
    PARENT: (JOBS, DATABASE_ERRORS, CHILD_DEATHS, REFUSED),
    CHILD: (JOBS, WINDOW, LEASES_LOST, CANARY_FAILURES, DATABASE_ERRORS),
}
_DURATIONS = {PARENT: (), CHILD: (MEASURING, BATCH, CLAIM, MARK, LAND)}


# --- in the processes of a device --------------------------------------------------------------------


def metrics_of(role: str, device_id: int) -> Metrics:
    """The metrics of this process of the device, by its role. Called once, before anything is counted.

    If the files cannot be created, that is logged and nothing is counted. Measuring continues.
    """
    device, kind = os.environ.get(DEVICE_UUID), os.environ.get(DEVICE_TYPE)
    if device is None or kind is None:
        return Metrics()
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(lambda: f"{device_id}-{role}")  # type: ignore[no-untyped-call]
    try:
        return PrometheusMetrics(None, _COUNTS[role], _DURATIONS[role], {"device": device, "device_type": kind})
    except OSError as error:
        log.warning("there are no metrics of this process: %s", error)
        return Metrics()


# --- in farm-worker ----------------------------------------------------------------------------------


def labels_of(identity: DeviceIdentity, settings: Settings) -> dict[str, str]:
    """Environment variables about metrics for the device's processes, in addition to those of `served`."""
    if settings.worker_metrics is None:
        return {}
    return {DEVICE_UUID: identity.uuid, DEVICE_TYPE: identity.type}


@contextmanager
def served(settings: Settings) -> Iterator[Mapping[str, str]]:
    """Serves the metrics of this host's devices inside the block. Yields environment variables for their processes.

    If metrics are off, it yields none and does nothing. Raises `BadMetricsAddress` and `MetricsAddressUnusable`.
    """
    if settings.worker_metrics is None:
        yield {}
        return
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    with _folder(Home.of(settings)) as folder:
        MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
        with serving("FARM_WORKER_METRICS", settings.worker_metrics, registry):
            yield {FOLDER: str(folder)}


@contextmanager
def _folder(home: Home) -> Iterator[Path]:
    """A new folder for the files. It is removed afterwards, together with folders of `farm-worker`s that were killed.

    A lock marks folders in use, because several `farm-worker`s may serve devices of one home.
    """
    home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    with home.locked("metrics"):
        for old in home.run.glob("metrics-*"):
            with suppress(BlockingIOError), (old / "held").open("a") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix="metrics-", dir=home.run))
        holding = (made / "held").open("w")
        fcntl.flock(holding, fcntl.LOCK_EX)
    with holding:
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
