"""The audit: who changed what, when and from where."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import audit
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visiting, linked

router = APIRouter()

PAGE = 50


@router.get("/audit", name="audit")
def list_(visit: Visiting, before: Annotated[int | None, Query(ge=0)] = None) -> Response:
    form = Form(audit.list_, visit.request.query_params, fields=("who", "what", "on", "since"))
    found = visit.ask(audit.list_, **form.arguments(audit.list_, before=before, limit=PAGE + 1))
    shown = found[:PAGE]
    return visit.show(
        "audit.html",
        changes=shown,
        form=form,
        export=linked("/api/v1/audit/export", form.values),
        first=linked("/audit", form.values) if before is not None else None,
        following=linked("/audit", {**form.values, "before": shown[-1].id}) if len(found) > PAGE else None,
    )
