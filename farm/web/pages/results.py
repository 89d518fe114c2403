"""What a campaign measured: its rows page by page, as a file, and the best kernel of each problem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from farm.api import campaigns, results
from farm.errors import FarmError
from farm.exporters.csv_rows import csv_text
from farm.web.errors import status_of
from farm.web.pages.campaigns import path_of
from farm.web.pages.rendering import Visit, Visiting, linked

router = APIRouter()

PAGE = 100
AT_ONCE = 5000
"""Rows of a file that are read at a time."""


@router.get("/campaigns/{campaign}/best", name="best")
def best(visit: Visiting, campaign: str, type: Annotated[str, Query()] = "") -> Response:  # noqa: A002
    found = visit.ask(results.best, campaign, type=type or None)
    return visit.show("best.html", best=found, campaign=found, here=path_of(found.digest), asked={"type": type})


@router.get("/campaigns/{campaign}/results", name="results")
def rows(
    visit: Visiting,
    campaign: str,
    type: Annotated[str, Query()] = "",  # noqa: A002
    family: Annotated[str, Query()] = "",
    where: Annotated[str, Query()] = "",
    after: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    head = visit.ask(campaigns.progress, campaign)
    here = path_of(head.digest)
    asked = {"type": type, "family": family, "where": where}
    found, wrong = None, None
    try:
        found = visit.ask(results.rows, **_question(head.digest, asked), after=after, limit=PAGE)
    except FarmError as error:
        if status_of(error) >= 500:
            raise
        wrong = error
    api = {"campaign": head.digest, **asked, "limit": results.MAX_ROWS}
    return visit.show(
        "results.html",
        campaign=head,
        here=here,
        asked=asked,
        found=found,
        wrong=wrong,
        first=linked(f"{here}/results", asked) if after is not None else None,
        following=linked(f"{here}/results", {**asked, "after": found.next}) if found and found.next else None,
        as_json=linked("/api/v1/results", api),
        as_csv=linked(f"{here}/results.csv", asked),
        status=200 if wrong is None else status_of(wrong),
    )


def _question(campaign: str, asked: dict[str, str]) -> dict[str, Any]:
    return {
        "campaign": campaign,
        "type": asked["type"] or None,
        "family": asked["family"] or None,
        "where": [asked["where"]] if asked["where"].strip() else None,
    }


@router.get("/campaigns/{campaign}/results.csv")
def as_csv(
    visit: Visiting,
    campaign: str,
    type: Annotated[str, Query()] = "",  # noqa: A002
    family: Annotated[str, Query()] = "",
    where: Annotated[str, Query()] = "",
) -> Response:
    head = visit.ask(campaigns.progress, campaign)
    question = _question(head.digest, {"type": type, "family": family, "where": where})
    # Mistakes are told before the first line is sent.
    first = visit.ask(results.rows, **question, limit=AT_ONCE)
    name = f"{head.name}-{head.digest[:8]}.csv"
    return StreamingResponse(
        _lines(visit, question, first),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _lines(visit: Visit, question: dict[str, Any], page: results.Results) -> Iterator[str]:
    """CSV a page of rows at a time."""
    yield csv_text(page.rows, header=True)
    while page.next is not None:
        page = visit.ask(results.rows, **question, after=page.next, limit=AT_ONCE)
        yield csv_text(page.rows, header=False)
