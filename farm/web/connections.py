"""Limits of connections that wait for their client: their number and their time.

uvicorn limits neither the time in which headers arrive nor the time in which an answer is read, and when all places are
taken it refuses those who come, not those who wait. Here the connection that waited longest for its client makes room: for
the headers of a request, or for its answer to be read. An attacker who holds connections open loses them to users who send
requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from farm.web.limits import (
    HEADER_SECONDS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_ADDRESS,
    READING_SECONDS,
    address_group,
)


class BoundedConnection(H11Protocol):
    """A connection of `farm serve`, with deadlines for headers and for reading responses."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._since = self.loop.time()
        self._address = ""
        self._aborted = False
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None

    @property
    def _idle(self) -> bool:
        """Whether no request is in progress. `cycle` is uvicorn's."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    @property
    def _waits(self) -> bool:
        """Whether the server waits for the client."""
        return self._idle or self._read_due is not None

    # --- what asyncio calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = address_group(self.client[0] if self.client else None)
        self._expect_headers()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._idle:
            self._headers_due = _cancel(self._headers_due)
        elif self._headers_due is None:
            # A body that goes on after its answer is bounded in the same way as headers.
            self._expect_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._read_due = _cancel(self._read_due)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_due, self._read_due = _cancel(self._headers_due), _cancel(self._read_due)
        super().connection_lost(exc)

    # --- what uvicorn calls --------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():  # once the rest of the answer was read
            self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    # --- deadlines -----------------------------------------------------------------------------------

    def _expect_headers(self) -> None:
        self._headers_due = self.loop.call_later(HEADER_SECONDS, self._abort)

    def _expect_reading(self) -> None:
        _cancel(self._read_due)
        self._since = self.loop.time()
        self._read_due = self.loop.call_later(READING_SECONDS, self._abort)

    def _abort(self) -> None:
        self._aborted = True
        self.transport.abort()

    def _make_room(self) -> None:
        """If there are too many connections, closes the one that waited longest, or this one if none waits."""
        here = [one for one in self.connections if isinstance(one, BoundedConnection) and not one._aborted]
        of_address = Counter(one._address for one in here)
        if of_address[self._address] > MAX_CONNECTIONS_PER_ADDRESS:
            crowd = [one for one in here if one._address == self._address]
        elif len(here) > MAX_CONNECTIONS:
            crowd = here
        else:
            return
        waiting = [one for one in crowd if one is not self and one._waits]
        # The address with most connections gives one up.
        min(waiting, key=lambda one: (-of_address[one._address], one._since), default=self)._abort()


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancels a timer. Returns None."""
    if timer is not None:
        timer.cancel()
    return None
