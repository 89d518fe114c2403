"""What a step of a language model takes on each card, with charts of latency against cost and energy."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from farm.api import plans
from farm.api.plans import PlanQuery
from farm.language_models.built_in import built_in_names
from farm.report.figures.plan_charts import plan_charts
from farm.web.pages import chart_data
from farm.web.pages.forms import Form
from farm.web.pages.rendering import Visiting
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

FIELDS = (
    "model", "tokens", "tp", "ep", "sequences", "lora_rank", "training", "on", "load", "max_latency", "price", "carbon",
    "campaign", "any_source",
)  # fmt: skip


@router.get("/plan", name="plan")
@runs(plans.plan)
def plan(visit: Visiting) -> Response:
    form = Form(PlanQuery, visit.request.query_params, fields=FIELDS)
    if "price" in form.values:  # one field for all cards
        form.values["price"] = " ".join(form.values["price"]).split()
    found, wrong = visit.ask_form(plans.plan, form) if "model" in form.values else (None, None)
    charts = [] if found is None else plan_charts(found.plans, max_ms=found.max_latency_ms)
    return visit.show(
        "plan.html",
        form=form,
        tokens=",".join(map(str, form.values.get("tokens", PlanQuery.model_fields["tokens"].default))),
        detailed=bool(form.values.keys() - {"model", "tokens", "on"}),
        models=built_in_names(),
        found=found,
        wrong=wrong,
        charts=[(one.title, one.message, chart_data.page_figure(one)) for one in charts],
    )
