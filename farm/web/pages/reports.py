"""A campaign's report in the browser, with links back to the pages; saved as a file, without them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from farm.api import campaigns, reports
from farm.web.pages.campaigns import path_of
from farm.web.pages.rendering import Visiting, linked
from farm.web.routes import OF_REPORTS, ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)


@router.get("/campaigns/{campaign}/report", name="report")
@runs(reports.page)
def show(
    visit: Visiting,
    campaign: str,
    type: Annotated[str, Query()] = "",  # noqa: A002
    save: Annotated[bool, Query()] = False,
) -> Response:
    head = visit.ask(campaigns.progress, campaign)
    here = path_of(head.digest)
    links = {
        "Campaigns": "/",
        head.name: here,
        "Save as a file": linked(f"{here}/report", {"type": type, "save": "true"}),
    }
    page = reports.cached_page(visit.access, head.digest, device_type=type or None, links={} if save else links)
    headers = {"Content-Security-Policy": OF_REPORTS}
    if save:
        headers["Content-Disposition"] = f'attachment; filename="{head.name}-{head.digest[:8]}.html"'
    return HTMLResponse(page, headers=headers)
