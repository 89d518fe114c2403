"""`farm serve`: the web page and the API."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.api.access import Access
from farm.cli.output import remarks
from farm.db import tokens as known_tokens
from farm.db.engine import ASKING
from farm.db.states import ProgramKind
from farm.errors import ServingRefused, WebMissing
from farm.logs import set_up_logging
from farm.services.registering import registered
from farm.services.served import announced, own_name
from farm.services.session import Session, session
from farm.settings import settings
from farm.system_account import login_name

if TYPE_CHECKING:
    from farm.web.security import Policy

NEEDED = ("authlib", "fastapi", "jinja2", "markdown_it", "plotly", "python_multipart", "uvicorn")
"""A module of the extra `web`."""

_LOCALHOST = ("127.0.0.1", "::1")
"""The addresses to which browsers resolve names below `localhost`."""


def serve(
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    tokens: Annotated[
        bool | None,
        typer.Option(
            "--tokens/--no-tokens",
            help="Give access to users with a token, made with farm tokens create; or, without, to every account and program of this machine.",
            show_default="only you",
        ),
    ] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="Accept requests of a proxy that serves HTTPS. Other machines must reach the farm through it alone.",
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

    By default only you have access, and you can do everything. A link that works once signs your browser in, and farm open
    makes another. Your other commands find a key in the farm's home. With --tokens others have access too, each with a
    token for the role read, submit or operate. A --host other than loopback needs --tokens, and a certificate or a proxy
    that has one.

    Examples:
        farm serve
        farm serve --host 0.0.0.0 --port 8443 --tokens --behind-proxy
        farm serve --no-tokens
    """
    if not all(importlib.util.find_spec(name) for name in NEEDED):
        raise WebMissing
    from farm.tracing import running
    from farm.web import measured, serving
    from farm.web.app import MAX_THREADS
    from farm.web.oidc.configuration import configured

    if (certificate is None) is not (key is None):
        raise ServingRefused(detail="--certificate and --key go together.")
    if behind_proxy and not tokens:
        raise ServingRefused(detail="--behind-proxy lets other machines in, so it needs --tokens.")
    oidc = configured(settings())
    if oidc is not None and not tokens:
        raise ServingRefused(detail="FARM_OIDC_ISSUER lets other people in, so it needs --tokens.")
    encrypted = certificate is not None or behind_proxy
    serving.require_safe(host, tokens=bool(tokens), encrypted=encrypted)
    with (
        serving.listening(host, port) as listener,
        session(statements=ASKING, connections=MAX_THREADS) as opened,
    ):
        shown, taken = listener.getsockname()[:2]
        serving.require_safe(shown, tokens=bool(tokens), encrypted=encrypted)  # whatever the name was resolved to
        scheme = "http" if certificate is None else "https"
        address = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{taken}"
        set_up_logging(opened.settings, "serve")
        policy = _policy(opened, tokens, behind_proxy=behind_proxy, isolated=scheme == "http" and shown in _LOCALHOST)
        policy = replace(policy, oidc=oidc)
        page = address if policy.own_name is None else f"{scheme}://{policy.own_name}:{taken}"
        own_key = None if policy.local is None else policy.local.key
        with (
            closing(Access(settings(), who="the web page", opened=opened)) as access,
            measured.served(opened.settings) as metrics,
            running(opened.settings, "web"),
            announced(opened.settings, address, page=page, key=own_key),
            registered(opened.urls.database_url, ProgramKind.SERVE),
        ):
            serving.serve(
                access,
                listener,
                policy=policy,
                certificate=certificate,
                key=key,
                metrics=metrics,
                ready=lambda: _say(address, page, opened, policy),
            )


def _policy(opened: Session, tokens: bool | None, *, behind_proxy: bool, isolated: bool) -> Policy:
    """`isolated`: whether browsers get a name of loopback that only they know."""
    from farm.web.cookies import new_own_name
    from farm.web.local_access import LocalAccess
    from farm.web.security import Policy

    if tokens is False:
        return Policy(tokens=False)
    name = own_name(opened.settings, new_own_name()) if isolated or tokens is None else None
    local = None
    if tokens is None:
        assert name is not None
        local = LocalAccess(login_name() or "the owner of the farm", issuer=name)
    return Policy(tokens=True, behind_proxy=behind_proxy, local=local, own_name=name if isolated else None)


def _say(address: str, page: str, opened: Session, policy: Policy) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    if not policy.tokens:
        remarks.print("Every account and program of this machine has access, and may do everything under any name.")
    elif policy.local is None:
        remarks.print("Users with a token have access.")
        if policy.oidc is not None:
            remarks.print(f"{policy.oidc.name} signs browsers in at {policy.oidc.url}/login.", markup=False)
        with opened.engine.connect() as connection:
            if policy.oidc is None and not any(token.valid for token in known_tokens.list_tokens(connection)):
                remarks.print(
                    "No token is valid yet, so no one can sign in. The owner of the tables makes one: "
                    "farm tokens create NAME --role operate"
                )
        if page != address:
            # The name is for browsers of this account; a log may be read by others.
            remarks.print(f"In a browser: {page if sys.stderr.isatty() else 'farm open'}", markup=False)
    elif sys.stderr.isatty():
        code = policy.codes.make(policy.local.holder)
        remarks.print(
            "Only you have access. This link signs your browser in once, within 10 minutes; farm open makes another:"
        )
        remarks.print(f"{page}/sign-in?code={code}", markup=False)
    else:
        remarks.print(
            "Only you have access: farm open signs your browser in, and farm open --print prints a link that does."
        )
    remarks.print(f"The API is described at {address}/api/v1/openapi.json. Ctrl-C ends the server.", markup=False)
