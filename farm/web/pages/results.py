"""Results of a campaign: rows in pages, as a file, and the best kernel of each problem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from farm.api import campaigns, results
from farm.exporters.csv_rows import csv_text
from farm.web.pages.campaigns import path_of
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visit, Visiting, linked

router = APIRouter()

PAGE = 100
AT_ONCE = 5000
"""Rows of a file that are read at a time."""


@router.get("/campaigns/{campaign}/best", name="best")
def best(visit: Visiting, campaign: str) -> Response:
    form = Form(results.best, visit.request.query_params, fields=("type",))
    found = visit.ask(results.best, **form.arguments(results.best, campaign=campaign))
    return visit.show("best.html", best=found, campaign=found, here=path_of(found.digest))


def _form(visit: Visit) -> Form:
    return Form(results.rows, visit.request.query_params, fields=("type", "family", "where"))


@router.get("/campaigns/{campaign}/results", name="results")
def rows(visit: Visiting, campaign: str, after: Annotated[int | None, Query(ge=0)] = None) -> Response:
    head, form = visit.ask(campaigns.progress, campaign), _form(visit)
    here, asked = path_of(head.digest), form.values
    found, wrong = visit.ask_form(results.rows, form, campaign=head.digest, after=after, limit=PAGE)
    return visit.show(
        "results.html",
        campaign=head,
        here=here,
        form=form,
        found=found,
        wrong=wrong,
        first=linked(f"{here}/results", asked) if after is not None else None,
        following=linked(f"{here}/results", {**asked, "after": found.next}) if found and found.next else None,
        as_json=linked("/api/v1/results", {"campaign": head.digest, **asked, "limit": results.MAX_ROWS}),
        as_csv=linked(f"{here}/results.csv", asked),
    )


@router.get("/campaigns/{campaign}/results.csv")
def as_csv(visit: Visiting, campaign: str) -> Response:
    head = visit.ask(campaigns.progress, campaign)
    query = _form(visit).arguments(results.rows, campaign=head.digest, limit=AT_ONCE)
    # Mistakes are reported before the first line is sent.
    first = visit.ask(results.rows, **query)
    name = f"{head.name}-{head.digest[:8]}.csv"
    return StreamingResponse(
        _lines(visit, query, first),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _lines(visit: Visit, query: dict[str, Any], page: results.Results) -> Iterator[str]:
    """CSV a page of rows at a time."""
    yield csv_text(page.rows, header=True)
    while page.next is not None:
        page = visit.ask(results.rows, **query, after=page.next)
        yield csv_text(page.rows, header=False)
