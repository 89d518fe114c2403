"""`farm devices`: every known device and its current work; drain, quarantine and resume devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from farm.api import devices as operations
from farm.api import farm_of
from farm.api.device_states import DeviceSet
from farm.api.devices import DeviceLine
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.status import print_worker_problems
from farm.cli.tables import Column, Table, unique_beginnings
from farm.db.liveness import Presence
from farm.db.states import DeviceState
from farm.formatting import seconds_text, share_text
from farm.settings import settings

app = typer.Typer(
    help="List and control devices and hosts: current work, errors of the last hour, last heartbeat.",
    invoke_without_command=True,
)


@app.callback()
@app.command("list")
@takes(operations.list_)
def list_(
    query: dict[str, Any],
    *,
    context: typer.Context,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Include imported devices: rows measured elsewhere.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List devices and hosts: state, current work, errors of the last hour by class, and last heartbeat.

    Duty is the share of time inside a measurement, in the last ten minutes, without breaks of a minute or more. Silent devices come
    first: their worker sent no heartbeat for FARM_SILENT_AFTER_SECONDS (20). --all adds devices of imported files; --json always has
    them.

    Examples:
        farm devices list --json
    """
    if context.invoked_subcommand is not None:
        return
    with farm_of(settings()) as farm:
        known = farm.ask(operations.list_, **query)
        running, contended = farm.ask(operations.versions), farm.ask(operations.contended)
    if as_json:
        emit_json(known)
        return
    shown = [d for d in known if all_ or d.presence is not Presence.IMPORTED]
    if shown:
        _print(shown)
    elif any(query.values()):
        console.print("No device matches.")
    else:
        console.print("No device has been announced yet. Start a worker: farm-worker, or everything here: farm up")
    print_worker_problems(running, contended)
    if hidden := len(known) - len(shown):
        devices = "device is" if hidden == 1 else "devices are"
        remarks.print(f"{hidden:,} imported {devices} not listed. To list all devices: farm devices --all")


_DEVICES = Table(
    "devices",
    Column("device", short=unique_beginnings),
    Column("type", folds=True, priority=3),
    Column("host", folds=True, priority=2),
    Column("state"),
    Column("last heartbeat", priority=1),
    Column("campaign", folds=True, priority=4),
    Column("batch", number=True, priority=6),
    Column("job", number=True, priority=5),
    Column("for", number=True, priority=5),
    Column("measured", number=True),
    Column("version", priority=7),
    Column("duty", number=True, priority=1),
    Column("errors in 1 h", folds=True, priority=1),
)


def _print(known: Sequence[DeviceLine]) -> None:
    _DEVICES.print(
        (
            d.uuid, d.type, d.host, _state(d), _heard(d), *_work(d), d.measurements, d.worker_version,
            None if d.duty_lately is None else share_text(d.duty_lately),
            ", ".join(f"{n:,} {kind}" for kind, n in d.errors_last_hour.items() if n) or None,
        )
        for d in known
    )  # fmt: skip
    for d in known:
        if d.state is not DeviceState.ACTIVE:
            console.print(f"[yellow]{escape(d.uuid)}[/]: {escape(d.condition)}")


def _state(device: DeviceLine) -> Text:
    """What keeps it from work, or that it is live."""
    words = [] if device.presence is Presence.LIVE else [device.presence.value]
    words += [] if device.state is DeviceState.ACTIVE else [device.state.value]
    style = "yellow" if words else "green"
    if device.presence is Presence.SILENT:
        style = "bold red"
    return Text(", ".join(words) or "live", style=style)


def _heard(device: DeviceLine) -> str | None:
    if device.silent_s is not None:
        return f"{seconds_text(device.silent_s)} ago"
    return None if device.vanished_s is None else f"gone for {seconds_text(device.vanished_s)}"


def _work(device: DeviceLine) -> tuple[str | None, ...]:
    """The campaign, the batch and the job of a device, and for how long it has been busy."""
    if device.batch_id is None or device.busy_s is None:
        return ("idle" if device.presence is Presence.LIVE else None), None, None, None
    job = None if device.job_id is None else str(device.job_id)
    return device.campaign, str(device.batch_id), job, seconds_text(device.busy_s)


# --- out of work and back ----------------------------------------------------------------------------


def _kept(after: list[DeviceSet]) -> list[dict[str, Any]]:
    return [device.model_dump(include={"uuid", "host", "before", "state", "reason", "changed"}) for device in after]


@app.command()
@asks(operations.drain, json_of=_kept)
def drain(after: list[DeviceSet]) -> None:
    """Give the devices no more work. They finish the batch in hand. Undo with farm devices resume.

    Examples:
        farm devices drain GPU-4e7a5dfa --reason "new driver"
    """
    _print_outcomes(after)


@app.command()
@asks(operations.quarantine, required=("reason",), json_of=_kept)
def quarantine(after: list[DeviceSet]) -> None:
    """Stop using the devices. They finish the job in hand, and other devices take the rest. Undo with farm devices resume.

    Examples:
        farm devices quarantine GPU-4e7a5dfa --reason "wrong results"
    """
    _print_outcomes(after)


@app.command()
@asks(operations.resume, without=("reason",), json_of=_kept)
def resume(after: list[DeviceSet]) -> None:
    """Let the devices take work again.

    Examples:
        farm devices resume GPU-4e7a5dfa
    """
    _print_outcomes(after)


def _print_outcomes(after: Sequence[DeviceSet]) -> None:
    for device in after:
        console.print(f"{device.uuid} on {device.host} {_outcome(device)}", markup=False)


def _outcome(device: DeviceSet) -> str:
    batch = device.batch_id
    if not device.changed:
        return f"was {device.state} already{f' ({device.reason})' if device.reason else ''}; nothing changed."
    if device.state is DeviceState.ACTIVE:
        if device.presence is Presence.LIVE:
            return "takes work again."
        return f"takes work again after the next heartbeat of its worker: it is {device.presence_text}."
    if batch is None:
        rest = "It takes no work."
    elif device.state is DeviceState.DRAINED:
        rest = f"It finishes batch {batch} and takes no more."
    else:
        rest = f"It finishes the job in hand; the rest of batch {batch} waits again."
    return f"is {device.state}: {device.reason}. {rest}"
