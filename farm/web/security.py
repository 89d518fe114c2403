"""Who is let in, from where, and what a browser may do with what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy import Engine
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.db import tokens
from farm.db.tables import Role
from farm.db.tokens import Bearer
from farm.errors import RoleTooSmall, SignInNeeded
from farm.web.errors import told

COOKIE = "farm_token"
LARGEST_BODY_BYTES = 20 * 2**20
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

HEADERS = {
    # Plotly and htmx style their elements by themselves.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of each answer, unless it says otherwise itself."""


@dataclass(frozen=True)
class Policy:
    """Whether tokens are asked for. Without them, only names of this machine are answered to."""

    tokens: bool


class Guard:
    """Around the whole application: refuses requests of other sites' pages, and bodies beyond all measure.

    A page of another site can make a browser send requests here, with its cookies. Browsers say where a request comes
    from, in Sec-Fetch-Site or Origin, and programs that are no browsers send neither (as net/http.CrossOriginProtection
    of Go has it). A name of somebody else's that points to this machine (DNS rebinding) is refused by its Host.
    """

    def __init__(self, app: ASGIApp, *, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        sender = _with_headers(send)
        if (refused := self._refusal(scope["method"], headers)) is not None:
            await refused(scope, receive, sender)
            return
        await self._app(scope, _limited(receive), sender)

    def _refusal(self, method: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if not self._policy.tokens and _name_of(host) not in LOOPBACK:
            message = (
                f"This farm answers to localhost alone, and was asked as {host!r}: farm serve --tokens lets others in."
            )
            return JSONResponse(told("WrongHost", message, 2), 421)
        if method not in _SAFE_METHODS and not _same_origin(headers, host):
            return JSONResponse(told("CrossOrigin", "This request comes from a page of another site.", 2), 403)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST_BODY_BYTES:
            return JSONResponse(told("TooLarge", f"A body may have {LARGEST_BODY_BYTES:,} bytes.", 2), 413)
        return None


def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _same_origin(headers: Headers, host: str) -> bool:
    if (site := headers.get("sec-fetch-site")) is not None:
        return site in ("same-origin", "none")
    if (origin := headers.get("origin")) is not None:
        return urlsplit(origin).netloc == host
    return True


def _limited(receive: Receive) -> Receive:
    """Bodies without a length are cut off where they get too long: the request ends there."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > LARGEST_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sender


@dataclass(frozen=True)
class Caller:
    """Who asks, and what that allows."""

    name: str
    role: Role
    # How a page greets; None where no token is asked for.
    token: Bearer | None = None

    def need(self, role: Role) -> None:
        """Raises `RoleTooSmall`."""
        if not self.role.may(role):
            raise RoleTooSmall(name=self.name, role=self.role, needed=role)


def caller(request: Request, policy: Policy, engine: Engine) -> Caller:
    """Who asks: by the token in Authorization, or in the cookie that signing in sets. Raises `SignInNeeded`."""
    if not policy.tokens:
        name = request.headers.get("x-farm-user", "")[:100]
        return Caller(name if name.isprintable() and name else "the web page", Role.OPERATE)
    given = _given(request)
    if given is None:
        raise SignInNeeded
    with engine.begin() as connection:
        found = tokens.bearer(connection, given)
    if found is None:
        raise SignInNeeded
    return Caller(found.name, found.role, found)


def _given(request: Request) -> str | None:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    cookies = SimpleCookie(request.headers.get("cookie", ""))
    return cookies[COOKIE].value if COOKIE in cookies else None
