"""How Celery reaches Redis: a Redis that refuses to write is waited for, as one that is away is.

A Redis that is full (OOM), a replica (READONLY), or unable to save to its disk (MISCONF) answers, and refuses what a
program needs. Celery reconnects after such a refusal. Whether Redis takes messages again is therefore tested when a
connection is made, and not by the next refusal.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport.redis import Transport
from redis.exceptions import ResponseError

from farm.broker import require_writable

MAX_PAUSE_SECONDS = 5
"""Between two attempts of a Celery worker to connect, at most. The pause grows from one second."""


class RefusingTransport(Transport):
    """kombu's transport of Redis, which takes every refusal of a command for a broken connection."""

    connection_errors = (*Transport.connection_errors, ResponseError)

    def establish_connection(self) -> Any:
        """A connection to a Redis that can be written to. Raises one of `connection_errors`."""
        connection = super().establish_connection()  # type: ignore[no-untyped-call]
        try:
            require_writable(self._avail_channels[-1].client)
        except self.connection_errors:
            with suppress(*self.connection_errors):
                self._avail_channels.pop().close()
            raise
        return connection


class BrokerConnection(Connection):
    """A connection through `RefusingTransport`, whatever form of URL names Redis."""

    def get_transport_cls(self) -> type[Transport]:
        return RefusingTransport

    def _ensure_connection(self, *args: Any, **options: Any) -> Any:
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": MAX_PAUSE_SECONDS}
        return super()._ensure_connection(*args, **{**pauses, **options})  # type: ignore[no-untyped-call]


class BrokerAMQP(AMQP):  # type: ignore[misc]
    """Celery's AMQP layer on `BrokerConnection`."""

    Connection = BrokerConnection
    BrokerConnection = BrokerConnection
