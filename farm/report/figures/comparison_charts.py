"""Charts that compare devices, and predictions with measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farm.charts.chart import Axis, Chart, Dashes, PointTexts, Scale, Series, number, slug
from farm.compare.breakdowns import SIZES
from farm.compare.comparison import Comparison
from farm.compare.statistics import Floats, Ints
from farm.compare.summaries import GroupComparison
from farm.formatting import counted
from farm.report.figures.points import texts, thinned
from farm.report.result_points import Bools, Results

QUANTITIES: Mapping[str, tuple[str, str]] = {
    "runtime_ms": ("time", "ms"),
    "runtime_burst_ms": ("burst time", "ms"),
    "power_w": ("power", "W"),
}


MIN_UUID_LETTERS = 12
"""Letters of a UUID that are shown at least: `GPU-5ac55372`."""


def short_names(comparison: Comparison) -> dict[str, str]:
    """The names of all groups, and UUIDs shortened as far as they stay distinct: by the whole name."""
    groups = (comparison.baseline, *comparison.groups)
    names = [group.name for group in groups]
    uuids = {device.uuid for group in groups for device in group.devices}
    size = MIN_UUID_LETTERS
    while len({name[:size] for name in names}) < len(names):
        size += 1
    return {name: name[:size] if name in uuids else name for name in names}


def ratios(comparison: Comparison) -> Chart:
    """The time of each group over the baseline's, by size of the problem, with the interval over shapes."""
    short = short_names(comparison)
    baseline = short[comparison.baseline.name]
    sizes = [size for size in SIZES if any(size in group.by_size for group in comparison.groups)]
    overall = "; ".join(
        f"{short[group.name]} takes {group.overall.time.ratio:.3f} times the time"
        for group in comparison.groups
        if group.overall is not None
    )
    ends = np.array([-0.5, len(sizes) - 0.5])
    line = Series(name=baseline, x=ends, y=np.ones(2), points=False, line=Dashes.SOLID, reference=True)
    count = len(comparison.groups)
    return Chart(
        name=slug(f"comparison {baseline}"),
        title=f"Time compared with {baseline}",
        message=f"Medians over shapes, with 95% intervals. Over all sizes: {overall} of {baseline}.",
        x=Axis(label="size", scale=Scale.NAMES, names=tuple(sizes)),
        y=Axis(label=f"time over that of {baseline}", unit="ratio", scale=Scale.LOG),
        series=(
            line,
            *(
                # Groups are side by side, so that none hides another.
                _ratios_of(group, short[group.name], sizes, look, (look - (count - 1) / 2) * min(0.12, 0.7 / count))
                for look, group in enumerate(comparison.groups)
            ),
        ),
    )


def _ratios_of(group: GroupComparison, name: str, sizes: Sequence[str], look: int, shift: float) -> Series:
    known = [(place, group.by_size[size]) for place, size in enumerate(sizes) if size in group.by_size]
    times = [summary.time for _, summary in known]
    texts = [counted(summary.configurations, "configuration") for _, summary in known]
    return Series(
        name=name,
        x=np.array([place + shift for place, _ in known]),
        y=np.array([time.ratio for time in times]),
        low=np.array([time.ratio if time.low is None else time.low for time in times]),
        high=np.array([time.ratio if time.high is None else time.high for time in times]),
        look=look,
        texts=PointTexts((texts,), (np.arange(len(known)),)),
    )


def parities(results: Results, device_type: str, predicted: Mapping[str, Floats], learned: Bools | None) -> list[Chart]:
    """Predictions against measurements.

    Args:
        predicted: A value for each point by target, NaN where the model has none.
        learned: Whether the model was trained on each point. None: it is unknown.
    """
    of_type = results.type == results.types.index(device_type)
    charts = list[Chart]()
    for target, (quantity, unit) in QUANTITIES.items():
        measured, expected = getattr(results, target), predicted[target]
        points = np.flatnonzero(of_type & np.isfinite(measured) & np.isfinite(expected))
        if not len(points):
            continue
        drawn, remark = thinned(points)
        both = np.concatenate([measured[points], expected[points]])
        ends = np.array([both.min(), both.max()])
        line = Series(name="equal", x=ends, y=ends, points=False, line=Dashes.SOLID, reference=True)
        errors = "; ".join(
            f"{name} ({len(of):,}): off by {_off(np.median(off))} in the median, by {_off(np.quantile(off, 0.9))} or less for "
            "nine of ten"
            for name, of in _by_learned(points, learned)
            for off in [errors_pct(measured[of], expected[of])]
        )
        kinds = [
            Series(
                name=f"{name} ({len(of):,})",
                x=measured[of],
                y=expected[of],
                look=look,
                faint=len(drawn) > 500,
                texts=texts(results, of),
            )
            for look, (name, of) in enumerate(_by_learned(drawn, learned))
        ]
        charts.append(
            Chart(
                name=slug(f"parity {quantity} {device_type}"),
                title=f"Predicted and measured {quantity} on {device_type}",
                message=f"Configurations {errors}.{remark}",
                x=Axis(label=f"measured {quantity}", unit=unit, scale=Scale.LOG),
                y=Axis(label=f"predicted {quantity}", unit=unit, scale=Scale.LOG),
                series=(line, *kinds),
            )
        )
    return charts


def _off(error_pct: float) -> str:
    return "less than 0.01%" if error_pct < 0.01 else f"{number(float(error_pct))}%"


def _by_learned(points: Ints, learned: Bools | None) -> list[tuple[str, Ints]]:
    if learned is None:
        return [("measured", points)]
    kinds = [("that it was trained on", points[learned[points]]), ("new to it", points[~learned[points]])]
    return [(name, of) for name, of in kinds if len(of)]


def errors_pct(measured: Floats, predicted: Floats) -> Floats:
    """|predicted - measured| / measured, %: [points]."""
    found: Floats = 100 * np.abs(predicted / measured - 1)
    return found
