"""Devices beside each other, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farm.charts.description import Axis, Chart, Dashes, PointTexts, Scale, Series, number, slug
from farm.compare.breakdowns import SIZES
from farm.compare.comparison import Comparison
from farm.compare.statistics import Floats, Ints
from farm.report.figures.labelled import LabelledResults, counted, thinned
from farm.report.results import Bools

QUANTITIES: Mapping[str, tuple[str, str]] = {"runtime_ms": ("time", "ms"), "power_w": ("power", "W")}


MIN_UUID_LETTERS = 12
"""Letters of a UUID that are told at the least: `GPU-5ac55372`."""


def short_sides(comparison: Comparison) -> dict[str, str]:
    """The names of all sides, UUIDs as far as they differ: by the whole name."""
    names = [comparison.baseline.name, *(side.name for side in comparison.groups)]
    uuids = {device.uuid for held in (comparison.baseline, *comparison.groups) for device in held.devices}
    size = MIN_UUID_LETTERS
    while len({name[:size] for name in names}) < len(names):
        size += 1
    return {name: name[:size] if name in uuids else name for name in names}


def ratios(comparison: Comparison) -> Chart:
    """The time of each side over the baseline's, by size of the problem, with the interval over shapes."""
    short = short_sides(comparison)
    baseline = short[comparison.baseline.name]
    sizes = [size for size in SIZES if any(size in side.by_size for side in comparison.groups)]
    series = list[Series]()
    for look, side in enumerate(comparison.groups):
        found = [(at, side.by_size[size]) for at, size in enumerate(sizes) if size in side.by_size]
        # Sides stand beside each other, not on each other.
        shift = (look - (len(comparison.groups) - 1) / 2) * min(0.12, 0.7 / len(comparison.groups))
        y = np.array([figures.time.ratio for _, figures in found])
        series.append(
            Series(
                name=short[side.name],
                x=np.array([at + shift for at, _ in found]),
                y=y,
                low=np.array([one.time.ratio if one.time.low is None else one.time.low for _, one in found]),
                high=np.array([one.time.ratio if one.time.high is None else one.time.high for _, one in found]),
                look=look,
                texts=PointTexts(
                    ([counted(one.configurations, "configuration") for _, one in found],), (np.arange(len(found)),)
                ),
            )
        )
    said = "; ".join(
        f"{short[side.name]} takes {side.overall.time.ratio:.3f} times the time"
        for side in comparison.groups
        if side.overall is not None
    )
    ends = np.array([-0.5, len(sizes) - 0.5])
    line = Series(name=baseline, x=ends, y=np.ones(2), points=False, line=Dashes.SOLID, reference=True)
    return Chart(
        name=slug(f"comparison {baseline}"),
        title=f"Time beside {baseline}",
        message=f"Medians over shapes, with 95% intervals. Over all sizes: {said} of {baseline}.",
        x=Axis(label="size", scale=Scale.NAMES, names=tuple(sizes)),
        y=Axis(label=f"time over that of {baseline}", unit="ratio", scale=Scale.LOG),
        series=(line, *series),
    )


def parities(
    labelled: LabelledResults, device_type: str, predicted: Mapping[str, Floats], learned: Bools | None
) -> list[Chart]:
    """Predictions against measurements. `predicted` has a value for each point, NaN where the model has none.

    `learned` says of each point whether the model was trained on it; None: nobody knows.
    """
    charts = list[Chart]()
    of_type = labelled.results.type == labelled.results.types.index(device_type)
    for target, (quantity, unit) in QUANTITIES.items():
        measured, expected = getattr(labelled.results, target), predicted[target]
        points = np.flatnonzero(of_type & np.isfinite(measured) & np.isfinite(expected))
        if not len(points):
            continue
        drawn, remark = thinned(points)
        ends = np.array(
            [
                min(measured[points].min(), expected[points].min()),
                max(measured[points].max(), expected[points].max()),
            ]
        )
        line = Series(name="equal", x=ends, y=ends, points=False, line=Dashes.SOLID, reference=True)
        kinds = _by_learned(drawn, learned)
        said = "; ".join(
            f"{name} ({len(of):,}): off by {_off(np.median(off))} in the median, by {_off(np.quantile(off, 0.9))} or less for "
            "nine of ten"
            for name, of in _by_learned(points, learned)
            for off in [errors_pct(measured[of], expected[of])]
        )
        charts.append(
            Chart(
                name=slug(f"parity {quantity} {device_type}"),
                title=f"Predicted and measured {quantity} on {device_type}",
                message=f"Configurations {said}.{remark}",
                x=Axis(label=f"measured {quantity}", unit=unit, scale=Scale.LOG),
                y=Axis(label=f"predicted {quantity}", unit=unit, scale=Scale.LOG),
                series=(
                    line,
                    *(
                        Series(
                            name=f"{name} ({len(of):,})",
                            x=measured[of],
                            y=expected[of],
                            look=look,
                            faint=len(drawn) > 500,
                            texts=labelled.texts(of),
                        )
                        for look, (name, of) in enumerate(kinds)
                    ),
                ),
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
