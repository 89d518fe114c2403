"""`farm health`: which devices are slow, hot, throttled or power-capped, since when, and how sure that is."""

from __future__ import annotations

from typing import Any

from farm.api import farm_of
from farm.api import health as operations
from farm.cli.options import takes
from farm.cli.output import JsonOption, emit_json
from farm.errors import FarmError
from farm.formatting import some_of
from farm.settings import settings


class DeviceUnwell(FarmError):
    """{unhealthy} of {devices} devices need a look: {which}."""

    exit_code = 7


@takes(operations.show)
def health(
    query: dict[str, Any],
    *,
    as_json: JsonOption = False,
) -> None:
    """Check the health of devices against their peers and their own past. Exits with code 7 if a device is unhealthy.

    Shows devices that are slow, hot, throttled, power-capped, drifting, corrupting results or gone, since when, with what confidence, and what to do.

    Examples:
        farm health
        farm health --type nvidia-h200 --since 7d
    """
    from farm.cli import health_view  # it loads numpy, which no other command needs to wait for

    with farm_of(settings()) as farm:
        found = farm.ask(operations.show, **query)
    if as_json:
        emit_json(found)
    else:
        health_view.show(found)
    if found.unwell:
        listed = [f"{one.uuid} on {one.host} ({one.verdict})" for one in found.devices if one.verdict.alarms]
        raise DeviceUnwell(unhealthy=len(listed), devices=len(found.devices), which=some_of(listed, limit=4))
