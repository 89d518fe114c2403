"""Spans of the requests of `farm serve`: one for each, in the trace of the caller if that sends a `traceparent`."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.tracing import Kind, of_traceparent, tracing
from farm.tracing.ids import HEADER
from farm.web.events import PATH


class Traced:
    """Wraps the whole application. A span names the route, and neither the query nor names in the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        recorder = tracing()
        if (
            not recorder.on or scope["type"] != "http" or scope["path"] == PATH
        ):  # a stream lasts as long as its client listens
            await self._app(scope, receive, send)
            return
        status = 0

        async def sender(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        parent, method = of_traceparent(Headers(scope=scope).get(HEADER)), scope["method"]
        with recorder.span(f"{method} request", parent=parent, kind=Kind.SERVER) as span:
            assert span is not None
            span.attributes["http.request.method"] = method
            try:
                await self._app(scope, receive, sender)
            finally:
                if (route := getattr(scope.get("route"), "path", None)) is not None:
                    span.attributes["http.route"], span.name = route, f"{method} {route}"
                span.attributes["http.response.status_code"] = status
                if status >= 500:
                    span.error = f"status {status}"
