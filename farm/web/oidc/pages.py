"""The pages of a sign-in with a provider: to it, back from it, and out of it."""

from __future__ import annotations

import logging
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from farm.api.access import Access
from farm.db import oidc_users
from farm.db.web_sessions import SessionHolder
from farm.errors import FarmError, first_line
from farm.web import errors
from farm.web.cookies import Origin
from farm.web.oidc.configuration import Configuration
from farm.web.oidc.errors import NoRole, NoSignOut, SignInLost, SignInRefused, WrongPublicUrl
from farm.web.oidc.flow import MINUTES, Flow, FlowCookie
from farm.web.oidc.provider import Provider, error_code
from farm.web.pages.error_pages import readable
from farm.web.pages.signing import inside, require_origin, start_session
from farm.web.security import Policy

log = logging.getLogger(__name__)

router = APIRouter(prefix="/oidc", include_in_schema=False)

MAX_CODE = 4096
"""Maximum characters of an authorization code."""

MAX_PATH = 1500
"""Maximum characters of the path to open after signing in, since browsers limit the size of a cookie."""

_SHOWN_GROUPS = 20


@router.get("/sign-in")
def sign_in(request: Request, next: str = "/", moved: bool = False) -> Response:  # noqa: A002
    """Sends the browser to the provider. `moved`: it was sent here from another address of this farm."""
    require_origin(request)
    configuration, provider, cookie = _parts(request)
    if Origin.of(request) != configuration.origin:
        # The cookie would not reach the address to which the provider sends the browser back.
        if moved:
            raise WrongPublicUrl(url=configuration.url, seen=Origin.of(request))
        return RedirectResponse(
            f"{configuration.url}/oidc/sign-in?{urlencode({'next': inside(next), 'moved': 1})}", 303
        )
    flow = Flow.begin(inside(next)[:MAX_PATH])
    answer = RedirectResponse(provider.authorization_url(flow), 303)
    cookie.set(answer, flow)
    return answer


@router.get("/callback")
def callback(request: Request, state: str = "", code: str = "", error: str = "", iss: str | None = None) -> Response:
    """Takes the browser back from the provider, and signs it in."""
    require_origin(request)
    cookie = _parts(request)[2]
    if (flow := cookie.flow_of(request, state)) is None:
        raise SignInLost(minutes=MINUTES)
    try:
        answer = _completed(request, flow, code=code, error=error, issuer=iss)
    except FarmError as refused:
        log.warning("no sign-in through the provider: %s", first_line(refused))
        answer = readable(request, errors.of_farm(refused))
    cookie.delete(answer)  # once
    return answer


def _completed(request: Request, flow: Flow, *, code: str, error: str, issuer: str | None) -> Response:
    configuration, provider, _ = _parts(request)
    if error or not code or len(code) > MAX_CODE:
        raise SignInRefused(name=configuration.name, why=error_code(error) or "it sent no code")
    identity = provider.identify(code, flow, issuer=issuer)
    role = configuration.role_of(identity.groups)
    if role is None:
        raise NoRole(name=configuration.name, groups=_listed(identity.groups))
    access: Access = request.app.state.access
    with access.session.engine.begin() as connection:
        name = oidc_users.name_of(connection, configuration.issuer, identity.subject, identity.names)
    holder = SessionHolder(login=name, issuer=configuration.issuer, subject=identity.subject)
    log.info("%s is signed in through %s, with the role %s", name, configuration.issuer, role)
    return start_session(request, holder, flow.after, role=role, at_most=configuration.session)


def _listed(groups: tuple[str, ...]) -> str:
    if not groups:
        return "none. The provider sends them in the claim that FARM_OIDC_GROUPS_CLAIM names"
    more = f" and {len(groups) - _SHOWN_GROUPS:,} more" if len(groups) > _SHOWN_GROUPS else ""
    return ", ".join(groups[:_SHOWN_GROUPS]) + more


@router.get("/sign-out")
def sign_out(request: Request) -> Response:
    """Sends the browser to where the provider ends its own session."""
    configuration, provider, _ = _parts(request)
    if (url := provider.end_session_url()) is None:
        raise NoSignOut(name=configuration.name)
    return RedirectResponse(url, 303)


def _parts(request: Request) -> tuple[Configuration, Provider, FlowCookie]:
    policy: Policy = request.app.state.policy
    assert policy.oidc is not None
    return policy.oidc, request.app.state.provider, request.app.state.flow_cookie
