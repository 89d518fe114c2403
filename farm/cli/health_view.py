"""The presenter of fleet health: a line for each device, then the findings about devices that are not healthy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from farm.api.health import FleetHealth
from farm.cli.output import console, remarks
from farm.cli.tables import Column, Table, unique_beginnings
from farm.compare.health import DeviceHealth, Estimate, Finding, HealthVerdict
from farm.compare.health.finding_messages import percent, since_text

_STYLES = {HealthVerdict.HEALTHY: "green", HealthVerdict.UNKNOWN: "dim"}


def show(found: FleetHealth) -> None:
    if not found.devices:
        console.print("No device matches. To include imported and recorded devices: --any-source")
        return
    _print_devices(found)
    for device in found.devices:
        if device.verdict is not HealthVerdict.HEALTHY:
            _explain(device)
    of_notes = defaultdict[str, list[DeviceHealth]](list)
    for device in found.devices:
        for note in device.notes:
            of_notes[note].append(device)
    for note, alike in of_notes.items():
        _note(f"{_named(alike, found)}: {note}")
    for note in found.notes:
        _note(note)
    unknown = sum(device.verdict is HealthVerdict.UNKNOWN for device in found.devices)
    unwell = found.unwell
    console.print(
        f"{len(found.devices) - unwell - unknown} healthy, {unwell} not, {unknown} unknown since "
        f"{found.since:%Y-%m-%d %H:%M} UTC. An alarm needs a difference in time of more than {100 * found.tolerance:g}%. A "
        f"healthy fleet raises any alarm with a probability of at most {percent(found.alpha)}.",
        highlight=False,
    )


_DEVICES = Table(
    "device health",
    Column("device", short=unique_beginnings),
    Column("type", folds=True, priority=2),
    Column("host", folds=True, priority=1),
    Column("verdict"),
    Column("time / peers", number=True),
    Column("time / peers interval", number=True, priority=3),
    Column("time / past", number=True, priority=1),
    Column("time / past interval", number=True, priority=5),
    Column("energy / peers", number=True, priority=2),
    Column("energy / peers interval", number=True, priority=6),
    Column("above peers", "°C", number=True, priority=4),
    Column("rows", number=True, priority=7),
)


def _print_devices(found: FleetHealth) -> None:
    _DEVICES.print(
        (
            one.uuid,
            one.type,
            one.host,
            Text(one.verdict, style=_STYLES.get(one.verdict, "bold red")),
            *_factor(one.time),
            *_factor(one.past),
            *_factor(one.energy),
            None if one.temperature is None else f"{one.temperature.value:+.1f}",
            one.rows,
        )
        for one in found.devices
    )


def _factor(one: Estimate | None) -> tuple[str | None, str | None]:
    """A factor and its interval."""
    if one is None:
        return None, None
    return f"{one.value:.4f}", None if one.low is None or one.high is None else f"{one.low:.3f}–{one.high:.3f}"


def _explain(device: DeviceHealth) -> None:
    console.print(Text(f"{device.uuid} on {device.host}", style="bold"))
    for finding in device.findings:
        style = _STYLES.get(finding.verdict, "red")
        console.print(
            Padding(f"[{style}]{finding.verdict}[/]: {escape(_sentence(finding))}", (0, 0, 0, 2), expand=False)
        )
        if finding.advice:
            console.print(Padding(escape(finding.advice), (0, 0, 0, 4), expand=False), style="dim")


def _sentence(finding: Finding) -> str:
    return finding.evidence + ("" if finding.since is None else f"; {since_text(finding.since)}") + "."


def _named(devices: Sequence[DeviceHealth], found: FleetHealth) -> str:
    if len(devices) == len(found.devices) > 1:
        return "all"
    return devices[0].uuid + (f" and {len(devices) - 1} more" if len(devices) > 1 else "")


def _note(text: str) -> None:
    remarks.print(f"[yellow]note:[/] {escape(text)}")
