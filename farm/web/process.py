"""A process of `farm serve` for expensive operations: `python -m farm.web.process DESCRIPTOR`.

Its memory and processor time are limited, and it ends with the server. It answers what `farm.web.processes` sends: requests
that the server let in, one after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import resource
import select
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from farm.api.access import Access
from farm.db.engine import ASKING, make_engine
from farm.logs import set_up_logging
from farm.services.session import Session
from farm.tracing import Collected, Span, SpanIds, inside, of_traceparent, taking
from farm.web.app import App, make_app
from farm.web.limits import PROCESS_MEMORY_BYTES
from farm.web.processes import Setup

MAX_CPU_SECONDS = 3600
"""Processor time of one process. It ends even if the server that would kill it was killed."""


MAX_SPANS = 100
"""Of one request."""


def main(descriptor: int) -> None:
    connection = Connection(descriptor)
    _end_with_server(descriptor)
    setup: Setup = pickle.loads(connection.recv_bytes())
    tempfile.tempdir = str(setup.folder)  # what a killed process leaves is removed with it
    set_up_logging(setup.settings, "serve")
    engine = make_engine(setup.urls.database_url, application="farm", pool_size=1, session=ASKING)
    access = Access(setup.settings, who="the web page", opened=Session(setup.settings, setup.urls, engine))
    app = make_app(access, policy=setup.policy)
    inner = app.unguarded()
    _limit_resources()
    with asyncio.Runner() as runner:
        connection.send_bytes(b"ready")
        while True:
            head, body = json.loads(connection.recv_bytes()), connection.recv_bytes()
            with _collected(of_traceparent(head.pop("caller"))) as spans:
                found, content = runner.run(_answer(app, inner, head, body, setup.folder), context=copy_context())
            found["spans"] = [span.to_json() for span in spans]
            del head, body
            connection.send_bytes(json.dumps(found).encode())
            connection.send_bytes(content)


@contextmanager
def _collected(caller: SpanIds | None) -> Iterator[list[Span]]:
    """The spans of a request, for the server. `caller`: the server's own span; None: tracing is off."""
    spans = list[Span]()
    if caller is None:
        yield spans
        return
    with taking(Collected(MAX_SPANS)) as recorder, inside(caller):
        yield spans
    spans += recorder.take()


def _end_with_server(descriptor: int) -> None:
    """Ends this process when the server closes its end of the connection, even in the middle of a request."""

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _limit_resources() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    memory = pages * resource.getpagesize() + PROCESS_MEMORY_BYTES
    for kind, wanted in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, MAX_CPU_SECONDS)):
        hard = resource.getrlimit(kind)[1]
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


async def _answer(
    app: App, inner: ASGIApp, head: dict[str, Any], body: bytes, folder: Path
) -> tuple[dict[str, Any], bytes]:
    """The response to a request: its head, and its body or the name of its file in that folder."""
    found: dict[str, Any] = {"status": 500, "headers": [], "file": None, "last": False}
    parts, received = [], [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return received.pop() if received else await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found["status"] = message["status"]
            found["headers"] = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in message["headers"]]
        elif message["type"] == "http.response.pathsend":
            found["file"] = str(uuid.uuid4())
            Path(message["path"]).rename(folder / found["file"])
        else:
            parts.append(message.get("body", b""))

    app.state.out_of_memory = False
    with suppress(Exception):  # logged and answered as a defect, and raised again by Starlette
        await inner(_scope(app, head), receive, send)
    found["last"] = app.state.out_of_memory
    return found, b"".join(parts)


def _scope(app: App, head: dict[str, Any]) -> Scope:
    return {
        **head,
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "app": app,
        "state": {},
        "extensions": {"http.response.pathsend": {}},
        "client": None if head["client"] is None else tuple(head["client"]),
        "raw_path": head["raw_path"].encode("latin-1"),
        "query_string": head["query_string"].encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]],
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
