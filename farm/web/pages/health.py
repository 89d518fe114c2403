"""The health of the fleet: a verdict for each device, its evidence, since when, and what to do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import health
from farm.compare.health.finding_messages import since_text
from farm.errors import FarmError
from farm.web.errors import status_of
from farm.web.pages.rendering import Visiting

router = APIRouter()


@router.get("/health", name="health")
def show(
    visit: Visiting,
    type: Annotated[str, Query()] = "",  # noqa: A002
    host: Annotated[str, Query()] = "",
    since: Annotated[str, Query()] = "",
    any_source: Annotated[bool, Query()] = False,
) -> Response:
    found, wrong = None, None
    try:
        found = visit.ask(health.show, type=type or None, host=host or None, since=since or None, any_source=any_source)
    except FarmError as error:
        if status_of(error) >= 500:
            raise
        wrong = error
    return visit.show(
        "health.html",
        found=found,
        wrong=wrong,
        asked={"type": type, "host": host, "since": since, "any_source": any_source},
        since_text=since_text,
        status=200 if wrong is None else status_of(wrong),
    )
