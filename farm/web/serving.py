"""The server of `farm serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

from farm.addresses import is_loopback
from farm.api.access import Access
from farm.errors import AddressUnusable, ServingRefused, first_line
from farm.metrics import Metrics
from farm.web.app import App, make_app
from farm.web.connections import BoundedConnection
from farm.web.events import Events
from farm.web.limits import GRACE_SECONDS, HEADER_SECONDS, MAX_CONNECTIONS
from farm.web.processes import Processes
from farm.web.security import Policy

log = logging.getLogger(__name__)

_ENDING_SECONDS = 2.0
"""How long the server may take to end after it aborted the requests in progress."""


def require_safe(host: str, *, tokens: bool, encrypted: bool) -> None:
    """Raises `ServingRefused` if other machines could reach a farm without tokens, or read tokens in transit.

    `encrypted`: by a certificate here, or at a proxy in front.
    """
    if is_loopback(host):
        return
    if not tokens:
        raise ServingRefused(
            detail=f"--host {host} lets other machines in, so it needs --tokens: then each request must bring one, "
            "made with farm tokens create NAME --role read|submit|operate|admin."
        )
    if not encrypted:
        raise ServingRefused(
            detail=f"--host {host} would take tokens from other machines over plain HTTP, where others can read them. "
            "Name a certificate with --certificate and --key, or use --behind-proxy where a proxy in front has one."
        )


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket on that address; port 0 takes a free one. Raises `AddressUnusable`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no DNS can have
        raise AddressUnusable(address=f"{host}:{port}", why=getattr(error, "strerror", None) or error) from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1024)
        except OSError as error:
            raise AddressUnusable(address=f"{host}:{port}", why=error.strerror or error) from None
        yield listener


def serve(
    access: Access,
    listener: socket.socket,
    *,
    policy: Policy,
    certificate: Path | None = None,
    key: Path | None = None,
    metrics: Metrics | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serves until SIGINT or SIGTERM: requests in progress have `GRACE_SECONDS` then. `ready` is called once before that.

    Raises `ServingRefused` where certificate and key are of no use.
    """
    _allow_files()
    processes = Processes(access.settings, access.session.urls, policy)
    app = make_app(access, policy=policy, processes=processes, metrics=metrics)
    config = config_of(app, policy, certificate=certificate, key=key)
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        processes.close()
        raise ServingRefused(detail=f"{certificate} and {key} cannot be used for HTTPS: {first_line(error)}.") from None
    # uvicorn raises the signal again that ended it; before it handles signals, they end it as well.
    with closing(processes), suppress(KeyboardInterrupt):
        ready()
        server = _Server(config, app.state.events)
        try:
            server.run([listener])
        finally:
            server.ended()


def config_of(app: App, policy: Policy, *, certificate: Path | None = None, key: Path | None = None) -> uvicorn.Config:
    """The configuration of a server of that application."""
    return uvicorn.Config(
        app,
        log_config=None,
        http=BoundedConnection,
        loop="farm.web.serving:event_loop",
        access_log=False,
        server_header=False,
        proxy_headers=policy.behind_proxy,  # from the addresses that FORWARDED_ALLOW_IPS names
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


class StreamingServer(uvicorn.Server):
    """A server that ends its streams of events before it waits for the requests in progress."""

    def __init__(self, config: uvicorn.Config, events: Events) -> None:
        super().__init__(config)
        self._events = events

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._events.close()
        await super().shutdown(sockets)


class _Server(StreamingServer):
    """A server that ends in time, even if threads still wait."""

    _timer: threading.Timer | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Threads of requests that were given up cannot be ended, only left. Services that this process started end with it.
        self._timer = threading.Timer(GRACE_SECONDS + _ENDING_SECONDS, _leave)
        self._timer.daemon = True
        self._timer.start()
        await super().shutdown(sockets)

    def ended(self) -> None:
        """Cancels the timer after a regular end."""
        if self._timer is not None:
            self._timer.cancel()


def _leave() -> None:
    log.warning("requests in progress did not end in time; the server ends without them")
    logging.shutdown()
    os._exit(0)


class _EventLoop(asyncio.SelectorEventLoop):
    """asyncio's, with a short deadline for TLS handshakes: uvicorn leaves a minute for each."""

    async def create_server(self, *args: Any, **settings: Any) -> asyncio.Server:
        if settings.get("ssl") is not None:
            settings.setdefault("ssl_handshake_timeout", HEADER_SECONDS)
            settings.setdefault("ssl_shutdown_timeout", HEADER_SECONDS)
        return await super().create_server(*args, **settings)


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a server."""
    return _EventLoop()


def _allow_files() -> None:
    """Each connection is an open file; the usual limit of 1,024 is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MAX_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
