"""`farm serve`: the application on an address, until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from farm.addresses import is_loopback
from farm.api.access import Access
from farm.errors import AddressUnusable, ServingRefused, first_line
from farm.web.app import make_app
from farm.web.security import Policy

MOST_CONNECTIONS = 1000
"""Connections at a time; the next one is answered 503. A page keeps up to six open."""


def require_safe(host: str, *, tokens: bool, encrypted: bool) -> None:
    """Raises `ServingRefused` where others could reach a farm that asks nobody for a token, or could read tokens on their way.

    `encrypted`: by a certificate here, or at a proxy in front.
    """
    if is_loopback(host):
        return
    if not tokens:
        raise ServingRefused(
            detail=f"--host {host} lets other machines in, so it needs --tokens: then each request must bring one, "
            "made with farm tokens create NAME --role read|submit|operate."
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
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serves until SIGINT or SIGTERM: what is in hand is answered, for five seconds. `ready` is called once before that.

    Raises `ServingRefused` where certificate and key are of no use.
    """
    config = uvicorn.Config(
        make_app(access, policy=policy),
        log_config=None,
        http="h11",  # which bounds the size of headers
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        server_header=False,
        proxy_headers=policy.behind_proxy,  # from the addresses that FORWARDED_ALLOW_IPS names
        timeout_graceful_shutdown=5,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ServingRefused(detail=f"{certificate} and {key} cannot be used for HTTPS: {first_line(error)}.") from None
    ready()
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that ended it
        uvicorn.Server(config).run([listener])
