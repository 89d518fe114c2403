"""What a GEMM will cost on each card, by the champions, and the best kernels for it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from farm.api import models
from farm.errors import FarmError
from farm.gemm import ElementType, Layout
from farm.registry import Objective
from farm.web.errors import status_of
from farm.web.pages import charts
from farm.web.pages.rendering import Visiting, linked

router = APIRouter()

TOP = 5


@router.get("/cost", name="cost")
def cost(
    visit: Visiting,
    m: Annotated[str, Query()] = "",
    n: Annotated[str, Query()] = "",
    k: Annotated[str, Query()] = "",
    types: Annotated[str, Query()] = "f16",
    layout: Annotated[str, Query()] = "nn",
    beta: Annotated[bool, Query()] = False,
    objective: Annotated[str, Query()] = "time",
) -> Response:
    asked = {"m": m, "n": n, "k": k, "types": types, "layout": layout, "beta": beta, "objective": objective}
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
        chart=None if found is None else charts.costs(found, least),
        again=linked("/api/v1/costs", {**query, "top": TOP}),
        status=200 if wrong is None else status_of(wrong),
    )
