"""What a GEMM will cost on each card, by the champions, and the best kernels for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import models
from farm.api.models import CostOn
from farm.errors import FarmError
from farm.gemm import ElementType, Layout
from farm.registry import Objective
from farm.web.errors import status_of
from farm.web.pages import chart_data
from farm.web.pages.rendering import Visiting, linked
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

TOP = 5


@router.get("/cost", name="cost")
@runs(models.costs)
def cost(
    visit: Visiting,
    m: Annotated[str, Query()] = "",
    n: Annotated[str, Query()] = "",
    k: Annotated[str, Query()] = "",
    types: Annotated[str, Query()] = "f16",
    layout: Annotated[str, Query()] = "nn",
    beta: Annotated[bool, Query()] = False,
    objective: Annotated[str, Query()] = "time",
    mix_protocols: Annotated[bool, Query()] = False,
) -> Response:
    asked: dict[str, Any] = {
        **{"m": m, "n": n, "k": k, "types": types, "layout": layout, "beta": beta, "objective": objective},
        "mix_protocols": mix_protocols,
    }
    found, wrong = None, None
    least = Objective(objective) if objective in list(Objective) else Objective.TIME
    query = {"shape": f"{m}x{n}x{k}", "types": types, "layout": layout, "beta": float(beta), "objective": least.value}
    if m or n or k:
        try:
            found = visit.ask(
                models.costs,
                shape=f"{m}x{n}x{k}",
                types=types,
                layout=layout,
                beta=float(beta),
                objective=least,
                top=TOP,
                mix_protocols=mix_protocols,
            )
        except FarmError as error:
            if status_of(error) >= 500:
                raise
            wrong = error
    return visit.show(
        "cost.html",
        asked=asked,
        objective=least,
        objectives=list(Objective),
        dtypes=[kind for kind in ElementType if kind is not ElementType.I32],
        layouts=list(Layout),
        found=found,
        wrong=wrong,
        groups=_groups(found or [], least),
        mixed=linked("/cost", {**_given(asked), "mix_protocols": "true"}),
        again=linked("/api/v1/costs", {**query, "top": TOP, **({"mix_protocols": "true"} if mix_protocols else {})}),
        status=200 if wrong is None else status_of(wrong),
    )


def _groups(found: Sequence[CostOn], least: Objective) -> list[tuple[list[CostOn], chart_data.PlotlyFigure | None]]:
    """The answers that may be ranked together, each with its chart; those of models that cannot say are left out."""
    able = [one for one in found if one.found is not None]
    grouped = [list(answers) for _, answers in groupby(able, key=lambda one: one.group)]
    return [(answers, chart_data.costs(answers, least)) for answers in grouped]


def _given(asked: Mapping[str, Any]) -> dict[str, str]:
    """The fields of the form that are filled in, as an address has them."""
    return {name: "true" if value is True else str(value) for name, value in asked.items() if value}
