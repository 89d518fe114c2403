"""Comparing interactively: a form whose address is the comparison, what came of it, and a chart of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import comparing, devices
from farm.api.comparing import Compared
from farm.errors import FarmError
from farm.kernels.families import FAMILIES
from farm.web.errors import status_of
from farm.web.pages import charts
from farm.web.pages.rendering import Visit, Visiting, linked

router = APIRouter()

KEYS = ("type", "host", "device", "day", "driver")
"""Of those that a comparison can be made by, the ones that a form offers."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOP = 10
FIELDS = 3
"""Empty fields for sides at first."""


@router.get("/compare", name="compare")
def compare(
    visit: Visiting,
    side: Annotated[list[str] | None, Query()] = None,
    by: Annotated[str, Query()] = "",
    campaign: Annotated[str, Query()] = "",
    type: Annotated[str, Query()] = "",  # noqa: A002
    family: Annotated[str, Query()] = "",
    dtype: Annotated[str, Query()] = "",
    any_source: Annotated[bool, Query()] = False,
    mixed: Annotated[bool, Query()] = False,
    carbon: Annotated[str, Query()] = "",
    price: Annotated[str, Query()] = "",
) -> Response:
    sides = [one.strip() for one in side or () if one.strip()]
    asked = {
        "side": sides,
        "by": by,
        "campaign": campaign,
        "type": type,
        "family": family,
        "dtype": dtype,
        "any_source": any_source,
        "mixed": mixed,
        "carbon": carbon,
        "price": price,
    }
    found, wrong = None, None
    if sides or by:
        try:
            found = visit.ask(
                comparing.compare,
                side=sides or None,
                by=by or None,
                campaign=campaign or None,
                type=type or None,
                family=family or None,
                dtype=dtype or None,
                any_source=any_source,
                mixed=mixed,
                top=TOP,
                carbon=_number(carbon),
                price=price.split() or None,
            )
        except FarmError as error:
            if status_of(error) >= 500:
                raise
            wrong = error
    named, types = _names(visit)
    return visit.show(
        "compare.html",
        asked=asked,
        fields=[*sides, *[""] * max(FIELDS - len(sides), 1)],
        keys=KEYS,
        families=sorted(FAMILIES),
        known=named,
        types=types,
        found=found,
        wrong=wrong,
        letters=LETTERS,
        chart=None if found is None else charts.ratios(found.model_dump(), LETTERS),
        again=linked("/api/v1/compare", {**asked, "price": price.split(), "top": TOP}),
        labelled=None if found is not None and any_source else linked("/compare", {**asked, "any_source": "true"}),
        groups=_groups(found),
        status=200 if wrong is None else status_of(wrong),
    )


def _number(text: str) -> float | None:
    """What a field for a number holds; None where nothing that is one, which the browser says already."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def _names(visit: Visit) -> tuple[list[str], list[str]]:
    """What sides may be named by, and the types among them."""
    known = visit.ask(devices.names)
    return [*known.types, *known.hosts, *known.uuids], known.types


def _groups(found: Compared | None) -> list[str]:
    """Which groupings there are anything to show of."""
    names = ("by_type", "by_size", "by_bound")
    return [] if found is None else [name for name in names if any(side[name] for side in found.sides)]
