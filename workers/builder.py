"""`farm-worker --build`: a Celery worker on the `build` queue, which compiles kernels and needs no device."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import signals
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm.broker.celery_app import consume, make_app
from farm.broker.queues import BUILD_QUEUE
from farm.builds import slots_of
from farm.builds.stores import store_of
from farm.db import kernels, migrate
from farm.db.states import ProgramKind
from farm.devices import host_name
from farm.errors import first_line
from farm.logs import set_up_logging
from farm.services.reconnecting import connected_services
from farm.services.registering import registered
from farm.services.task_runner import heartbeats
from farm.settings import idle_exit_s, settings
from farm.tracing import running
from workers import building

log = logging.getLogger(__name__)


def serve(stop: threading.Event) -> None:
    """Builds kernels until `stop`. Compilations in progress are finished.

    Raises `CompilerMissing`, `WrongCompiler` and `BadKernelStore`, before it takes anything.
    """
    toolchains = list(building.compilers())
    slots = slots_of(settings())
    with connected_services(
        stop, require=migrate.require_for_worker, application="farm builder", pool_size=1
    ) as reached:
        if reached is None:
            return
        urls, engine = reached
        assert urls.broker_url is not None
        os.environ["FARM_DATABASE_URL"] = urls.database_url
        os.environ["FARM_HOME"] = str(settings().home.absolute())
        settings.cache_clear()
        store_of(settings(), engine)
        log.info("building with %s, %d at a time", " and ".join(toolchains), slots)
        app = make_app(urls.broker_url, include=("workers.building",))
        name = f"{host_name()}:{os.getpid()}"
        with (
            running(settings(), "builder"),
            _announced(engine, name, toolchains, slots),
            registered(urls.database_url, ProgramKind.BUILDER),
        ):
            # The compiler is a process of its own, so threads are enough.
            consume(
                app,
                pool="threads",
                queues=[BUILD_QUEUE],
                name=f"builder-{os.getpid()}@%h",
                stop=stop,
                slots=slots,
                idle_s=idle_exit_s(),
            )


@contextmanager
def _announced(engine: Engine, name: str, toolchains: list[str], slots: int) -> Iterator[None]:
    """Inside the block, the farm knows that this builder lives."""

    def say() -> None:
        with engine.begin() as connection:
            kernels.announce(connection, name, toolchains=toolchains, slots=slots)

    say()
    try:
        with heartbeats(say, every_s=settings().heartbeat_seconds):
            yield
    finally:
        try:
            with engine.begin() as connection:
                kernels.leave(connection, name)
        except DBAPIError as error:
            log.warning("this builder could not be deregistered: %s", first_line(error))


@signals.setup_logging.connect
def _logging(**_: Any) -> None:
    set_up_logging(settings(), "builder")
