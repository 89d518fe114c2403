"""`farm series`: what devices measured over time."""

from __future__ import annotations

from farm.api import series as operations
from farm.api.series import Series
from farm.cli.options import asks
from farm.cli.output import console, remarks
from farm.cli.tables import Column, Table, unique_beginnings


@asks(operations.show)
def series(found: Series) -> None:
    """Show throughput, duty, power, clocks and temperature of devices over time.

    The range is divided into steps of equal length, and rows count in the step in which they landed. Power and clock are means,
    and the temperature is the highest of the step. The pages show the same as charts.

    Examples:
        farm series
        farm series --campaign quickstart --since 2h --steps 24
        farm series --device GPU-4e7a5dfa --since 7d
    """
    if not found.devices:
        console.print(f"No rows landed from {found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M} UTC.")
        return
    _SERIES.print(
        (
            one.device_uuid, one.device_type, one.host, f"{point.at:%m-%d %H:%M}", point.rows,
            f"{point.rows_per_minute:.1f}", None if point.duty is None else f"{100 * point.duty:.0f}",
            *(None if value is None else f"{value:.0f}" for value in (point.power_w, point.sm_clock_mhz, point.temperature_c)),
        )
        for one in found.devices
        for point in one.points
    )  # fmt: skip
    if found.other_devices:
        remarks.print(f"{found.other_devices} more devices have rows. Name one with --device.")


_SERIES = Table(
    "series",
    Column("device", short=unique_beginnings),
    Column("type", folds=True, priority=3),
    Column("host", folds=True, priority=2),
    Column("from", "(UTC)"),
    Column("rows", number=True, priority=1),
    Column("rows each minute", number=True),
    Column("duty", "%", number=True),
    Column("power", "W", number=True),
    Column("SM clock", "MHz", number=True),
    Column("temperature", "°C", number=True),
)
