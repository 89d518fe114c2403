"""The predicted cost of a GEMM on each card, and the best kernels for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fastapi import APIRouter
from fastapi.responses import Response

from farm.api import models
from farm.api.models import CostOn
from farm.gemm import INPUT_TYPES, Layout
from farm.protocols import Time
from farm.registry import Objective
from farm.web.pages import chart_data
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visiting, linked
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

TOP = 5


@router.get("/cost", name="cost")
@runs(models.costs)
def cost(visit: Visiting, m: str = "", n: str = "", k: str = "", beta: bool = False) -> Response:
    form = Form(
        models.costs,
        visit.request.query_params,
        fields=(
            "types",
            "layout",
            "batch",
            "scale",
            "fused",
            "groups",
            "sparsity",
            "objective",
            "time",
            "mix_protocols",
        ),
    )
    shape = {"m": m, "n": n, "k": k, "beta": "true" if beta else ""}
    query = {"types": "f16", **form.values, "shape": f"{m}x{n}x{k}", "beta": float(beta), "top": TOP}
    found, wrong = visit.ask_form(models.costs, form, **query) if m or n or k else (None, None)
    objective = Objective(query.get("objective", Objective.TIME)) if wrong is None else Objective.TIME
    time = query.get("time") if wrong is None else None
    return visit.show(
        "cost.html",
        form=form,
        shape=shape,
        types=query["types"],
        objective=objective,
        dtypes=INPUT_TYPES,
        layouts=list(Layout),
        found=found,
        wrong=wrong,
        time=time,
        other="settled" if time == "burst" else "burst",
        groups=_groups(found or [], objective, time),
        mixed=linked("/cost", {**shape, **form.values, "mix_protocols": "true"}),
        again=linked("/api/v1/costs", query),
    )


def _groups(
    found: Sequence[CostOn], least: Objective, time: Time | None
) -> list[tuple[list[CostOn], chart_data.PlotlyFigure | None]]:
    """The predictions that may be ranked together, each group with its chart, without models that cannot predict."""
    able = [one for one in found if one.found is not None]
    grouped = [list(answers) for _, answers in groupby(able, key=lambda one: one.group)]
    return [(answers, chart_data.costs(answers, least, time)) for answers in grouped]
