"""Campaigns: the list, and one of them while it runs."""

from __future__ import annotations

from typing import Annotated

import fastapi
import yaml
from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import campaigns, devices, jobs
from farm.api.campaigns import CampaignNow
from farm.api.jobs import Choice
from farm.campaign.strategies import search_model
from farm.db.states import CampaignState
from farm.errors import BadInput
from farm.web.pages import chart_data
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visit, Visiting, linked, segment

router = APIRouter()

PAGE = 50
UNFINISHED = "unfinished"
_STATES = {"": None, UNFINISHED: [CampaignState.ACTIVE, CampaignState.PAUSED], **{s.value: [s] for s in CampaignState}}


@router.get("/", name="campaigns")
def list_(visit: Visiting, state: str = "", before: Annotated[int | None, Query(ge=0)] = None) -> Response:
    if state not in _STATES:
        raise BadInput(detail=f"Unknown state {state!r}. States: {', '.join(filter(None, _STATES))}.")
    form = Form(campaigns.list_, visit.request.query_params, fields=("owner", "search"))
    query = form.arguments(campaigns.list_, state=_STATES[state], before=before, limit=PAGE + 1)
    found = visit.ask_shared(campaigns.list_, **query)
    shown = found[:PAGE]
    asked = {**({"state": state} if state else {}), **form.values}
    return visit.show(
        "campaigns.html",
        campaigns=shown,
        form=form,
        asked=asked,
        states=[name for name in _STATES if name],
        first=linked("/", asked) if before is not None else None,
        following=linked("/", {**asked, "before": shown[-1].id}) if len(found) > PAGE else None,
        here=linked("/", {**asked, "before": before}),
        counted=visit.ask_shared(devices.counts),
    )


@router.get("/campaigns/{campaign}", name="campaign")
def show(visit: Visiting, campaign: str) -> Response:
    found = visit.ask_shared(campaigns.show, campaign)
    return visit.show(
        "campaign.html",
        campaign=found,
        steerable=visit.owns(found.owner),
        here=path_of(found.digest),
        total=sum(found.counts.values()),
        commands=_commands(visit, found),
        text=yaml.safe_dump(found.document, sort_keys=False, allow_unicode=True, width=100),
        # Its chart may appear while somebody looks.
        learns=search_model(found.document.get("search")).learns,
        curves=chart_data.learning_curves(found.learning),
        over=found.state in (CampaignState.DONE, CampaignState.CANCELLED) and not found.running,
    )


def path_of(digest: str) -> str:
    """A campaign's page: by its digest, as names may come again."""
    return f"/campaigns/{segment(digest[:12])}"


def _commands(visit: Visit, campaign: CampaignNow) -> dict[int, str]:
    """How each job that failed is reproduced."""
    if not campaign.problems:
        return {}
    ids = [problem.job_id for problem in campaign.problems]
    return {job.job_id: job.command for job in visit.ask_shared(jobs.list_, campaign.digest, job=ids, limit=len(ids))}


_STEERING = {
    "pause": (campaigns.pause, "paused"),
    "resume": (campaigns.resume, "resumed"),
    "cancel": (campaigns.cancel, "cancelled"),
}


@router.post("/campaigns/{campaign}/steer")
def steer(visit: Visiting, campaign: str, to: Annotated[str, fastapi.Form()]) -> Response:
    if to not in _STEERING:
        raise BadInput(detail=f"Unknown action {to!r}. Actions: pause, resume or cancel.")
    operation, message = _STEERING[to]
    done = visit.ask(operation, campaign)
    return visit.go(f"/campaigns/{segment(campaign)}", message if done.changed else "unchanged")


@router.get("/campaigns/{campaign}/jobs", name="jobs")
def list_jobs(
    visit: Visiting,
    campaign: str,
    limit: Annotated[int, Query(ge=1, le=5000)] = 100,
) -> Response:
    head = visit.ask(campaigns.progress, campaign)
    form = Form(jobs.list_, visit.request.query_params, fields=("state", "kind"))
    found = visit.ask(jobs.list_, **form.arguments(jobs.list_, campaign=campaign, limit=limit + 1))
    return visit.show(
        "jobs.html",
        campaign=head,
        steerable=visit.owns(head.owner),
        here=path_of(head.digest),
        jobs=found[:limit],
        form=form,
        more=linked(f"{path_of(head.digest)}/jobs", {**form.values, "limit": min(10 * limit, 5000)})
        if len(found) > limit < 5000
        else None,
    )


@router.post("/campaigns/{campaign}/retry")
def retry(visit: Visiting, campaign: str, job: Annotated[list[int] | None, fastapi.Form()] = None) -> Response:
    done = visit.ask(jobs.retry, campaign, Choice(states=[], kinds=[], job_ids=job or []))
    return visit.go(f"/campaigns/{segment(campaign)}", "retried", done.reopened)
