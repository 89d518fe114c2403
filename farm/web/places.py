"""Places for requests in progress: their number, their holders, and which request ends when all are taken.

When all places that a request could take are taken, the request that has been waiting for its own client for longest ends. It
is refused itself only where all others are being worked on. Requests of signed-in users have reserved places.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

import anyio
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from farm.errors import TooManyRequests
from farm.web.limits import (
    BODY_BYTES_PER_SECOND,
    BODY_SECONDS,
    MAX_REQUESTS,
    MAX_REQUESTS_PER_USER,
    MAX_SMALL_BODY_BYTES,
    MAX_UNIDENTIFIED,
    MAX_UNIDENTIFIED_PER_ADDRESS,
    address_group,
)

_KEY = "farm.place"


class Place:
    """One request in progress, and the limits of its body."""

    def __init__(self, places: Places, address: str, receive: Receive) -> None:
        self._places = places
        self.address = address
        self.holder: Hashable | None = None
        self.largest_body_bytes = MAX_SMALL_BODY_BYTES
        self.ended = False
        self.answered = False
        self.since = time.monotonic()
        self._receive = receive
        self._read = 0
        self._more = True
        self._waiting: anyio.CancelScope | None = None

    @property
    def waits(self) -> bool:
        """Whether the request waits for data from its client."""
        return self._waiting is not None and not self.ended

    def identified(self, holder: Hashable) -> None:
        """Counts the request as that user's from now on. Raises `TooManyRequests` if the user has too many."""
        self._places.identify(self, holder)

    def end(self) -> None:
        """Ends the wait for the client."""
        assert self._waiting is not None
        self.ended = True
        self._waiting.cancel()

    async def receive(self) -> Message:
        """The next part of the body. Raises `HTTPException` if it is too long or too late, or another request needs the place."""
        if not self._more:
            return await self._receive()
        seconds = self.since + BODY_SECONDS + self._read / BODY_BYTES_PER_SECOND - time.monotonic()
        message: Message | None = None
        with anyio.move_on_after(max(seconds, 0.0)) as self._waiting:
            message = await self._receive()
        self._waiting = None
        if message is None:
            raise HTTPException(408, "The body of this request did not come in time")
        self._read += len(message.get("body", b""))
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        if self._read > self.largest_body_bytes:
            raise HTTPException(413, f"The body of this request may have {self.largest_body_bytes:,} bytes")
        return message


class Places:
    """The places of a server. With `reserve`, some places are kept for identified users."""

    def __init__(self, *, reserve: bool) -> None:
        self._reserve = reserve
        self._taken = set[Place]()
        self._lock = threading.Lock()  # requests are identified in threads

    def take(self, scope: Scope, receive: Receive) -> Place:
        """A place for that request, which finds it with `place_of`. Raises `TooManyRequests`."""
        client = scope.get("client")
        place = Place(self, address_group(client[0] if client else None), receive)
        with self._lock:
            crowd = self._crowd(place.address)
            if crowd is not None:
                waiting = [one for one in crowd if one.waits]
                if not waiting:
                    raise TooManyRequests(count=len(crowd))
                min(waiting, key=lambda one: (one.holder is not None, one.since)).end()
            self._taken.add(place)
        scope.setdefault("state", {})[_KEY] = place
        return place

    def give_back(self, place: Place) -> None:
        with self._lock:
            self._taken.discard(place)

    def identify(self, place: Place, holder: Hashable) -> None:
        """Counts a request as that user's from now on. Raises `TooManyRequests` if the user has too many."""
        with self._lock:
            if place.holder == holder:
                return
            count = sum(one.holder == holder for one in self._taken)
            if count >= MAX_REQUESTS_PER_USER:
                raise TooManyRequests(count=count)
            place.holder = holder

    def _crowd(self, address: str) -> list[Place] | None:
        """The requests that fill the places for that address; None if there is room."""
        # What is left of answers to those who are not signed in is a matter of their connections.
        here = [one for one in self._taken if not one.ended and not (one.answered and one.holder is None)]
        if self._reserve:
            unidentified = [one for one in here if one.holder is None]
            same = [one for one in unidentified if one.address == address]
            if len(same) >= MAX_UNIDENTIFIED_PER_ADDRESS:
                return same
            if len(unidentified) >= MAX_UNIDENTIFIED:
                return unidentified
        return here if len(here) >= MAX_REQUESTS else None


def place_of(scope: Scope) -> Place | None:
    """The place of a request; None in a process for expensive operations."""
    found: Place | None = scope.get("state", {}).get(_KEY)
    return found
