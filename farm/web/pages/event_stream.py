"""The stream of events, by which pages stay fresh without polling: see `farm.web.events`."""

from __future__ import annotations

from collections.abc import Hashable

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from farm.db.states import Role
from farm.web.events import PATH, Events
from farm.web.limits import address_group
from farm.web.routes import who

router = APIRouter()


@router.get(PATH)
async def stream(request: Request) -> Response:
    """What changed, for as long as the client listens. A session or a token is needed, as for pages."""
    user = await run_in_threadpool(who, request)
    user.need(Role.READ)
    events: Events = request.app.state.events
    address = address_group(request.client.host if request.client else None)
    holder: Hashable = user.holder if user.holder is not None else address
    events.take(holder)
    return _Stream(events, holder, request.headers.get("last-event-id"))


class _Stream(StreamingResponse):
    """A response that holds a place for a stream until it ended, however it ends."""

    def __init__(self, events: Events, holder: Hashable, last_id: str | None) -> None:
        super().__init__(events.stream(last_id), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._events = events
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._events.give_back(self._holder)
