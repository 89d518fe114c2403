"""The audit: who changed what, when and from where."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import audit
from farm.web.pages.rendering import Visiting, linked

router = APIRouter()

PAGE = 50


@router.get("/audit", name="audit")
def list_(
    visit: Visiting,
    who: Annotated[str, Query()] = "",
    what: Annotated[str, Query()] = "",
    on: Annotated[str, Query()] = "",
    since: Annotated[str, Query()] = "",
    before: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    found = visit.ask(
        audit.list_,
        who=who or None,
        what=what or None,
        on=on or None,
        since=since or None,
        before=before,
        limit=PAGE + 1,
    )
    shown = found[:PAGE]
    asked = {"who": who, "what": what, "on": on, "since": since}
    return visit.show(
        "audit.html",
        changes=shown,
        asked=asked,
        export=linked("/api/v1/audit/export", asked),
        first=linked("/audit", asked) if before is not None else None,
        following=linked("/audit", {**asked, "before": shown[-1].id}) if len(found) > PAGE else None,
    )
