"""Signing in with a token, and out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from farm.api.access import Access
from farm.db import tokens
from farm.web.pages import said
from farm.web.pages.rendering import HTML, rendered
from farm.web.security import COOKIE, Policy

router = APIRouter()

SIGNED_IN_SECONDS = 30 * 24 * 3600


def _inside(path: str) -> str:
    """A path of this farm; the first page for everything else, so that nobody is led elsewhere after signing in."""
    begins_well = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if begins_well and path.isprintable() and path.isascii() else "/"


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:  # noqa: A002
    policy: Policy = request.app.state.policy
    if not policy.tokens:
        return RedirectResponse("/", 303)
    return _form(request, _inside(next))


@router.post("/login")
def sign_in(
    request: Request,
    token: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002
) -> Response:
    access: Access = request.app.state.access
    with access.begin() as connection:
        found = tokens.bearer(connection, token.strip())
    if found is None:
        return _form(request, _inside(next), refused=True)
    answer = RedirectResponse(_inside(next), 303)
    answer.set_cookie(
        COOKIE,
        token.strip(),
        max_age=SIGNED_IN_SECONDS,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
def sign_out() -> Response:
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
    said.say(answer, "signed-out", 0)
    return answer


def _form(request: Request, after: str, *, refused: bool = False) -> Response:
    context: dict[str, Any] = {
        "after": after,
        "refused": refused,
        "request": request,
        "caller": None,
        "said": said.heard(request),
    }
    answer = Response(rendered("login.html", **context), 401 if refused else 200, media_type=HTML)
    said.forget(answer)
    return answer
