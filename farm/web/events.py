"""Server-sent events: pages hear what changed, and ask for that part of themselves.

One task of the server reads the fingerprints of `farm.db.changes`, while anybody listens, and holds a connection to the database
only for that. A stream waits for it and holds none. An event names topics and has no data, so that losing or repeating one is no
harm. Streams end after `STREAM_SECONDS`: the browser opens another, with its rights checked again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import suppress

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from farm.errors import TooManyRequests, first_line
from farm.web.limits import MAX_STREAMS, MAX_STREAMS_PER_USER, STREAM_SECONDS

log = logging.getLogger(__name__)

PATH = "/events"

POLL_SECONDS = 2.0
"""From one reading to the next: no page refreshes more often."""

HEARTBEAT_SECONDS = 15.0
"""A stream without events sends a comment so often, so that proxies keep it and a lost client is noticed."""

ALL = "all"
"""The topic of a client that may have missed anything."""

Read = Callable[[], Mapping[str, str]]


class Events:
    """What changed, and the streams that wait for it. All of it runs in the server's event loop."""

    def __init__(self, read: Read) -> None:
        """`read` returns the fingerprint of each topic. It runs in a thread."""
        self._read = read
        # Ids of events are EPOCH-NUMBER; those of another start of the server mean nothing here.
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._seen: Mapping[str, str] | None = None
        self._changed_at = dict[str, int]()
        self._streams = Counter[Hashable]()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def latest(self) -> int | None:
        """The number of the latest event; None while no page listens, when changes are not read."""
        return None if self._task is None else self._number

    def take(self, holder: Hashable) -> None:
        """Takes a place for a stream, which `give_back` returns. Raises `TooManyRequests`."""
        for count, limit in ((self._streams.total(), MAX_STREAMS), (self._streams[holder], MAX_STREAMS_PER_USER)):
            if count >= limit or self._closed:
                raise TooManyRequests(count=count)
        self._streams[holder] += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())

    def give_back(self, holder: Hashable) -> None:
        """Returns a place. Without any stream, nothing is read."""
        self._streams[holder] -= 1
        self._streams += Counter()  # drops those that have none
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task, self._seen = None, None

    async def close(self) -> None:
        """Ends every stream, and refuses new ones."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()

    def _known(self, last_id: str | None) -> int | None:
        """The number of a client's last event; None if it may have missed anything."""
        epoch, _, number = (last_id or "").partition("-")
        known = int(number) if number.isascii() and number.isdecimal() and len(number) < 16 else -1
        return known if epoch == self._epoch and 0 <= known <= self._number else None

    async def stream(self, last_id: str | None) -> AsyncIterator[str]:
        """The text of a stream that has a place. `last_id`: the last event that the client has."""
        known, ends = self._known(last_id), time.monotonic() + STREAM_SECONDS
        yield "retry: 5000\n\n"
        while not self._closed and (left := ends - time.monotonic()) > 0:
            if topics := self._topics(known):
                known = self._number
                yield self._event(topics)
            elif not await self._wait(known, min(left, HEARTBEAT_SECONDS)):
                yield ": alive\n\n"

    def _event(self, topics: list[str]) -> str:
        return f"id: {self._epoch}-{self._number}\nevent: changed\ndata: {json.dumps(topics)}\n\n"

    def _topics(self, known: int | None) -> list[str]:
        """What changed after that event. Nothing is known before the first reading."""
        if self._seen is None:
            return []
        return [ALL] if known is None else [topic for topic, number in self._changed_at.items() if number > known]

    async def _wait(self, known: int | None, seconds: float) -> bool:
        """Waits for a later event. Returns whether there is one, or the server ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._topics(known) or self._closed)
                return True
        return False

    async def _poll(self) -> None:
        while not self._closed:
            try:
                self._compare(await run_in_threadpool(self._read))
            except SQLAlchemyError as error:
                log.warning("changes for pages could not be read: %s", first_line(error))
            else:
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(POLL_SECONDS)

    def _compare(self, now: Mapping[str, str]) -> None:
        """Notes what changed since the last reading. Before the first one, and in a pause, anything may have changed."""
        before, self._seen = self._seen, now
        if before is None:
            changed = {ALL}
        else:
            changed = {topic for topic in now.keys() | before.keys() if now.get(topic) != before.get(topic)}
        if changed:
            self._number += 1
            self._changed_at = {topic: at for topic, at in self._changed_at.items() if topic in now or topic == ALL}
            self._changed_at |= dict.fromkeys(changed, self._number)
