"""Comparing interactively: a form whose address is the comparison, what came of it, and a chart of it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form
from fastapi.responses import Response

from farm.api import comparing, devices
from farm.api.comparing import Compared, Comparing, Filling
from farm.api.operation import checked
from farm.errors import FarmError
from farm.kernels.families import FAMILIES
from farm.web.errors import status_of
from farm.web.pages import chart_data
from farm.web.pages.forms import form_values
from farm.web.pages.rendering import Visit, Visiting, linked
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

KEYS = ("type", "host", "device", "day", "driver")
"""Of those that a comparison can be made by, the ones that a form offers."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOP = 10
FIELDS = 3
"""Empty fields for sides at first."""


@router.get("/compare", name="compare")
@runs(comparing.compare)
def compare(visit: Visiting) -> Response:
    given = form_values(Comparing, visit.request.query_params)
    if "price" in given:  # one field for all groups
        given["price"] = " ".join(given["price"]).split()
    if "predict" not in given:
        given.pop("mix_protocols", None)
    found, wrong = None, None
    if given.keys() & {"side", "by"}:
        try:
            found = visit.ask(comparing.compare, checked(Comparing, **{**given, "top": TOP}))
        except FarmError as error:
            if status_of(error) >= 500:
                raise
            wrong = error
    sides = given.get("side", [])
    asked = {**dict.fromkeys(Comparing.model_fields, ""), **given}
    named, types = _names(visit)
    return visit.show(
        "compare.html",
        asked={**asked, "price": " ".join(asked["price"])},
        fields=[*sides, *[""] * max(FIELDS - len(sides), 1)],
        keys=KEYS,
        families=sorted(FAMILIES),
        known=named,
        types=types,
        found=found,
        wrong=wrong,
        letters=LETTERS,
        chart=None if found is None else chart_data.ratios(found.model_dump(), LETTERS),
        again=linked("/api/v1/compare", {**asked, "top": TOP}),
        labelled=None
        if found is not None and "any_source" in given
        else linked("/compare", {**asked, "any_source": "true"}),
        mixing=linked("/compare", {**asked, "mix_protocols": "true"}) if _leaves_models_out(found, wrong) else None,
        groups=_groups(found),
        **_by_letter(found),
        status=200 if wrong is None else status_of(wrong),
    )


@router.post("/compare")
@runs(comparing.fill)
def fill(
    visit: Visiting,
    side: Annotated[list[str] | None, Form()] = None,
    by: Annotated[str, Form()] = "",
    campaign: Annotated[str, Form()] = "",
    type: Annotated[str, Form()] = "",  # noqa: A002
    family: Annotated[str, Form()] = "",
    dtype: Annotated[str, Form()] = "",
    any_source: Annotated[bool, Form()] = False,
) -> Response:
    """Submits what a side lacks and another has."""
    done = visit.ask(
        comparing.fill,
        checked(
            Filling,
            side=side or [],
            by=by or None,
            campaign=campaign or None,
            type=type or None,
            family=family or None,
            dtype=dtype or None,
            any_source=any_source,
        ),
    )
    return visit.show("filled.html", fills=done.fills)


def _names(visit: Visit) -> tuple[list[str], list[str]]:
    """What sides may be named by, and the types among them."""
    known = visit.ask(devices.names)
    return [*known.types, *known.hosts, *known.uuids], known.types


def _by_letter(found: Compared | None) -> dict[str, Any]:
    """What was measured, and what a model said, each with the letter of its side."""
    sides = [] if found is None else list(zip(LETTERS[1:], found.sides, strict=False))
    told = [(letter, side.predicted) for letter, side in sides if side.predicted is not None]
    return {
        "measured": [(letter, side.overall) for letter, side in sides if side.overall is not None],
        "predicted": [(letter, one.overall) for letter, one in told],
        "foretold": told,
    }


def _leaves_models_out(found: Compared | None, wrong: FarmError | None) -> bool:
    """Whether models of other measuring protocols would have predicted more."""
    return any("--mix-protocols" in note for note in (*(found.notes if found else ()), str(wrong or "")))


def _groups(found: Compared | None) -> list[str]:
    """Which groupings there are anything to show of."""
    names = ("by_type", "by_size", "by_bound")
    return [] if found is None else [name for name in names if any(getattr(side, name) for side in found.sides)]
