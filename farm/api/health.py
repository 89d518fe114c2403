"""The health of the fleet: which devices are slow, hot, throttled or power-capped, since when, and how sure that is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import Cli, Document, operation
from farm.compare.health import ALPHA, TOLERANCE, DeviceHealth, HealthQuery
from farm.time_parsing import moment


class FleetHealth(Document):
    """The health of a fleet in a window of time: a verdict for each device, and what it rests on."""

    unwell: int = Field(description="devices that need a look")
    since: datetime
    until: datetime
    tolerance: float
    alpha: float
    tests: int
    devices: list[DeviceHealth]
    notes: list[str]


@operation("GET", "/health")
def show(
    access: Access,
    *,
    type: Annotated[  # noqa: A002
        str | None, Field(description="Only devices of this type."), Cli(("--type", "-t"))
    ] = None,
    host: Annotated[str | None, Field(description="Only devices of this host; their peers may be elsewhere.")] = None,
    device: Annotated[
        str | None, Field(description="One device: its UUID, or how it begins."), Cli(("--device", "-d"))
    ] = None,
    since: Annotated[
        str | None,
        Field(
            description="What counts as now: 7d unless given, or a time as 2026-11-22 (UTC). What is before it is the past."
        ),
        Cli(metavar="TIME"),
    ] = None,
    tolerance: Annotated[
        float, Field(ge=0, le=50, description="A smaller difference in time is no alarm, in %."), Cli(metavar="PCT")
    ] = 100 * TOLERANCE,
    alpha: Annotated[
        float,
        Field(ge=0.0001, le=50, description="How often a fleet with nothing wrong may raise an alarm, in %."),
        Cli(metavar="PCT"),
    ] = 100 * ALPHA,
    any_source: Annotated[bool, Field(description="Recorded and imported rows too, to try it out.")] = False,
) -> FleetHealth:
    """Check the health of devices: each is compared with its peers and with its own past."""
    from farm.compare.health.fleet_query import (
        fleet_health,  # it loads numpy, which no other operation needs to wait for
    )

    found = fleet_health(
        access.session.engine,
        HealthQuery(
            device_type=type,
            host=host,
            device=device,
            since=None if since is None else moment(since),
            tolerance=tolerance / 100,
            alpha=alpha / 100,
            any_source=any_source,
            silent_after_s=access.silent_after,
        ),
    )
    return FleetHealth.model_validate(found, from_attributes=True)
