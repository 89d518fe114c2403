"""`farm plan`: what a step of a language model takes on each card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.api import Farm, farm_of, plans
from farm.api.plans import GemmOfStep, Planned, PlanQuery
from farm.campaign.workloads import configuration_of
from farm.cli.files import ForceOption
from farm.cli.options import takes
from farm.cli.other_costs import read_others
from farm.cli.output import JsonOption, emit_json, remarks
from farm.cli.workload_options import trace_help
from farm.errors import BadInput, FarmError
from farm.kernels import problem_line
from farm.settings import settings
from farm.traces.formats import read_trace

MAX_CONFIRMED = 20
"""GEMMs that one confirmation measures on a card."""


@takes(PlanQuery, without=("config", "gemms", "others"))
def plan(
    query: PlanQuery,
    *,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help=trace_help("Plan the GEMMs of a program instead of a language model")
            + " --tokens has the number of tokens that it computed.",
            show_default=False,
        ),
    ] = None,
    other: Annotated[
        Path | None,
        typer.Option(
            "--other",
            help="CSV, JSON or YAML file with the cost of operations that are no GEMMs: name, ms, joules, device_type, tokens.",
            show_default=False,
        ),
    ] = None,
    confirm: Annotated[
        int,
        typer.Option(
            "--confirm",
            min=0,
            max=MAX_CONFIRMED,
            help="Measure so many predicted GEMMs on each card first: those that make the plan least certain.",
            show_default=False,
        ),
    ] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="With --confirm: maximum time to wait for results, in seconds.")
    ] = 300.0,
    gemms: Annotated[bool, typer.Option("--gemms", help="Show the GEMMs of each plan.", show_default=False)] = False,
    chart: Annotated[
        bool, typer.Option("--chart", help="Draw latency against cost and energy.", show_default=False)
    ] = False,
    png: Annotated[
        Path | None, typer.Option("--png", help="Write the same charts as PNGs to this folder.", show_default=False)
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Plan a language model: time, tokens per second, energy, power, money and CO2 of a step on each card.

    Measured rows count where the farm has them, and predictions of the card's model elsewhere. Bounds contain nine of ten
    measurements.

    Examples:
        farm plan llama-3.1-8b --on nvidia-h200
        farm plan llama-3.1-70b --tp 4 --on nvidia-h200,nvidia-l40s --max-latency 20ms
        farm plan qwen3-30b-a3b --on nvidia-h200 --price nvidia-h200=3.50 --chart
        farm plan llama-3.1-8b --on nvidia-h200 --other attention.csv --confirm 8
        farm plan --trace profile.json --tokens 2048 --on nvidia-h200
    """
    if confirm and query.campaign is not None:
        raise BadInput(
            detail="--confirm measures in a campaign of its own, whose rows a plan with --campaign does not have: give one of them."
        )
    query = query.model_copy(update=workload(query.model, trace))
    if other is not None:
        query = query.model_copy(update={"others": read_others(other)})
    with farm_of(settings()) as farm:
        found = farm.ask(plans.plan, query)
        if confirm and _confirmed(farm, found, confirm, timeout):
            found = farm.ask(plans.plan, query)
    if png is not None:
        _write_pngs(found, png, force=force)
    if as_json:
        emit_json(found)
        return
    from farm.cli import plan_view  # it loads numpy, which no other command needs to wait for

    plan_view.show(found, gemms=gemms, chart=chart)


def workload(model: str | None, trace: Path | None) -> dict[str, Any]:
    """The fields of a query that files give: a configuration, or the GEMMs of a trace. Raises `BadInput`."""
    if (model is None) == (trace is None):
        raise BadInput(
            detail="Name a language model, as in llama-3.1-8b, or its config.json, or a trace with --trace FILE, and one of them only. "
            "farm shapes --list lists the built-in models."
        )
    if trace is not None:
        found = read_trace(trace)
        for note in found.notes():
            remarks.print(note, markup=False)
        return {
            "gemms": [
                GemmOfStep(name=one.name, problem=problem_line(one.problem, scalars=False), count=one.count)
                for one in found.gemms
            ]
        }
    config = configuration_of(str(model))
    return {} if config is None else {"config": config}


def _confirmed(farm: Farm, found: Planned, count: int, timeout: float) -> bool:
    """Measures the least certain GEMMs of each card. Returns whether it measured any; raises if no card could."""
    from farm.api.confirming import Candidates
    from farm.cli.confirming import measure

    errors, measured = list[FarmError](), False
    for device_type in dict.fromkeys(one.device_type for one in found.plans):
        wanted = plans.to_confirm(found, device_type, count)
        if not wanted:
            remarks.print(f"{device_type}: its plans have no predicted GEMM, so nothing is measured.")
            continue
        try:
            measure(farm, Candidates(device_type=device_type, configurations=wanted, power=True), timeout)
            measured = True
        except FarmError as error:
            errors.append(error)
    if errors and not measured:
        raise errors[0]
    for one in errors:
        remarks.print(str(one), markup=False)
    return measured


def _write_pngs(found: Planned, folder: Path, *, force: bool) -> None:
    from farm.charts import matplotlib_renderer
    from farm.report.figures.plan_charts import plan_charts

    matplotlib_renderer.need_matplotlib()
    for path in matplotlib_renderer.write_pngs(
        plan_charts(found.plans, max_ms=found.max_latency_ms), folder, force=force
    ):
        remarks.print(str(path), markup=False, soft_wrap=True)
