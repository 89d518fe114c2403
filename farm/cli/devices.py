"""`farm devices`: every device the farm has heard of, what it does now, and taking it out of work and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from farm.api import devices as operations
from farm.api import farm_of
from farm.api.access import Access
from farm.api.devices import DeviceLine, DeviceSet, Which
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table, unique_beginnings
from farm.db.progress import Presence
from farm.db.states import DeviceState
from farm.formatting import seconds_text, share_text
from farm.settings import settings

app = typer.Typer(
    help="List and control devices and hosts: current work, errors of the last hour, last heartbeat.",
    invoke_without_command=True,
)

WhichArgument = Annotated[
    list[str],
    typer.Argument(help="A device's UUID, a beginning of it that no other has, or host:NAME.", show_default=False),
]


ImportedOption = Annotated[
    bool, typer.Option("--all", "-a", help="Imported devices too: rows measured elsewhere.", show_default=False)
]


@app.callback()
def _devices(context: typer.Context, all_: ImportedOption = False, as_json: JsonOption = False) -> None:
    """List devices. drain and quarantine stop them, and resume starts them again."""
    if context.invoked_subcommand is None:
        list_(all_, as_json)


@app.command("list")
def list_(all_: ImportedOption = False, as_json: JsonOption = False) -> None:
    """List devices and hosts: state, current work, errors of the last hour by class, and last heartbeat.

    Duty is the share of time inside a measurement, in the last ten minutes, without breaks of a minute or more. Silent devices come
    first: their worker sent no heartbeat for FARM_SILENT_AFTER_SECONDS (20). --all adds devices of imported files; --json always has
    them.

    Examples:
        farm devices list --json
    """
    with farm_of(settings()) as farm:
        known, running = farm.ask(operations.list_), farm.ask(operations.versions)
        contended = farm.ask(operations.contended)
    if as_json:
        emit_json(known)
        return
    shown = [d for d in known if all_ or d.presence is not Presence.IMPORTED]
    if shown:
        _print(shown)
    else:
        console.print("No device has been announced yet. Start a worker: farm-worker, or everything here: farm up")
    if running.skew is not None:
        remarks.print(f"[yellow]workers:[/] {escape(running.skew)}")
    for one in contended:
        remarks.print(f"[yellow]contended:[/] {escape(one.text)}")
    if hidden := len(known) - len(shown):
        remarks.print(
            f"{hidden:,} imported {'device is' if hidden == 1 else 'devices are'} not listed: farm devices --all lists "
            f"{'it' if hidden == 1 else 'them'} too."
        )


_DEVICES = Table(
    "devices",
    Column("device", short=unique_beginnings),
    Column("type", folds=True, priority=3),
    Column("host", folds=True, priority=2),
    Column("state"),
    Column("last heard of", priority=1),
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


@app.command()
def drain(
    which: WhichArgument,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why; shown with the device.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Give the devices no more work. They finish the batch in hand. Undo with farm devices resume.

    Examples:
        farm devices drain GPU-4e7a5dfa --reason "new driver"
    """
    _set(operations.drain, which, reason, as_json)


@app.command()
def quarantine(
    which: WhichArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; shown with the device.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Stop using the devices. They finish the job in hand, and other devices take the rest. Undo with farm devices resume.

    Examples:
        farm devices quarantine GPU-4e7a5dfa --reason "wrong results"
    """
    _set(operations.quarantine, which, reason, as_json)


@app.command()
def resume(which: WhichArgument, as_json: JsonOption = False) -> None:
    """Let the devices take work again.

    Examples:
        farm devices resume GPU-4e7a5dfa
    """
    _set(operations.resume, which, None, as_json)


def _set(
    operation: Callable[[Access, Which], list[DeviceSet]], which: list[str], reason: str | None, as_json: bool
) -> None:
    with farm_of(settings()) as farm:
        after = farm.ask(operation, Which(which=which, reason=reason))
    if as_json:
        kept = {"uuid", "host", "before", "state", "reason", "changed"}
        emit_json([device.model_dump(include=kept) for device in after])
        return
    for device in after:
        console.print(f"{device.uuid} on {device.host} {_outcome(device)}", markup=False)


def _outcome(device: DeviceSet) -> str:
    held = device.batch_id
    if not device.changed:
        return f"was {device.state} already{f' ({device.reason})' if device.reason else ''}; nothing changed."
    if device.state is DeviceState.DRAINED:
        rest = "It takes no work." if held is None else f"It finishes batch {held} and takes no more."
        return f"is drained: {device.reason}. {rest}"
    if device.state is DeviceState.QUARANTINED:
        rest = (
            "It takes no work."
            if held is None
            else f"It finishes the job in hand; the rest of batch {held} waits again."
        )
        return f"is quarantined: {device.reason}. {rest}"
    if device.presence is Presence.LIVE:
        return "takes work again."
    return f"takes work again when its worker is heard of: it is {device.presence_text}."
