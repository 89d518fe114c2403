"""Finds work for the programs that `farm up` runs only on demand. Used by its supervisor.

A waiting builder is announced as if it ran, because it starts as soon as a kernel is to be built.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from farm.broker.queues import client_name
from farm.builds import installed_toolchains, slots_of, versions_of
from farm.db import kernels
from farm.db.engine import make_engine
from farm.devices import host_name
from farm.errors import first_line
from farm.services.embedded import ServiceUrls
from farm.services.stack import BUILDER, Program
from farm.services.urls import redis_client_url
from farm.settings import Settings

if TYPE_CHECKING:
    import redis

log = logging.getLogger(__name__)

ANSWER_S = 2.0
"""Timeout of the broker, which is tried again at the next check."""


class Demand:
    """Looks into the queues of programs that wait for work."""

    def __init__(self, settings: Settings, urls: ServiceUrls) -> None:
        assert urls.broker_url is not None
        self._settings = settings
        self._broker_url = urls.broker_url
        self._broker: redis.Redis | None = None
        self._name = ""  # of its connection: a trainer that waits counts as one that runs
        # One connection at a time, and none between two announcements: each is a process of Postgres.
        self._engine = make_engine(urls.database_url, application="farm supervisor", pool_size=1, pre_ping=False)
        self._builder = f"{host_name()}:{os.getpid()}"
        self._announce_at: float | None = None  # None while no builder is announced

    def of(self, waiting: Mapping[str, Program]) -> list[str]:
        """Names of the programs that have work."""
        self._announce(BUILDER.name in waiting)
        queues = {name: program.queue for name, program in waiting.items() if program.queue is not None}
        if not queues:
            self._close()
            return []
        lengths = self._lengths(queues.values())
        return [name for name, queue in queues.items() if lengths.get(queue)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._announce(False)
        self._close()

    def _close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _lengths(self, queues: Iterable[str]) -> dict[str, int]:
        import redis

        queues = list(queues)
        if self._broker is None or self._name != client_name(queues):
            self._close()
            self._name = client_name(queues)
            self._broker = redis.Redis.from_url(
                redis_client_url(self._broker_url),
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
                client_name=self._name,
            )
        try:
            return {queue: int(self._broker.llen(queue)) for queue in queues}
        except (redis.RedisError, OSError):  # `revive_services` and the programs that run report it
            return {}

    def _announce(self, waits: bool) -> None:
        """Announces the waiting builder, and again before it would count as silent."""
        now = time.monotonic()
        if waits and (self._announce_at is None or now >= self._announce_at):
            self._announce_at = now + self._settings.silent_after_seconds / 4
            versions, slots = versions_of(self._settings), slots_of(self._settings)
            toolchains = [toolchain.text(versions) for toolchain in installed_toolchains(self._settings)]
            self._tell(lambda on: kernels.announce(on, self._builder, toolchains=toolchains, slots=slots))
        elif not waits and self._announce_at is not None:
            self._announce_at = None
            self._tell(lambda on: kernels.leave(on, self._builder))

    def _tell(self, tell: Callable[[Connection], None]) -> None:
        try:
            with self._engine.begin() as connection:
                tell(connection)
        except DBAPIError as error:
            log.warning("the builder could not be announced to the database: %s", first_line(error))
        finally:
            self._engine.dispose()
