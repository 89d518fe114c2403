"""Plans of language models: the time of a step against what a token costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from farm.charts.chart import Axis, Chart, Dashes, Floats, PointTexts, Rule, Scale, Series, number
from farm.formatting import counted
from farm.model_plans.amounts import Amount
from farm.model_plans.step_plans import StepPlan

Figure = Callable[[StepPlan], Amount | None]


def plan_charts(plans: Sequence[StepPlan], *, max_ms: float | None = None) -> list[Chart]:
    """One against money, where there are prices, and one against energy, where it is known.

    Args:
        plans: Of one language model, by card and tokens.
        max_ms: The largest latency that was asked for.
    """
    figures: dict[str, tuple[str, str, Figure]] = {
        "money": ("cost of a million tokens", "", lambda one: one.money_per_mtoken),
        "energy": ("energy of a token", "J", lambda one: one.joules_per_token),
    }
    charts = (_chart(name, *figure, plans, max_ms) for name, figure in figures.items())
    return [chart for chart in charts if chart is not None]


def _chart(
    name: str, label: str, unit: str, figure: Figure, plans: Sequence[StepPlan], max_ms: float | None
) -> Chart | None:
    known = [(one, amount) for one in plans if (amount := figure(one)) is not None]
    if not known:
        return None
    cards = list(dict.fromkeys(one.device_type for one, _ in known))
    least, amount = min(known, key=lambda pair: pair[1].value)
    fastest, _ = min(known, key=lambda pair: pair[0].ms.value)
    unit_text = f" {unit}" if unit else ""
    return Chart(
        name=f"plan-{name}",
        title=f"Time of a step and {label}",
        message=f"{counted(len(known), 'plan')} on {counted(len(cards), 'device type')}. The least {label} is {number(amount.value)}{unit_text}, on "
        f"{least.device_type} with {counted(least.tokens, 'token')} in {number(least.ms.value)} ms. The shortest step takes "
        f"{number(fastest.ms.value)} ms, on {fastest.device_type} with {counted(fastest.tokens, 'token')}.",
        x=Axis(label="time of a step", unit="ms", scale=Scale.LOG),
        y=Axis(label=label, unit=unit, scale=Scale.LOG),
        series=tuple(
            _series(card, look, [pair for pair in known if pair[0].device_type == card])
            for look, card in enumerate(cards)
        ),
        rules=() if max_ms is None else (Rule(name="largest latency", x=max_ms, line=Dashes.DASHED),),
    )


def _series(card: str, look: int, known: Sequence[tuple[StepPlan, Amount]]) -> Series:
    in_order = sorted(known, key=lambda pair: pair[0].tokens)
    times = [one.ms for one, _ in in_order]
    amounts = [amount for _, amount in in_order]
    tokens = [counted(one.tokens, "token") for one, _ in in_order]
    return Series(
        name=card,
        x=_values(times),
        y=_values(amounts),
        look=look,
        line=Dashes.SOLID,
        x_low=_bounds(times, "low"),
        x_high=_bounds(times, "high"),
        low=_bounds(amounts, "low"),
        high=_bounds(amounts, "high"),
        texts=PointTexts((tokens,), (np.arange(len(tokens), dtype=np.int64),)),
    )


def _values(amounts: Sequence[Amount]) -> Floats:
    return np.array([one.value for one in amounts], np.float64)


def _bounds(amounts: Sequence[Amount], end: str) -> Floats:
    """The bounds; the value itself where there is none."""
    return np.array([getattr(one, end) or one.value for one in amounts], np.float64)
