"""The health of the fleet: which devices are slow, hot, throttled or power-capped, since when, and how sure that is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import Document, operation
from farm.compare.health import ALPHA, TOLERANCE, DeviceHealth, Question
from farm.moments import moment


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
    type: Annotated[str | None, Field(description="only devices of this type")] = None,  # noqa: A002
    host: Annotated[str | None, Field(description="only devices of this host; their peers may be elsewhere")] = None,
    device: Annotated[str | None, Field(description="one device: its UUID, or how it begins")] = None,
    since: Annotated[
        str | None, Field(description="what counts as now: 7d unless given; before it is the past")
    ] = None,
    tolerance: Annotated[float, Field(ge=0, le=50, description="a smaller difference in time is no alarm, in %")] = 100
    * TOLERANCE,
    alpha: Annotated[
        float, Field(ge=0.0001, le=50, description="how often a fleet with nothing wrong may raise an alarm, in %")
    ] = 100 * ALPHA,
    any_source: Annotated[bool, Field(description="recorded and imported rows too, to try it out")] = False,
) -> FleetHealth:
    """Check the health of devices: each is compared with its peers and with its own past."""
    from farm.compare.health.asking import health  # it loads numpy, which no other operation needs to wait for

    found = health(
        access.session.engine,
        Question(
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
    return FleetHealth(
        unwell=len(found.unwell),
        since=found.since,
        until=found.until,
        tolerance=found.tolerance,
        alpha=found.alpha,
        tests=found.tests,
        devices=list(found.devices),
        notes=list(found.notes),
    )
