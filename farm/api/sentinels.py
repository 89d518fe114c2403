"""Sentinels: whether devices drift, and how those of one type compare between hosts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import Cli, Document, operation
from farm.db import campaigns, sentinels
from farm.db.sentinels import SentinelRow, SentinelSeries
from farm.errors import UnknownDevice
from farm.formatting import some_of


class SentinelNow(Document):
    """Drift of one device. Times are in ms, drift is in percent. `since` is the time of the first sentinel."""

    device_uuid: str
    device_type: str
    host: str
    campaign: str
    n: int
    ratio: float | None = Field(description="the latest time over the median of all devices of the type")
    flagged: bool
    drifts_since: datetime | None
    latest_ms: float
    first_ms: float
    drift_percent: float | None
    spread_percent: float | None
    since: datetime
    first: SentinelRow
    latest: SentinelRow


@operation("GET", "/sentinels")
def list_(
    access: Access,
    *,
    campaign: Annotated[
        str | None,
        Field(description="One campaign; without it, each device's newest that has sentinels."),
        Cli(argument=True),
    ] = None,
    device: Annotated[
        str | None, Field(description="One device: its UUID, or how it begins."), Cli(("--device", "-d"))
    ] = None,
) -> list[SentinelNow]:
    """Show the drift of devices. Each measures a fixed GEMM, its sentinel, at intervals during a campaign."""
    with access.connect() as connection:
        campaign_id = None if campaign is None else campaigns.find(connection, campaign)["id"]
        seen = sentinels.series_of_devices(connection, campaign_id=campaign_id)
    if device is not None:
        named = [one for one in seen if one.device_uuid.lower().startswith(device.lower())]
        if not named:
            known = some_of([one.device_uuid for one in seen]) or "none with a sentinel"
            raise UnknownDevice(which=device, known=known)
        seen = named
    return [sentinel_now(one) for one in seen]


def sentinel_now(one: SentinelSeries) -> SentinelNow:
    """The document of one device's sentinels."""
    kept = ("device_uuid", "device_type", "host", "campaign", "n", "ratio", "flagged", "drifts_since", "latest_ms")
    first = one.rows[0]
    return SentinelNow(
        **{name: getattr(one, name) for name in kept},
        first_ms=first.runtime_ms if one.drift is None else one.drift.base_ms,
        drift_percent=None if one.drift is None else 100 * one.drift.deviation,
        spread_percent=None if one.drift is None else 100 * one.drift.spread,
        since=first.measured_at,
        first=first,
        latest=one.rows[-1],
    )
