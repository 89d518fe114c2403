"""How Celery reaches Redis: bad messages are dropped, and a Redis that refuses to write is waited for, as one that is away is.

A consumer takes messages, and writes nothing: Postgres knows what was sent and not taken up, and it is sent again. So a consumer
needs no right to write, and no key that consumers share. What `farm.broker.task_messages` refuses is dropped where it is read, and a key of
a queue that is no list is deleted.

A Redis that is full (OOM), a replica (READONLY), or unable to save to its disk (MISCONF) answers, and refuses what a
program needs. Celery reconnects after such a refusal. Whether Redis takes messages again is therefore tested when a
connection is made, and not by the next refusal.

Messages of one `Producer.batch` go to Redis in a pipeline. Redis may take some of them and refuse others: `PartlyTaken` says
which.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from queue import Empty
from typing import Any, NoReturn

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.exceptions import BatchPublishError
from kombu.transport.redis import Channel, PublishBatch, Transport
from redis import Redis
from redis._parsers import _RESP2Parser
from redis._parsers.socket import SocketBuffer
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from farm.broker.refusals import Refusals
from farm.broker.replies import is_of_wrong_kind, require_writable
from farm.broker.task_messages import MAX_BYTES, MessageRefused, Reason, read

log = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 5
"""Between two attempts of a Celery worker to connect, at most. The pause grows from one second."""

_STUCK_SECONDS = 1.0
"""Between two attempts on a key that this user of Redis may not delete."""


class TooLong(RedisError):
    """Redis answered with a string that is longer than a message of the farm."""


class _BoundedBuffer(SocketBuffer):
    """What was received of an answer. A string that is too long is refused before it is received."""

    def read(self, length: int, *args: Any, **options: Any) -> bytes:
        if length > MAX_BYTES:
            raise TooLong(f"{length:,} bytes")
        return super().read(length, *args, **options)


class _BoundedParser(_RESP2Parser):
    """redis-py's parser of answers, on a `_BoundedBuffer`."""

    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        self._buffer = _BoundedBuffer(connection._sock, connection._socket_read_size, connection.socket_timeout)


def delete_wrong_keys(client: Redis, queues: Iterable[str]) -> list[str]:
    """Deletes and returns the keys of these queues that are not lists, and therefore unusable."""
    names = list(dict.fromkeys(queues))
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.type(name)
        kinds = pipeline.execute()
    wrong = [name for name, kind in zip(names, kinds, strict=True) if kind not in (b"list", b"none", "list", "none")]
    if wrong:
        client.unlink(*wrong)
    return wrong


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
        queues = [str(arguments[1]) for arguments, *_ in self.pipeline.command_stack]
        try:
            replies = self.pipeline.execute(raise_on_error=False)
        except RedisError as error:
            self._fail(PartlyTaken((), error), error)
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        if refused:
            taken = {n for n, reply in enumerate(replies) if not isinstance(reply, Exception)}
            wrong = [queue for queue, reply in zip(queues, replies, strict=True) if is_of_wrong_kind(reply)]
            if wrong:  # those messages are sent again
                with suppress(RedisError):
                    self.channel.clear(wrong)
            self._fail(PartlyTaken(taken, refused[0]), refused[0])
        self._buffered = 0

    def _fail(self, error: PartlyTaken, cause: Exception) -> NoReturn:
        self._failed, self._buffered = error, 0
        self.pipeline.reset()
        raise error from cause


