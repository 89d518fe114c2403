"""Comparisons: a form whose address is the comparison, its result, and a chart."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from farm.api import comparing, devices
from farm.api.comparing import Compared, Comparing, Filling
from farm.both_times import TIMES
from farm.errors import FarmError
from farm.kernels.families import FAMILIES
from farm.web.pages import chart_data
from farm.web.pages.forms import Form, Posted
from farm.web.pages.rendering import Visit, Visiting, linked
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

KEYS = ("type", "host", "device", "day", "protocol", "driver")
"""Of those that a comparison can be made by, the ones that a form offers."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOP = 10
FIELDS = 3
"""Empty fields for sides at first."""


@router.get("/compare", name="compare")
@runs(comparing.compare)
def compare(visit: Visiting) -> Response:
    form = Form(Comparing, visit.request.query_params)
    given = form.values
    if "price" in given:  # one field for all groups
        given["price"] = " ".join(given["price"]).split()
    if "predict" not in given:
        given.pop("mix_protocols", None)
    found, wrong = None, None
    if given.keys() & {"side", "by"}:
        found, wrong = visit.ask_form(comparing.compare, form, top=TOP)
    sides = given.get("side", [])
    named, types = _names(visit)
    return visit.show(
        "compare.html",
        form=form,
        by=given.get("by", ""),
        detailed=bool(given.keys() - {"side", "by"}),
        fill={name: value for name, value in given.items() if name in Filling.model_fields},
        fields=[*sides, *[""] * max(FIELDS - len(sides), 1)],
        keys=KEYS,
        times=TIMES,
        families=sorted(FAMILIES),
        known=named,
        types=types,
        found=found,
        wrong=wrong,
        letters=LETTERS,
        chart=None if found is None else chart_data.ratios(found.model_dump(), LETTERS, found.time_name),
        again=linked("/api/v1/compare", {**given, "top": TOP}),
        labelled=None
        if found is not None and "any_source" in given
        else linked("/compare", {**given, "any_source": "true"}),
        mixing=linked("/compare", {**given, "mix_protocols": "true"}) if _leaves_models_out(found, wrong) else None,
        groups=_groups(found),
        **_by_letter(found),
    )


@router.post("/compare")
@runs(comparing.fill)
def fill(visit: Visiting, posted: Posted) -> Response:
    """Submits what a group lacks and another has."""
    done = visit.ask(comparing.fill, **Form(Filling, posted).arguments(comparing.fill))
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
