"""Measurements over time: throughput, duty, power, clocks and temperature by device and campaign."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field

from farm.api.access import Access
from farm.api.device_states import select
from farm.api.operation import Cli, Document, operation
from farm.db import campaigns, liveness, series
from farm.errors import BadInput
from farm.time_parsing import moment

MAX_STEPS = 300
MIN_STEP_SECONDS = 60
"""Rows of a batch land together, so that shorter steps would show batches and not the device."""

MAX_RANGE = timedelta(days=31)
MAX_DEVICES = 8

DEFAULT_RANGE = timedelta(hours=6)
DEFAULT_STEPS = 60


class SeriesPoint(Document):
    """One step of a device's series."""

    at: datetime = Field(description="when the step begins")
    rows: int = Field(description="rows that landed in the step")
    rows_per_minute: float
    duty: float | None = Field(
        description="share of the step inside measurements; a batch counts when it lands, so a short step can exceed 1"
    )
    power_w: float | None = Field(description="mean power of the rows")
    sm_clock_mhz: float | None = Field(description="mean SM clock of the rows")
    temperature_c: float | None = Field(description="highest temperature at the end of a row")


class DeviceSeries(Document):
    """The series of one device. Steps without rows are left out."""

    device_uuid: str
    device_type: str
    host: str
    rows: int
    points: list[SeriesPoint]


class Series(Document):
    """Measurements over time, in steps of equal length."""

    since: datetime
    until: datetime
    step_s: float
    devices: list[DeviceSeries] = Field(description="those with most rows, by host and UUID")
    other_devices: int = Field(description="devices with rows that are left out")


@operation("GET", "/series", seconds=30)
def show(
    access: Access,
    *,
    campaign: Annotated[
        str | None, Field(max_length=200, description="Only rows of this campaign."), Cli(("--campaign", "-c"))
    ] = None,
    device: Annotated[
        str | None,
        Field(max_length=200, description="One device: its UUID, or how it begins; or host:NAME."),
        Cli(("--device", "-d")),
    ] = None,
    since: Annotated[
        str | None,
        Field(
            max_length=40,
            description="Begin of the range, as 24h or 2026-11-22 (UTC): 6h ago, or when the campaign was submitted, unless given.",
        ),
        Cli(metavar="TIME"),
    ] = None,
    until: Annotated[
        str | None,
        Field(max_length=40, description="End of the range: now, or the end of the campaign, unless given."),
        Cli(metavar="TIME"),
    ] = None,
    steps: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_STEPS,
            description=f"Number of steps. A step is not shorter than {MIN_STEP_SECONDS} s, so a short range has fewer.",
        ),
    ] = DEFAULT_STEPS,
) -> Series:
    """Throughput, duty, power, clocks and temperature of devices over time, at most 31 days and 8 devices at once."""
    with access.connect() as connection:
        found = None if campaign is None else campaigns.find(connection, campaign)
    first, last = _range(found, since, until)
    if not timedelta() < last - first <= MAX_RANGE:
        raise BadInput(
            detail=f"The range from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC cannot be shown: it must end after it "
            f"begins, and may have {MAX_RANGE.days} days. Change since or until."
        )
    count = max(1, min(steps, int((last - first).total_seconds() // MIN_STEP_SECONDS)))
    step = (last - first) / count
    with access.connect() as connection:
        chosen = None
        if device is not None:
            known = liveness.devices(connection, silent_after=access.silent_after)
            chosen = [one.device_id for one in select(known, [device])]
        read, devices = series.steps(
            connection,
            since=first,
            until=last,
            count=count,
            max_devices=MAX_DEVICES,
            campaign_id=None if found is None else found["id"],
            device_ids=chosen,
        )
    shown = [
        _of_device(list(those), first, step) for _, those in groupby(read, key=lambda one: (one.host, one.device_uuid))
    ]
    return Series(
        since=first, until=last, step_s=step.total_seconds(), devices=shown, other_devices=devices - len(shown)
    )


def _range(campaign: Mapping[str, Any] | None, since: str | None, until: str | None) -> tuple[datetime, datetime]:
    """The range of a request; without `since`, that of the campaign, where there is one. Raises `BadMoment`."""
    last = datetime.now(UTC) if until is None else moment(until)
    if since is not None:
        return moment(since), last
    if campaign is None:
        return last - DEFAULT_RANGE, last
    if until is None and campaign["finished_at"] is not None:
        last = campaign["finished_at"] + timedelta(minutes=1)
    return max(campaign["submitted_at"], last - MAX_RANGE), last


def _of_device(those: list[series.Step], first: datetime, step: timedelta) -> DeviceSeries:
    seconds = step.total_seconds()
    return DeviceSeries(
        device_uuid=those[0].device_uuid,
        device_type=those[0].device_type,
        host=those[0].host,
        rows=sum(one.rows for one in those),
        points=[
            SeriesPoint(
                at=first + one.step * step,
                rows=one.rows,
                rows_per_minute=60 * one.rows / seconds,
                duty=None if one.window_s is None else one.window_s / seconds,
                power_w=one.power_w,
                sm_clock_mhz=one.sm_clock_mhz,
                temperature_c=one.temperature_c,
            )
            for one in those
        ],
    )