class FarmChannel(Channel):
    """kombu's channel of Redis, as the farm uses it: one list for each queue, and no other key.

    Batches are `AccountedBatch`. The transport option `refusals` says where what was refused is counted.
    """

    from_transport_options = (*Channel.from_transport_options, "refusals")  # type: ignore[assignment]
    refusals = Refusals()

    # What a consumer holds is noted in its own memory, and never put back.
    ack_emulation = False
    do_restore = False
    # Where a message goes is its queue's name alone: there is no table of bindings.
    supports_fanout = False

    def create_publish_batch(self, max_size: int) -> AccountedBatch:
        return AccountedBatch(self, max_size)  # type: ignore[no-untyped-call]

    def clear(self, queues: Iterable[str]) -> None:
        """Deletes the keys of these queues that are no lists. Where this user may not, consuming stands still, and says so."""
        try:
            with self.conn_or_acquire() as client:
                for queue in delete_wrong_keys(client, queues):
                    self.refusals.add(queue, Reason.KEY, "its key was no list, and is deleted")
        except NoPermissionError as error:
            log.warning("a key of %s is no list, and has to be deleted by hand: %s", sorted(set(queues)), error)
            time.sleep(_STUCK_SECONDS)

    def get_table(self, exchange: str) -> Any:
        return self.state.exchanges[exchange]["table"]

    def _restore(self, message: Any, leftmost: bool = False) -> None:
        """Leaves the message to who sends it again."""

    def _basic_cancel(self, consumer_tag: str) -> Any:
        """Leaves a queue. An earlier request to Redis could still take a message from it, which this consumer would not run."""
        left = super()._basic_cancel(consumer_tag)  # type: ignore[no-untyped-call]
        if self._in_poll:
            self.client.connection.disconnect()
            self._in_poll = None  # type: ignore[assignment]
        return left

    def _size(self, queue: str) -> int:
        """Answers a query that kombu makes before the first message to a queue; the farm does not use it."""
        return 0

    def _get(self, queue: str, timeout: float | None = None) -> NoReturn:
        raise NotImplementedError("the farm's messages are consumed, so that each is checked")

    def _brpop_read(self, **options: Any) -> bool:
        """Delivers the message that Redis answers with. Raises `Empty` where there is none that is taken."""
        try:
            queue, raw = self._popped(options)
            try:
                message = read(raw, queue)
            except MessageRefused as refused:
                self.refusals.add(queue, refused.reason, str(refused), raw)
                raise Empty from None
            self._queue_cycle.rotate(queue)
            self.connection._deliver(message.payload(queue), queue)
            return True
        finally:
            self._in_poll = None  # type: ignore[assignment]
            self._flush_brpop_reauth()  # type: ignore[no-untyped-call]

    def _popped(self, options: dict[str, Any]) -> tuple[str, bytes]:
        """The queue and the message that Redis answers BRPOP with. Raises `Empty` where there is none."""
        connection = self.client.connection
        try:
            found = self.client.parse_response(connection, "BRPOP", **options)
        except TooLong as error:
            connection.disconnect()  # the rest of it is not received
            self.refusals.add(",".join(sorted(self.active_queues)), Reason.SIZE, str(error))
            raise Empty from None
        except ResponseError as error:
            if not is_of_wrong_kind(error):
                connection.disconnect()
                raise
            self.clear(self.active_queues)
            raise Empty from None
        except self.connection_errors:
            connection.disconnect()
            raise
        if not found:
            raise Empty
        queue, raw = found
        return queue.decode(), raw

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[no-untyped-call]
        if asynchronous:  # of the connection that messages are taken through
            found |= {"protocol": 2, "parser_class": _BoundedParser}
        return found


class RefusingTransport(Transport):
    """kombu's transport of Redis, which takes every refusal of a command for a broken connection."""

    Channel = FarmChannel
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

    def _deliver(self, message: dict[str, Any], queue: str) -> None:
        """A message that comes when its queue was just left is left to who sends it again."""
        if (take := self._callbacks.get(queue)) is not None:
            take(message)


class BrokerConnection(Connection):
    """A connection through `RefusingTransport`, for any form of Redis URL."""

    def get_transport_cls(self) -> type[Transport]:
        return RefusingTransport

    def _ensure_connection(self, *args: Any, **options: Any) -> Any:
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": MAX_PAUSE_SECONDS}
        return super()._ensure_connection(*args, **{**pauses, **options})  # type: ignore[no-untyped-call]


class BrokerAMQP(AMQP):  # type: ignore[misc]
    """Celery's AMQP layer on `BrokerConnection`."""

    Connection = BrokerConnection
    BrokerConnection = BrokerConnection
