"""Access control: callers, allowed ways of requests, and security headers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy import Engine
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.addresses import is_loopback
from farm.db import tokens, web_sessions
from farm.db.states import Role
from farm.db.tokens import Bearer
from farm.db.web_sessions import SessionHolder
from farm.errors import RoleTooSmall, SignInNeeded, TooManyRequests
from farm.web.cookies import Origin
from farm.web.errors import error_document, of_farm
from farm.web.limits import MAX_BODY_BYTES
from farm.web.local_access import LocalAccess, SignInCodes
from farm.web.places import Place, Places

if TYPE_CHECKING:
    from farm.web.oidc.configuration import Configuration

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
_DEFAULT_PORTS = {"http": 80, "https": 443}

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
"""Headers of every response that does not set them itself."""


@dataclass(frozen=True)
class Policy:
    """Which requests the server accepts."""

    tokens: bool
    """Whether a token or a session is required. If not, the server responds only to names of this machine."""

    behind_proxy: bool = False
    """Whether a proxy with the certificate is in front of the server."""

    local: LocalAccess | None = None
    """Access without a token for the login that runs the server."""

    oidc: Configuration | None = None
    """The OpenID provider that signs browsers in, in addition to tokens."""

    own_name: str | None = None
    """A host name of loopback that only this farm's browsers know: see `cookies`."""

    codes: SignInCodes = field(default_factory=SignInCodes)

    def refusal(self, scheme: str, headers: Headers) -> tuple[str, str] | None:
        """The kind and the message of why a request's way is refused; None if it is accepted."""
        host = headers.get("host", "")
        name = _name_of(host) or ""
        proxied = any(one in headers for one in _OF_PROXIES)
        if not self.tokens:
            if not is_loopback(name):
                return "WrongHost", f"This farm answers to localhost alone, and was asked as {host!r}.{_WITH_TOKENS}"
            if proxied:
                return (
                    "ThroughProxy",
                    f"This farm answers to programs of this machine, and not to a proxy.{_WITH_TOKENS}",
                )
            return None
        if proxied and not self.behind_proxy:
            return "ThroughProxy", "A proxy sent this request. farm serve --tokens --behind-proxy accepts that."
        if scheme != "https" and not is_loopback(name) and name != self.own_name:
            return "NotEncrypted", _NOT_ENCRYPTED + (_PROXY_SAYS if self.behind_proxy else _WITH_CERTIFICATE)
        return None


_WITH_TOKENS = " farm serve --tokens lets others in."
_NOT_ENCRYPTED = "This request came over plain HTTP, so that others can read the token or session in it. Use HTTPS: "
_WITH_CERTIFICATE = "farm serve --tokens --certificate FILE --key FILE."
_PROXY_SAYS = "the proxy must send X-Forwarded-Proto: https, from an address that FORWARDED_ALLOW_IPS names (WEB_PROXY in Compose)."


class Guard:
    """Wraps the whole application. Refuses requests from pages of other sites, requests through a proxy or over plain HTTP
    that `Policy` does not accept, and bodies that are too large for every operation.

    A page of another site can make a browser send requests here, with its cookies. Browsers say where a request comes
    from, in Sec-Fetch-Site or Origin, and programs that are no browsers send neither (as net/http.CrossOriginProtection
    of Go has it). A foreign name that points to this machine (DNS rebinding) is refused by its Host.
    """

    def __init__(self, app: ASGIApp, *, policy: Policy) -> None:
        self._app = app
        self._policy = policy
        self._places = Places(reserve=policy.tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _with_headers(send)
        if (refused := self._refusal(scope, Headers(scope=scope))) is not None:
            await refused(scope, receive, sender)
            return
        try:
            place = self._places.take(scope, receive)
        except TooManyRequests as error:
            await of_farm(error)(scope, receive, sender)
            return
        try:
            await self._app(scope, place.receive, _noting(place, sender))
        finally:
            self._places.give_back(place)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        if (wrong := self._policy.refusal(scope.get("scheme", "http"), headers)) is not None:
            return _refused(421, *wrong)
        if _from_another_site(scope["method"], headers, headers.get("host", "")):
            return _refused(403, "CrossOrigin", "This request comes from a page of another site.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > MAX_BODY_BYTES:
            return _refused(413, "TooLarge", TOO_LARGE)
        return None


TOO_LARGE = f"A body may have {MAX_BODY_BYTES:,} bytes."


def _refused(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse(error_document(kind, message, 2), status)


def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _from_another_site(method: str, headers: Headers, host: str) -> bool:
    """Whether a page of another site made a browser send the request. Such a page may link here, and load nothing."""
    if (site := headers.get("sec-fetch-site")) is not None:
        linked = method in _SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate"
        return site not in ("same-origin", "none") and not linked
    if method in _SAFE_METHODS or (origin := headers.get("origin")) is None:
        return False
    return not _same_place(origin, host)


def _same_place(origin: str, host: str) -> bool:
    """Whether an origin has that host and port. A server behind a proxy does not know the scheme."""
    try:
        there, here = urlsplit(origin), urlsplit(f"//{host}")
        usual = _DEFAULT_PORTS.get(there.scheme)
        same_port = (there.port or usual) == (here.port or usual)
    except ValueError:
        return False
    return usual is not None and there.hostname is not None and there.hostname == here.hostname and same_port


def _noting(place: Place, send: Send) -> Send:
    async def sender(message: Message) -> None:
        place.answered = True
        await send(message)

    return sender


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
    """Who sent a request, and with which role."""

    name: str
    role: Role
    token: Bearer | None = None
    """The token of the request or of its session."""
    holder: SessionHolder | None = None
    """The holder of the caller's sessions; None if the server requires no sign-in."""
    session_id: int | None = None
    """The session of the browser."""

    def need(self, role: Role) -> None:
        """Raises `RoleTooSmall`."""
        if not self.role.may(role):
            raise RoleTooSmall(name=self.name, role=self.role, needed=role)


def caller(request: Request, policy: Policy, engine: Engine) -> Caller:
    """The caller, by the token or key in Authorization, or by the session cookie. Raises `SignInNeeded`."""
    if not policy.tokens:
        name = request.headers.get("x-farm-user", "")[:100]
        return Caller(name if name.isprintable() and name else "the web page", Role.OPERATE)
    if (given := _given(request)) is not None:
        return _with_token(given, policy, engine)
    origin = Origin.of(request)
    if (session := session_of(request, origin)) is None:
        raise SignInNeeded
    issuer = None if policy.local is None else policy.local.issuer
    provider = None if policy.oidc is None else policy.oidc.issuer
    with engine.begin() as connection:
        found = web_sessions.visitor(connection, session, origin=str(origin), issuer=issuer, provider=provider)
    if found is None:
        raise SignInNeeded
    return Caller(found.name, found.role, found.token, found.holder, found.session_id)


def _with_token(given: str, policy: Policy, engine: Engine) -> Caller:
    if policy.local is not None and policy.local.has_key(given):
        return Caller(policy.local.login, Role.ADMIN, holder=policy.local.holder)
    with engine.begin() as connection:
        found = tokens.bearer(connection, given)
    if found is None:
        raise SignInNeeded
    return Caller(found.name, found.role, found, SessionHolder(token_id=found.id))


def _given(request: Request) -> str | None:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return (credentials.strip() or None) if scheme.lower() == "bearer" else None


def session_of(request: Request, origin: Origin) -> str | None:
    """The id of a browser's session, from its cookie. Requests without Sec-Fetch-Site have none: programs use tokens."""
    if "sec-fetch-site" not in request.headers:
        return None
    return request.cookies.get(origin.cookie) or None
