"""Processes for expensive operations, which the server can kill.

Python cannot end a thread. An operation whose cost depends on what a request asks for therefore runs in another process: the
whole request is sent there after the caller was identified, and its answer comes back. A process that takes too long is
killed, and the next request starts another. One that takes too much memory gets a `MemoryError` from its own limit.

`farm.web.process` is the other end.
"""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Hashable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask

from farm import python_program
from farm.errors import ProcessEnded, ProcessesBusy, TookTooLong
from farm.services import ServiceUrls
from farm.settings import Settings
from farm.tracing import Span, current, traceparent, tracing
from farm.web.limits import PROCESSES, WAITING_SECONDS
from farm.web.security import Policy

_STARTING_SECONDS = 120.0
_FORWARDED = ("method", "scheme", "path", "root_path", "http_version", "client", "server")


@dataclass(frozen=True)
class Setup:
    """The configuration of a process."""

    settings: Settings
    urls: ServiceUrls
    policy: Policy
    folder: Path
    """The folder for files of responses."""


class Processes:
    """The processes of a server. Each starts at its first use, and stays for later requests."""

    def __init__(self, settings: Settings, urls: ServiceUrls, policy: Policy, *, count: int = PROCESSES) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="farm-serve-"))
        self._setup = Setup(settings, urls, policy, self._folder)
        self._count = count
        self._places = anyio.Semaphore(count)
        self._threads = anyio.CapacityLimiter(count)
        self._turns: WeakValueDictionary[Hashable, anyio.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._free = list[_Process]()
        self._all = set[_Process]()
        self._closed = False

    async def answer(self, request: Request, holder: Hashable | None, *, seconds: float) -> Response:
        """The answer to a request whose caller was identified as `holder`, who has one process at a time.

        Raises `ProcessesBusy`, `TookTooLong`, `ProcessEnded`.
        """
        body = await request.body()
        async with AsyncExitStack() as stack:
            try:
                with anyio.fail_after(WAITING_SECONDS):
                    if holder is not None:
                        await stack.enter_async_context(self._turns.setdefault(holder, anyio.Lock()))
                    await stack.enter_async_context(self._places)
            except TimeoutError:
                raise ProcessesBusy(count=self._count, seconds=WAITING_SECONDS) from None
            if await request.is_disconnected():
                return Response(status_code=400)  # nobody reads it
            head, content = await anyio.to_thread.run_sync(
                self._call, _head_of(request), body, seconds, limiter=self._threads
            )
        return self._response(head, content)

    def close(self) -> None:
        """Kills all processes, also in the middle of a request."""
        with self._lock:
            self._closed = True
            ended = list(self._all)
        for process in ended:
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, head: bytes, body: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        process = self._take()
        try:
            found, content = process.call(head, body, seconds)
        except BaseException:
            self._end(process)
            raise
        for span in found.pop("spans"):
            tracing().record(Span.from_json(span))
        if found["last"]:
            self._end(process)
        else:
            with self._lock:
                self._free.append(process)
        return found, content

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise ProcessEnded(why="the server stops")
            process = self._free.pop() if self._free else _Process(self._setup)
            self._all.add(process)
        return process

    def _end(self, process: _Process) -> None:
        process.kill()
        with self._lock:
            self._all.discard(process)

    def _response(self, head: dict[str, Any], content: bytes) -> Response:
        if (name := head["file"]) is not None:
            path = self._folder / Path(name).name
            answer: Response = FileResponse(
                path, head["status"], background=BackgroundTask(path.unlink, missing_ok=True)
            )
        else:
            answer = Response(content, head["status"])
        answer.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
        return answer


class _Process:
    """One process. It handles one request at a time."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python_program.program("farm.web.process", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server, which ends it
            )
        self._connection = Connection(ours.detach())
        self._setup: Setup | None = setup

    def call(self, head: bytes, body: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The response: its head and its body. Raises `TookTooLong`, `ProcessEnded`."""
        try:
            if self._setup is not None:
                self._connection.send_bytes(pickle.dumps(self._setup))
                self._receive(_STARTING_SECONDS)
                self._setup = None
            self._connection.send_bytes(head)
            self._connection.send_bytes(body)
            found: dict[str, Any] = json.loads(self._receive(seconds))
            return found, self._connection.recv_bytes()
        except (EOFError, OSError):
            raise ProcessEnded(why=self._why()) from None

    def _receive(self, seconds: float) -> bytes:
        if not self._connection.poll(seconds):
            raise TookTooLong(seconds=seconds)
        return self._connection.recv_bytes()

    def _why(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(5)
            return signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "it does not answer"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        # Its socket is closed by the garbage collector: a thread may be reading from it, and reads its end.


def _head_of(request: Request) -> bytes:
    """A request without its body. Bytes of headers are Latin-1 characters in it."""
    scope = request.scope
    head = {name: scope.get(name) for name in _FORWARDED}
    head["raw_path"] = scope.get("raw_path", b"").decode("latin-1")
    head["query_string"] = scope["query_string"].decode("latin-1")
    head["caller"] = None if (caller := current()) is None else traceparent(caller)
    head["headers"] = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    return json.dumps(head).encode()
