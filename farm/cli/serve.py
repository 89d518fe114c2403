"""`farm serve`: the web page and the API."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from farm.api.access import Access
from farm.cli.output import remarks
from farm.db import tokens as known_tokens
from farm.db.engine import ASKING
from farm.errors import ServingRefused, WebMissing
from farm.logs import set_up_logging
from farm.services.served import announced
from farm.services.session import session
from farm.settings import settings

NEEDED = ("fastapi", "jinja2", "markdown_it", "plotly", "python_multipart", "uvicorn")
"""What the extra `web` brings."""


def serve(
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Ask for a token, made with farm tokens create: for any address beyond this machine, and behind a proxy.",
            show_default=False,
        ),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", help="Serve HTTPS with this certificate chain (PEM).", exists=True, dir_okay=False
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="The certificate's private key (PEM).", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Serve the web page and the API, until Ctrl-C.

    Only this machine is let in, and everybody on it may do everything. --tokens asks each for a token, which says who may
    read, submit or operate; it is needed for every other --host.

    Examples:
        farm serve
        farm serve --host 0.0.0.0 --port 8443 --tokens
    """
    if not all(importlib.util.find_spec(name) for name in NEEDED):
        raise WebMissing
    from farm.web import serving
    from farm.web.app import AT_A_TIME

    if (certificate is None) is not (key is None):
        raise ServingRefused(detail="--certificate and --key go together.")
    serving.require_safe(host, tokens=tokens)
    with (
        serving.listening(host, port) as listener,
        session(statements=ASKING, connections=AT_A_TIME) as opened,
    ):
        if tokens:
            with opened.engine.connect() as connection:
                if not any(token.valid for token in known_tokens.known(connection)):
                    remarks.print("No token is valid yet, so nobody is let in: farm tokens create NAME --role operate")
        shown, taken = listener.getsockname()[:2]
        serving.require_safe(shown, tokens=tokens)  # whatever the name was resolved to
        scheme = "http" if certificate is None else "https"
        address = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{taken}"
        set_up_logging(opened.settings, "serve")
        with (
            closing(Access(settings(), who="the web page", opened=opened)) as access,
            announced(opened.settings, address),
        ):
            serving.serve(
                access,
                listener,
                tokens=tokens,
                certificate=certificate,
                key=key,
                ready=lambda: _say(address, tokens=tokens),
            )


def _say(address: str, *, tokens: bool) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    rest = "whoever has a token" if tokens else "everybody on this machine, and nobody else"
    remarks.print(
        f"The farm is served to {rest}; its API is described at {address}/api/v1/openapi.json. Ctrl-C ends it."
    )
