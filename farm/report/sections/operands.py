"""How much operands matter: time, power and clocks of the same configurations with several kinds of operands."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from farm.report.document import Section, Table
from farm.report.figures.operand_charts import operand_chart
from farm.report.operand_effects import OperandEffect
from farm.report.report_data import CampaignData


def operands(data: CampaignData) -> Section | None:
    """None where all rows have the same operands."""
    effects = data.operand_effects
    if not effects:
        return None
    rows = [_row(one) for one in effects]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return Section(
        name="operands",
        title="How much operands matter",
        about=(
            "The configurations of this campaign that campaigns with other operands measured too, on the same device type and with "
            "the same protocol, cache and clock policy. A ratio compares a configuration with itself. The table and the points "
            "have medians over configurations, and lines of the chart reach from the least to the largest ratio."
        ),
        charts=[operand_chart(list(own)) for _, own in groupby(effects, key=lambda one: one.device_type)],
        tables=[
            Table(
                caption="Time, power and SM clock by operands, and as a share of the first operands of each device type",
                columns=columns,
                rows=[[row[name] for name in columns] for row in rows],
            )
        ],
        data=rows,
    )


def _row(one: OperandEffect) -> dict[str, Any]:
    def percent(name: str) -> float | None:
        return 100 * one.ratios[name].median if name in one.ratios else None

    return {
        "device type": one.device_type,
        "operands": one.distribution,
        "configurations": one.configurations,
        "settled time %": percent("settled"),
        "burst time %": percent("burst"),
        "power W": one.power_w,
        "power %": percent("power"),
        "SM clock MHz": one.sm_clock_mhz,
        "SM clock %": percent("clock"),
        "energy %": percent("energy"),
    }
