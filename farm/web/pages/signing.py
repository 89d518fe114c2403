"""Signing in with a token or a link, signing out, and the caller's own sessions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from farm.api.access import Access
from farm.db import tokens, web_sessions
from farm.db.states import Role
from farm.db.web_sessions import SessionHolder
from farm.errors import BadInput, SignInNeeded
from farm.web.cookies import Origin
from farm.web.local_access import LINK_SECONDS
from farm.web.pages import flash
from farm.web.pages.rendering import HTML, Visiting, rendered
from farm.web.routes import who
from farm.web.security import Policy, session_of

router = APIRouter()

_WRONG_TOKEN = "This token is unknown, expired or revoked."
_WRONG_LINK = "This link was used before, has expired, or is of another start of the server."


class OldBrowser(BadInput):
    """This browser does not say where its requests come from (Sec-Fetch-Site), so it cannot be signed in. Use one of 2023 or later."""


def inside(path: str) -> str:
    """A path of this farm to open after signing in; the start page instead of any other address."""
    begins_well = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if begins_well and path.isprintable() and path.isascii() else "/"


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:  # noqa: A002
    policy: Policy = request.app.state.policy
    if not policy.tokens:
        return RedirectResponse("/", 303)
    return _form(request, inside(next))


@router.post("/login")
def sign_in(
    request: Request,
    token: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002
) -> Response:
    access: Access = request.app.state.access
    with access.session.engine.begin() as connection:
        found = tokens.bearer(connection, token.strip())
    if found is None:
        return _form(request, inside(next), refused=_WRONG_TOKEN)
    return start_session(request, SessionHolder(token_id=found.id), inside(next))


@router.get("/sign-in")
def sign_in_by_link(request: Request, code: str, next: str = "/") -> Response:  # noqa: A002
    policy: Policy = request.app.state.policy
    if not policy.tokens:
        return RedirectResponse(inside(next), 303)
    require_origin(request)  # before the code is used up
    holder = policy.codes.redeem(code)
    if holder is None:
        return _form(request, inside(next), refused=_WRONG_LINK)
    return start_session(request, holder, inside(next))


@router.post("/sign-in/codes")
def make_code(request: Request) -> Response:
    """A code for a link that signs a browser in as the caller: for `farm open`. A session gets no code, which would prolong it."""
    policy: Policy = request.app.state.policy
    asking = who(request)
    if asking.holder is None:
        return JSONResponse({"code": None})
    if asking.session_id is not None:
        raise SignInNeeded
    return JSONResponse({"code": policy.codes.make(asking.holder), "seconds": LINK_SECONDS})


def require_origin(request: Request) -> None:
    """Raises `OldBrowser`."""
    if "sec-fetch-site" not in request.headers:
        raise OldBrowser


def start_session(
    request: Request,
    holder: SessionHolder,
    after: str,
    *,
    role: Role | None = None,
    at_most: timedelta = timedelta.max,
) -> Response:
    """Starts a new session. The browser's previous session ends.

    Args:
        request: of the browser.
        holder: whose session it is.
        after: the path to open then.
        role: of a holder that an OpenID provider signed in.
        at_most: when the session ends at latest.
    """
    require_origin(request)
    access: Access = request.app.state.access
    origin = Origin.of(request)
    address = "" if request.client is None else request.client.host
    browser = request.headers.get("user-agent", "")
    limits = replace(origin.limits, absolute=min(origin.limits.absolute, at_most))
    with access.session.engine.begin() as connection:
        if (before := session_of(request, origin)) is not None:
            web_sessions.end(connection, before)
        made = web_sessions.create(
            connection, holder, origin=str(origin), address=address, browser=browser, limits=limits, role=role
        )
    answer = RedirectResponse(after, 303)
    origin.set_cookie(answer, made)
    return answer


@router.post("/logout")
def sign_out(request: Request) -> Response:
    origin = Origin.of(request)
    if (session := session_of(request, origin)) is not None:
        access: Access = request.app.state.access
        with access.session.engine.begin() as connection:
            web_sessions.end(connection, session)
    return _signed_out(origin)


def _signed_out(origin: Origin) -> Response:
    answer = RedirectResponse("/login", 303)
    origin.delete_cookie(answer)
    flash.set_message(answer, "signed-out", 0)
    return answer


@router.get("/sessions", name="sessions")
def sessions(visit: Visiting) -> Response:
    """The caller's own sessions."""
    holder = visit.caller.holder
    if holder is None:
        return RedirectResponse("/", 303)
    with visit.access.connect() as connection:
        found = web_sessions.own(connection, holder)
    return visit.show("sessions.html", sessions=found)


@router.post("/sessions/end")
def end_sessions(visit: Visiting, session: Annotated[int | None, Form()] = None) -> Response:
    """Ends one of the caller's own sessions, or all of them if none is named."""
    holder = visit.caller.holder
    if holder is None:
        return RedirectResponse("/", 303)
    with visit.access.session.engine.begin() as connection:
        ended = web_sessions.end_own(connection, holder, session)
    if session in (None, visit.caller.session_id):
        return _signed_out(Origin.of(visit.request))
    return visit.go("/sessions", "ended" if ended else "unchanged", ended)


def _form(request: Request, after: str, *, refused: str | None = None) -> Response:
    policy: Policy = request.app.state.policy
    context: dict[str, Any] = {
        "after": after,
        "refused": refused,
        "request": request,
        "caller": None,
        "local": policy.local is not None,
        "provider": None if policy.oidc is None else policy.oidc.name,
        "said": flash.message_in(request),
    }
    answer = Response(rendered("login.html", **context), 401 if refused else 200, media_type=HTML)
    flash.clear(answer)
    return answer
