"""Measurements over time: of all devices, of one device, or of a campaign."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from farm.api import campaigns, series
from farm.web.pages.campaigns import path_of
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visit, Visiting
from farm.web.pages.series_charts import charts
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

RANGES = {"": "all", "1h": "hour", "6h": "6 hours", "24h": "day", "7d": "week", "31d": "31 days"}
"""Ranges that links offer. All: from the beginning of a campaign to its end."""

_FIELDS = ("device", "since", "until", "steps")


@router.get("/devices/series", name="series")
@runs(series.show)
def of_devices(visit: Visiting) -> Response:
    form = Form(series.show, visit.request.query_params, fields=_FIELDS)
    return _shown(visit, form, here="/devices/series", campaign=None)


@router.get("/campaigns/{campaign}/series", name="campaign_series")
@runs(series.show)
def of_campaign(visit: Visiting, campaign: str) -> Response:
    head = visit.ask(campaigns.progress, campaign)
    form = Form(series.show, visit.request.query_params, fields=_FIELDS)
    return _shown(visit, form, here=f"{path_of(head.digest)}/series", campaign=head)


def _shown(visit: Visit, form: Form, *, here: str, campaign: Any) -> Response:
    more = {} if campaign is None else {"campaign": campaign.digest}
    found, wrong = visit.ask_form(series.show, form, **more)
    return visit.show(
        "series.html",
        campaign=campaign,
        campaign_path=None if campaign is None else path_of(campaign.digest),
        here=here,
        form=form,
        ranges={since: name for since, name in RANGES.items() if since or campaign is not None},
        chosen=None if "until" in form.values else form.values.get("since", "6h" if campaign is None else ""),
        found=found,
        charts=[] if found is None else charts(found),
        wrong=wrong,
    )
