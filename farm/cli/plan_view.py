"""The presenter of `farm plan`."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from farm.api.plans import Planned
from farm.charts.terminal_renderer import Terminal
from farm.cli.output import console
from farm.cli.tables import Column, Table
from farm.cli.versions import print_answered_by
from farm.formatting import counted
from farm.model_plans.amounts import Amount
from farm.model_plans.step_plans import GemmEstimate, StepPlan
from farm.report.figures.plan_charts import plan_charts

MAX_WIDTH = 100
"""Maximum length of a line of a chart, in characters."""

_PLANS = Table(
    "plans",
    Column("device type", folds=True),
    Column("tokens", number=True),
    Column("step", "ms", number=True),
    Column("90 % bounds", "ms", number=True, priority=2),
    Column("tokens/s", number=True, priority=1),
    Column("energy", "J/token", number=True, priority=2),
    Column("power", "W", number=True, priority=4),
    Column("money", "per 1M tokens", number=True),
    Column("CO2", "g per 1M tokens", number=True, priority=3),
    Column("GEMMs", "%", number=True, priority=5),
    Column("measured", "%", number=True, priority=3),
)
_GEMMS = Table(
    "GEMMs of a plan",
    Column("layer", folds=True),
    Column("problem", folds=True, priority=2),
    Column("count", number=True),
    Column("time", "ms", number=True),
    Column("90 % bounds", "ms", number=True, priority=1),
    Column("share", "%", number=True),
    Column("energy", "mJ", number=True, priority=3),
    Column("time is"),
    Column("energy is", priority=4),
    Column("kernel", folds=True, priority=3),
)


def show(found: Planned, *, gemms: bool, chart: bool) -> None:
    """Prints the plans, what they do not cover, and which is the cheapest.

    Args:
        gemms: Print the GEMMs of each plan.
        chart: Draw latency against cost and energy.
    """
    without = [] if any(one.money_per_mtoken for one in found.plans) else ["money"]
    without += [] if any(one.co2_g_per_mtoken for one in found.plans) else ["CO2"]
    without += [] if any(one.gemm_pct is not None for one in found.plans) else ["GEMMs"]
    cards = found.plans[0].cards  # the same in all plans
    shared = f" on {cards:,} cards" if cards > 1 else ""
    title = f"{found.model}: one step{shared} under {found.load} load"
    _PLANS.print([_cells(one) for one in found.plans], title=title, without=without)
    for line in _remarks(found):
        console.print(line, markup=False, soft_wrap=True)
    if gemms:
        for one in found.plans:
            console.print()
            _GEMMS.print(
                [_gemm_cells(one, each) for each in one.gemms],
                title=f"{one.device_type}, {counted(one.tokens, 'token')}: GEMMs of one card",
            )
    if chart:
        _draw(found)
    print_answered_by(found.answered_by)


def _cells(one: StepPlan) -> tuple[Any, ...]:
    return (
        one.device_type, one.tokens, one.ms.value, bounds(one.ms), one.tokens_per_s.value, _value(one.joules_per_token),
        one.power_w, _value(one.money_per_mtoken), _value(one.co2_g_per_mtoken), one.gemm_pct, one.measured_pct,
    )  # fmt: skip


def _gemm_cells(plan: StepPlan, one: GemmEstimate) -> tuple[Any, ...]:
    energy = {None: None, True: "measured", False: "predicted"}[one.energy_measured]
    return (
        one.name, one.problem, one.count, one.ms.value, bounds(one.ms.amount),
        100 * one.count * one.ms.value / plan.gemm_ms.value, None if one.mj is None else one.mj.value,
        "measured" if one.measured else "predicted", energy, one.configuration.partition(" ")[0],
    )  # fmt: skip


def bounds(amount: Amount) -> str | None:
    """`1.2 – 1.4`; None without bounds."""
    return None if amount.low is None or amount.high is None else f"{amount.low:.4g} – {amount.high:.4g}"


def _value(amount: Amount | None) -> float | None:
    return None if amount is None else amount.value


def _remarks(found: Planned) -> list[str]:
    lines = list(found.notes)
    if found.not_covered_text:
        lines.append(
            f"Not covered: {found.not_covered_text}. A step takes longer by their time. --other FILE adds their costs."
        )
    missing = list(dict.fromkeys(name for one in found.plans for name in one.without_energy))
    if missing:
        lines.append(f"Energy is unknown where {', '.join(missing)} has none.")
    outside = list(dict.fromkeys(each.name for one in found.plans for each in one.gemms if each.outside))
    if outside:
        lines.append(f"Predicted outside what the model has learned: {', '.join(outside)}.")
    lines += [found.cheapest_text] if found.cheapest_text else []
    return lines + [f"No plan: {one.why}" for one in found.without_plan]


def _draw(found: Planned) -> None:
    terminal = Terminal(min(console.width, MAX_WIDTH), ascii_only=console.options.ascii_only)
    for one in plan_charts(found.plans, max_ms=found.max_latency_ms):
        console.print()
        console.print(Text(one.title, style="bold"))
        for line in terminal.lines(one):
            console.print(Text(line), soft_wrap=True)
