"""Time, power and clocks of a device type by operands, relative to a baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farm.charts.chart import Axis, Chart, Rule, Scale, Series, slug
from farm.formatting import counted
from farm.report.operand_effects import OperandEffect

_SHOWN = (("settled", "settled time"), ("burst", "burst time"), ("power", "power"), ("clock", "SM clock"))
"""The quantities and their names; their order is that of their looks."""

_APART = 0.16
"""Between the quantities of one kind of operands, as a share of the distance to the next kind."""


def operand_chart(effects: Sequence[OperandEffect]) -> Chart:
    """The chart of one device type. Bars reach from the least to the largest ratio of a configuration."""
    baseline, device_type = effects[0].baseline, effects[0].device_type
    shown = [(name, label) for name, label in _SHOWN if any(name in one.ratios for one in effects[1:])]
    series = list[Series]()
    for look, (name, label) in enumerate(shown):
        own = [(place, one.ratios[name]) for place, one in enumerate(effects) if name in one.ratios]
        series.append(
            Series(
                name=label,
                x=np.array([100 * ratio.median for _, ratio in own]),
                y=np.array([place + _APART * (look - (len(shown) - 1) / 2) for place, _ in own]),
                x_low=np.array([100 * ratio.low for _, ratio in own]),
                x_high=np.array([100 * ratio.high for _, ratio in own]),
                look=look,
            )
        )
    return Chart(
        name=slug(f"operands {device_type}"),
        title=f"Operands on {device_type}, relative to {baseline}",
        message=_message(effects),
        x=Axis(label=f"median over configurations, relative to {baseline}", unit="%"),
        y=Axis(label="operands", scale=Scale.NAMES, names=tuple(one.distribution for one in effects), downwards=True),
        series=tuple(series),
        rules=(Rule(name=f"as {baseline}", x=100.0),),
    )


def _message(effects: Sequence[OperandEffect]) -> str:
    baseline = effects[0]
    found = [f"{counted(baseline.configurations, 'configuration')} on {baseline.device_type}."]
    for name, label in (("power", "power"), ("settled", "settled time")):
        known = [one for one in effects[1:] if name in one.ratios]
        if known:
            low, high = (choose(known, key=lambda one: one.ratios[name].median) for choose in (min, max))
            found.append(
                f"The {label} goes from {low.ratios[name].median:.0%} ({low.distribution}) to {high.ratios[name].median:.0%} "
                f"({high.distribution}) of that of {baseline.distribution} in the median."
            )
    return " ".join(found)
