"""Burst against settled times: how much longer kernels take once the power limiter answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from farm.both_times import APART
from farm.formatting import counted
from farm.report.document import Section, Table
from farm.report.figures.both_times import burst_ratios
from farm.report.figures.points import percent
from farm.report.report_data import CampaignData
from farm.report.result_points import Results


def both_times(data: CampaignData) -> Section | None:
    """None where no configuration has two times that differ by more than `APART`."""
    results = data.results
    if not (np.abs(results.burst_ratio - 1) > APART).any():
        return None
    rows = list(_rows(results))
    columns = list(rows[0])
    return Section(
        name="times",
        title="Burst against settled time",
        about=(
            "The burst time is that of the first milliseconds after a rest, before the power limiter answers. The settled time is "
            "that under continued load, and is the time of all other sections. Work after a pause takes the burst time, and "
            "settled times and energies add up to longer work."
        ),
        sentences=list(_sentences(results)),
        charts=burst_ratios(results),
        tables=[
            Table(
                caption=f"Configurations with both times; apart: by more than {APART:.0%}",
                columns=columns,
                rows=[[row[name] for name in columns] for row in rows],
            )
        ],
        data=rows,
    )


def _sentences(results: Results) -> Iterator[str]:
    for kind, device_type in enumerate(results.types):
        known = (results.type == kind) & np.isfinite(results.burst_ratio)
        limited = known & (results.power_limited > 0)
        if limited.any():
            ratio = float(np.median(results.burst_ratio[limited]))
            yield (
                f"On {device_type} the power limiter slows down {int(limited.sum()):,} of {counted(int(known.sum()), 'configuration')}: "
                f"their burst times are {percent(ratio)} of their settled times in the median."
            )


def _rows(results: Results) -> Iterator[dict[str, Any]]:
    """A line for each device type, element types, and power-limited or not."""
    for kind, device_type in enumerate(results.types):
        for number, types in enumerate(results.element_types):
            own = (results.type == kind) & (results.element_type == number) & np.isfinite(results.burst_ratio)
            for limited, which in (("yes", results.power_limited > 0), ("no", results.power_limited == 0),
                                   ("unknown", np.isnan(results.power_limited))):  # fmt: skip
                ratios = results.burst_ratio[own & which]
                if len(ratios):
                    yield {
                        "device type": device_type,
                        "types": types,
                        "power-limited": limited,
                        "configurations": len(ratios),
                        "apart": int((np.abs(ratios - 1) > APART).sum()),
                        "median burst / settled": float(np.median(ratios)),
                        "least": float(ratios.min()),
                        "most": float(ratios.max()),
                    }
