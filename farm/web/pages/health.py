"""The health of the fleet: a verdict for each device, its evidence, since when, and what to do."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from farm.api import health
from farm.compare.health.finding_messages import since_text
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visiting

router = APIRouter()


@router.get("/health", name="health")
def show(visit: Visiting) -> Response:
    form = Form(health.show, visit.request.query_params, fields=("type", "host", "since", "any_source"))
    found, wrong = visit.ask_form(health.show, form)
    return visit.show("health.html", found=found, wrong=wrong, form=form, since_text=since_text)
