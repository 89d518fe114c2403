"""How Celery reaches Redis: a Redis that refuses to write is waited for, as one that is away is.

A Redis that is full (OOM), a replica (READONLY), or unable to save to its disk (MISCONF) answers, and refuses what a
program needs. Celery reconnects after such a refusal. Whether Redis takes messages again is therefore tested when a
connection is made, and not by the next refusal.

Messages of one `Producer.batch` go to Redis in a pipeline. Redis may take some of them and refuse others: `PartlyTaken` says
which.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, NoReturn

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.exceptions import BatchPublishError
from kombu.transport.redis import Channel, PublishBatch, Transport
from redis.exceptions import RedisError, ResponseError

from farm.broker import require_writable

MAX_PAUSE_SECONDS = 5
"""Between two attempts of a Celery worker to connect, at most. The pause grows from one second."""


class PartlyTaken(BatchPublishError):
    """Redis did not take all messages of a pipeline, or its answer was lost.

    Attributes:
        taken: the messages that it said it took, by their place in the pipeline, from 0.
    """

    def __init__(self, taken: Collection[int], why: Exception) -> None:
        super().__init__(str(why))
        self.taken = taken


class AccountedBatch(PublishBatch):
    """kombu's pipeline of messages, one command each, with an account of what Redis took."""

    def flush(self) -> None:
        """Sends what was collected. Raises `PartlyTaken`."""
        self._check_usable()  # type: ignore[no-untyped-call]
        try:
            replies = self.pipeline.execute(raise_on_error=False)
        except RedisError as error:
            self._fail(PartlyTaken((), error), error)
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        if refused:
            taken = {n for n, reply in enumerate(replies) if not isinstance(reply, Exception)}
            self._fail(PartlyTaken(taken, refused[0]), refused[0])
        self._buffered = 0

    def _fail(self, error: PartlyTaken, cause: Exception) -> NoReturn:
        self._failed, self._buffered = error, 0
        self.pipeline.reset()
        raise error from cause


class AccountingChannel(Channel):
    """kombu's channel, whose batches are `AccountedBatch`."""

    def create_publish_batch(self, max_size: int) -> AccountedBatch:
        return AccountedBatch(self, max_size)  # type: ignore[no-untyped-call]


class RefusingTransport(Transport):
    """kombu's transport of Redis, which takes every refusal of a command for a broken connection."""

    Channel = AccountingChannel
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
