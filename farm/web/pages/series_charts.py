"""The charts of measurements over time (pure)."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.api.series import DeviceSeries, Series, SeriesPoint
from farm.charts.chart import Axis, Chart, Dashes, PointTexts
from farm.charts.chart import Series as Line
from farm.web.pages.chart_data import PlotlyFigure, page_figure
from farm.web.pages.rendering import shortened

_QUANTITIES = (
    ("rows_per_minute", "Throughput", "rows each minute", "", 1.0),
    ("duty", "Duty", "duty", "%", 100.0),
    ("power_w", "Power", "power", "W", 1.0),
    ("sm_clock_mhz", "SM clock", "SM clock", "MHz", 1.0),
    ("temperature_c", "Temperature", "temperature", "°C", 1.0),
)
"""Field, title, label, unit and factor of each chart."""

_FROM_ZERO = ("rows_per_minute", "duty")
"""Quantities whose axis begins at 0."""

_UNITS = ((2 * 86400.0, "days", 86400.0), (2 * 3600.0, "h", 3600.0), (0.0, "min", 60.0))
"""Units of the time axis: from which range on, name and seconds."""


def charts(found: Series) -> list[tuple[str, str, PlotlyFigure]]:
    """Title, description and figure of each quantity that any device has."""
    made = (_chart(found, *quantity) for quantity in _QUANTITIES)
    return [(chart.title, chart.message, page_figure(chart)) for chart in made if chart is not None]


def _chart(found: Series, field: str, title: str, label: str, unit: str, factor: float) -> Chart | None:
    range_s = (found.until - found.since).total_seconds()
    _, time_unit, seconds = next(one for one in _UNITS if range_s >= one[0])
    lines = [
        _line(found, device, look, field, factor, seconds)
        for look, device in enumerate(found.devices)
        if any(getattr(point, field) is not None for point in device.points)
    ]
    if not lines:
        return None
    values = np.concatenate([line.y for line in lines])
    values = values[np.isfinite(values)]
    of = f"{len(lines)} devices" if len(lines) > 1 else lines[0].name
    spoken = f"{title} of {of}: from {values.min():.4g} to {values.max():.4g} {unit or label}"
    return Chart(
        name=field,
        title=title,
        message=f"{spoken}, in steps of {found.step_s / 60:.3g} min.",
        x=Axis(label=f"time before {found.until:%Y-%m-%d %H:%M} UTC", unit=time_unit, limits=(-range_s / seconds, 0.0)),
        y=Axis(label=label, unit=unit, limits=(0.0, 1.05 * float(values.max())) if field in _FROM_ZERO else None),
        series=tuple(lines),
    )


def _line(found: Series, device: DeviceSeries, look: int, field: str, factor: float, seconds: float) -> Line:
    """A line over the middles of steps. A gap is where the device has no rows."""
    points = list[SeriesPoint | None]()
    for point in device.points:
        if points and points[-1] is not None and (point.at - points[-1].at).total_seconds() > 1.5 * found.step_s:
            points.append(None)
        points.append(point)
    x, y, times = list[float](), list[float](), list[str]()
    for one in points:
        value: Any = None if one is None else getattr(one, field)
        y.append(float("nan") if value is None else factor * value)
        x.append(float("nan") if one is None else ((one.at - found.until).total_seconds() + found.step_s / 2) / seconds)
        times.append("" if one is None else f"from {one.at:%Y-%m-%d %H:%M} UTC")
    return Line(
        name=shortened(device.device_uuid),
        x=np.array(x, np.float64),
        y=np.array(y, np.float64),
        look=look,
        line=Dashes.SOLID,
        texts=PointTexts((times,), (np.arange(len(times)),)),
    )
