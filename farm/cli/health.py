"""`farm health`: which devices are slow, hot, throttled or power-capped, since when, and how sure that is."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.api import farm_of
from farm.api import health as operations
from farm.cli.output import JsonOption, emit_json
from farm.errors import FarmError
from farm.settings import settings
from farm.texts import some_of


class DeviceUnwell(FarmError):
    """{unwell} of {devices} devices need a look: {which}."""

    exit_code = 7


def health(
    device_type: Annotated[str | None, typer.Option("--type", "-t", help="Only devices of this type.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Only devices of this host; their peers may be elsewhere.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="One device: its UUID, or how it begins.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="What counts as now: 7d unless given, or a time as 2026-11-22 (UTC). What is before it is the past.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            metavar="PCT",
            min=0,
            max=50,
            help="A smaller difference in time is no alarm: 3, in %, unless given.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha",
            metavar="PCT",
            min=0.0001,
            max=50,
            help="How often a fleet with nothing wrong may raise an alarm: 5, in %, unless given.",
        ),
    ] = None,
    any_source: Annotated[
        bool, typer.Option("--any-source", help="Recorded and imported rows too, to try it out.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the health of devices: each is compared with its peers and with its own past; ends with exit code 7 where one is not.

    Which is slow, hot, throttled, power-capped, drifting or gone, since when, with how much confidence, and what to do.

    Examples:
        farm health
        farm health --type nvidia-h200 --since 7d
    """
    from farm.cli import unwell  # it loads numpy, which no other command needs to wait for

    with farm_of(settings()) as farm:
        found = farm.ask(
            operations.show,
            type=device_type,
            host=host,
            device=device,
            since=since,
            **({} if tolerance is None else {"tolerance": tolerance}),
            **({} if alpha is None else {"alpha": alpha}),
            any_source=any_source,
        )
    if as_json:
        emit_json(found)
    else:
        unwell.show(found)
    if found.unwell:
        listed = [f"{one.uuid} on {one.host} ({one.verdict})" for one in found.devices if one.verdict.alarms]
        raise DeviceUnwell(unwell=len(listed), devices=len(found.devices), which=some_of(listed, most=4))
