"""The pages put into the application, and errors as pages where a browser asked."""

from __future__ import annotations

import json
from functools import cache
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from farm.web.pages import (
    assets,
    audit,
    campaigns,
    comparing,
    deletions,
    description,
    devices,
    event_stream,
    health,
    models,
    over_time,
    plans,
    predicted_costs,
    reports,
    results,
    schemas,
    signing,
    submitting,
)
from farm.web.pages.rendering import HTML, is_update, rendered

PAGES = (
    campaigns,
    deletions,
    submitting,
    results,
    reports,
    devices,
    event_stream,
    health,
    comparing,
    predicted_costs,
    plans,
    over_time,
    models,
    audit,
    description,
    signing,
    schemas,
    assets,
)

_TITLES = {
    400: "Bad request",
    401: "Sign in",
    403: "Not allowed",
    404: "Not found",
    422: "Invalid request",
    500: "Internal error",
    503: "Service unavailable",
}


@cache
def routes_of_pages() -> APIRouter:
    """Every page. They are no part of the API's description. Applications of one process share the routes."""
    router = APIRouter(include_in_schema=False)
    for page in PAGES:
        router.include_router(page.router)
    return router


def readable(request: Request, answer: JSONResponse) -> Response:
    """An error as a page for a browser, and as JSON for a program."""
    if request.url.path.startswith("/api/") or (
        HTML not in request.headers.get("accept", "") and not is_update(request)
    ):
        return answer
    if answer.status_code == 401:
        return _to_sign_in(request)
    error = json.loads(bytes(answer.body))["error"]
    title = _TITLES.get(answer.status_code, "Something went wrong")
    page = rendered("error.html", title=title, error=error, status=answer.status_code, request=request, caller=None)
    return Response(page, answer.status_code, media_type=HTML)


def _to_sign_in(request: Request) -> Response:
    """A page that keeps itself fresh is sent there as a whole."""
    if is_update(request):
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    after = f"?next={quote(where)}" if request.method == "GET" and where != "/" else ""
    return RedirectResponse(f"/login{after}", 303)
