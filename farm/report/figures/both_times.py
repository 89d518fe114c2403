"""Burst times as a share of settled times, against the settled time."""

from __future__ import annotations

import numpy as np

from farm.both_times import APART
from farm.charts.chart import Axis, Chart, Dashes, Scale, Series, slug
from farm.formatting import counted
from farm.report.figures.points import percent, texts, thinned
from farm.report.result_points import Results

_GROUPS = ("power-limited", "not power-limited", "not known to be power-limited")
"""Their order is that of their looks."""


def burst_ratios(results: Results) -> list[Chart]:
    """One for each device type with a configuration whose two times differ by more than `APART`."""
    charts = list[Chart]()
    for kind, device_type in enumerate(results.types):
        points = np.flatnonzero((results.type == kind) & np.isfinite(results.burst_ratio))
        ratios = results.burst_ratio
        apart = points[np.abs(ratios[points] - 1) > APART]
        if not len(apart):
            continue
        drawn, remark = thinned(points, apart)
        group = np.where(np.isnan(results.power_limited), 2, np.where(results.power_limited > 0, 0, 1))
        low = int(apart[np.argmin(ratios[apart])])
        ends = np.array([results.runtime_ms[points].min(), results.runtime_ms[points].max()])
        charts.append(
            Chart(
                name=slug(f"burst and settled time {device_type}"),
                title=f"Burst time as a share of settled time on {device_type}",
                message=(
                    f"Both times differ by more than {APART:.0%} in {len(apart):,} of {counted(len(points), 'configuration')}. The "
                    f"lowest share is {percent(float(ratios[low]))}: {results.kernel_names[results.kernel[low]]} on "
                    f"{results.problem_names[results.problem[low]]}.{remark}"
                ),
                x=Axis(label="settled time of one GEMM", unit="ms", scale=Scale.LOG),
                y=Axis(label="burst time / settled time", unit="%"),
                series=(
                    Series(
                        name="equal times",
                        x=ends,
                        y=np.full(2, 100.0),
                        points=False,
                        line=Dashes.DASHED,
                        reference=True,
                    ),
                    *(
                        Series(
                            name=f"{name} ({len(of):,})",
                            x=results.runtime_ms[of],
                            y=100 * ratios[of],
                            look=look,
                            texts=texts(results, of),
                        )
                        for look, name in enumerate(_GROUPS)
                        if len(of := drawn[group[drawn] == look])
                    ),
                ),
            )
        )
    return charts
