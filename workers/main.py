"""`farm-worker`: finds the devices of this host, announces them, and keeps one worker running for each."""

from __future__ import annotations

import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Annotated

import psutil
import typer
from sqlalchemy import Engine

from farm.db import devices
from farm.db.engine import make_engine
from farm.db.migrate import require_head
from farm.devices import Backend, DeviceIdentity, host_name
from farm.errors import FarmError
from farm.logs import set_up_logging
from farm.services import ServiceUrls, services
from farm.services.processes import start_guarded
from farm.settings import environment_for_children, settings
from workers.devices import discover
from workers.tasks import DEVICE_ID

log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0
"""How long a worker may take to finish its batch after SIGTERM."""
SETTLED_SECONDS = 60.0
"""A worker that ran this long starts again at once when it ends; one that did not waits longer each time."""
LONGEST_BACKOFF_SECONDS = 60.0


@dataclass
class _Worker:
    """One device and the process that serves it."""

    identity: DeviceIdentity
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    start_at: float = field(default_factory=time.monotonic)

    def tend(self) -> None:
        """Starts the process where it should run and does not."""
        now = time.monotonic()
        if self.process is not None and (status := self.process.poll()) is not None:
            self.failures = 0 if now - self.started_at > SETTLED_SECONDS else self.failures + 1
            backoff = min(2.0**self.failures, LONGEST_BACKOFF_SECONDS)
            log.error("the worker of %s ended with status %d; again in %g s", self.identity.name, status, backoff)
            self.process, self.start_at = None, now + backoff
        if self.process is None and now >= self.start_at:
            self.started_at = now
            command = [sys.executable, "-m", "workers.process"]
            self.process = start_guarded(command, environment=self.environment, grace_s=GRACE_SECONDS)

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self) -> None:
        """Until the batch in hand is finished, or the guardian has ended what did not stop in time."""
        if self.process is not None:
            self.process.wait()


def _environment(identity: DeviceIdentity, device_id: int, urls: ServiceUrls) -> dict[str, str]:
    variables = {
        DEVICE_ID: str(device_id),
        "FARM_DATABASE_URL": urls.database_url,
        "FARM_BROKER_URL": urls.broker_url or "",
        "FARM_HOME": str(settings().home.absolute()),
    }
    if identity.backend is Backend.CUDA:
        variables["CUDA_VISIBLE_DEVICES"] = identity.uuid
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return environment_for_children(**variables)


def _announce(engine: Engine, found: list[DeviceIdentity]) -> list[int]:
    facts = {
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    with engine.begin() as connection:
        return [devices.register(connection, host=host_name(), host_facts=facts, device=identity) for identity in found]


def serve(selection: str, stop: threading.Event) -> None:
    """Runs a worker for each selected device until `stop`, starting again those that end."""
    with services(settings(), broker=True) as urls:
        engine = make_engine(urls.database_url, application="farm-worker", pool_size=1)
        require_head(engine)
        found = discover(selection)
        ids = _announce(engine, found)
        engine.dispose()
        workers = [_Worker(i, _environment(i, n, urls)) for i, n in zip(found, ids, strict=True)]
        for identity in found:
            log.info("serving %s (%s, %s)", identity.name, identity.type, identity.uuid)
        try:
            while not stop.is_set():
                for worker in workers:
                    worker.tend()
                stop.wait(0.5)
        finally:
            for worker in workers:
                worker.ask_to_stop()
            for worker in workers:
                worker.wait()


def _command(
    devices_to_serve: Annotated[
        str | None,
        typer.Option("--devices", help="auto, cpu, cuda, recorded:FILE, a UUID, or several with commas."),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Say which devices would be served, and end.")] = False,
) -> None:
    """Measure for a farm on the devices of this host. FARM_DATABASE_URL and FARM_BROKER_URL say where the farm is."""
    selection = devices_to_serve or settings().devices
    set_up_logging(settings(), "farm-worker")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if list_only:
            for identity in discover(selection):
                typer.echo(f"{identity.uuid}  {identity.type}  {identity.name}")
            return
        serve(selection, stop)
    except FarmError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None


def main() -> None:
    typer.run(_command)


if __name__ == "__main__":
    main()
