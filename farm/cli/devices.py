"""`farm devices`: every device the farm has heard of, what it does now, and taking it out of work and back."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from farm.cli.output import JsonOption, console, emit_json, table
from farm.coordinator.outlook import condition, presence_text
from farm.db import devices as queries
from farm.db import duty, progress
from farm.db.duty import Duty
from farm.db.progress import DeviceNow, Presence
from farm.db.tables import DeviceState, FailureKind
from farm.errors import AmbiguousDevice, UnknownDevice, UnknownHost
from farm.services.session import session
from farm.texts import seconds_text, share_text, some_of

app = typer.Typer(
    help="Devices and hosts: what each does now, errors of the last hour, when it was last heard of.",
    invoke_without_command=True,
)

WhichArgument = Annotated[
    list[str],
    typer.Argument(help="A device's UUID, a beginning of it that no other has, or host:NAME.", show_default=False),
]

HOST = "host:"
"""How all devices of a host are named."""


@app.callback()
def _devices(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the devices; drain, quarantine and resume take them out of work and back, until somebody says otherwise."""
    if context.invoked_subcommand is None:
        list_(as_json)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """Devices and hosts: state, what each does now, errors of the last hour by class, and when it was last heard of.

    Duty is the share of time inside a measurement, in the last ten minutes and without breaks of a minute and more.
    Silent ones first: FARM_SILENT_AFTER_SECONDS (20) without a word from their worker.
    """
    with session() as opened, opened.engine.connect() as connection:
        silent_after = opened.settings.silent_after_seconds
        rows = {row["device_id"]: row for row in queries.overview(connection, silent_after=silent_after)}
        known = [d for d in progress.devices(connection, silent_after=silent_after) if d.device_id in rows]
        errors = progress.device_errors(connection)
        duties = duty.lately(connection)
    known.sort(key=lambda d: d.presence is not Presence.SILENT)
    if as_json:
        emit_json([_to_json(rows[d.device_id], d, errors.get(d.device_id, {}), duties.get(d.device_id)) for d in known])
    elif known:
        _print(known, rows, errors, duties)
    else:
        console.print("No device has been announced yet. Start a worker: farm-worker, or everything here: farm up")


def _to_json(row: dict[str, Any], device: DeviceNow, errors: dict[str, int], lately: Duty | None) -> dict[str, Any]:
    return {
        **row,
        "presence": device.presence,
        "state_s": device.state_s,
        "vanished_s": device.vanished_s,
        "duty_lately": None if lately is None else lately.share,
        "errors_last_hour": {kind: errors.get(kind, 0) for kind in FailureKind},
    }


def _print(
    known: Sequence[DeviceNow],
    rows: dict[int, dict[str, Any]],
    errors: dict[int, dict[str, int]],
    duties: dict[int, Duty],
) -> None:
    lines = [
        (
            f"{d.uuid}\n{d.type} on {d.host}", _state(d), _now(rows[d.device_id], d), rows[d.device_id]["measurements"],
            share_text(duties[d.device_id].share) if d.device_id in duties else None,
            "\n".join(f"{n:,} {kind}" for kind, n in errors.get(d.device_id, {}).items()) or None,
        )
        for d in known
    ]  # fmt: skip
    columns = ["device", "state,\nlast heard of", "now", "measured", "duty", "errors\nin 1 h"]
    console.print(table(None, columns, lines, right=["measured", "duty"], whole=["device", columns[1], "measured"]))
    for d in known:
        if d.state is not DeviceState.ACTIVE:
            console.print(f"[yellow]{escape(d.uuid)}[/]: {escape(condition(d))}")


def _state(device: DeviceNow) -> Text:
    """What keeps it from work, or that it lives; below, when it was last heard of."""
    words = [] if device.presence is Presence.LIVE else [device.presence.value]
    words += [] if device.state is DeviceState.ACTIVE else [device.state.value]
    style = "yellow" if words else "green"
    if device.presence is Presence.SILENT:
        style = "bold red"
    if device.silent_s is not None:
        heard = f"{seconds_text(device.silent_s)} ago"
    else:
        heard = "" if device.vanished_s is None else f"for {seconds_text(device.vanished_s)}"
    return Text.assemble((", ".join(words) or "live", style), f"\n{heard}")


def _now(row: dict[str, Any], device: DeviceNow) -> str:
    if row["batch_id"] is None:
        return "idle" if device.presence is Presence.LIVE else "–"
    job = "" if row["job_id"] is None else f", job {row['job_id']}"
    return f"{row['campaign']}\nbatch {row['batch_id']}{job}, {seconds_text(row['busy_s'])}"


# --- out of work and back ----------------------------------------------------------------------------


@app.command()
def drain(
    which: WhichArgument,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why; shown with the device.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Give the devices no more work. What they hold they finish. It lasts until farm devices resume."""
    _set(which, DeviceState.DRAINED, reason, as_json)


@app.command()
def quarantine(
    which: WhichArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; shown with the device.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Stop using the devices: the job in hand is finished, the rest goes elsewhere. It lasts until farm devices resume."""
    _set(which, DeviceState.QUARANTINED, reason, as_json)


@app.command()
def resume(which: WhichArgument, as_json: JsonOption = False) -> None:
    """Let the devices take work again."""
    _set(which, DeviceState.ACTIVE, None, as_json)


def _set(which: Sequence[str], state: DeviceState, reason: str | None, as_json: bool) -> None:
    """All the devices or, where one is unknown or ambiguous, none."""
    with session() as opened, opened.engine.begin() as connection:
        chosen = select(progress.devices(connection, silent_after=opened.settings.silent_after_seconds), which)
        after: list[tuple[DeviceNow, str | None, bool]] = []
        for device in chosen:
            if device.state is state and reason is None:
                after.append((device, device.reason, False))
                continue
            signed = None if state is DeviceState.ACTIVE else _signed(reason)
            after.append((device, signed, queries.set_state(connection, device.device_id, state, signed)))
    if as_json:
        emit_json(
            [
                {"uuid": d.uuid, "host": d.host, "before": d.state, "state": state, "reason": why, "changed": changed}
                for d, why, changed in after
            ]
        )
        return
    for device, why, changed in after:
        console.print(f"{device.uuid} on {device.host} {_outcome(device, state, why, changed)}", markup=False)


def _signed(reason: str | None) -> str:
    try:
        by = f"by {getpass.getuser()}"
    except (KeyError, OSError):  # a container without a login name
        by = "from the command line"
    return by if reason is None else f"{reason} ({by})"


def _outcome(device: DeviceNow, state: DeviceState, reason: str | None, changed: bool) -> str:
    if not changed:
        return f"was {state} already{f' ({reason})' if reason else ''}; nothing changed."
    held = device.batch_id
    if state is DeviceState.DRAINED:
        rest = "It takes no work." if held is None else f"It finishes batch {held} and takes no more."
        return f"is drained: {reason}. {rest}"
    if state is DeviceState.QUARANTINED:
        rest = (
            "It takes no work."
            if held is None
            else f"It finishes the job in hand; the rest of batch {held} waits again."
        )
        return f"is quarantined: {reason}. {rest}"
    if device.presence is Presence.LIVE:
        return "takes work again."
    return f"takes work again when its worker is heard of: it is {presence_text(device)}."


def select(known: Sequence[DeviceNow], which: Sequence[str]) -> list[DeviceNow]:
    """The devices that are named, each once, in the order of their names.

    Raises `UnknownDevice`, `UnknownHost`, `AmbiguousDevice`.
    """
    chosen = {device.uuid: device for name in which for device in _named(known, name)}
    return list(chosen.values())


def _named(known: Sequence[DeviceNow], name: str) -> list[DeviceNow]:
    if name.startswith(HOST):
        found = [device for device in known if device.host == name.removeprefix(HOST)]
        if not found:
            hosts = some_of(sorted({device.host for device in known})) or "none yet"
            raise UnknownHost(host=name.removeprefix(HOST), known=hosts)
        return found
    exact = [device for device in known if device.uuid == name]
    found = exact or [device for device in known if name and device.uuid.lower().startswith(name.lower())]
    if not found:
        raise UnknownDevice(which=name, known=some_of([device.uuid for device in known]) or "none yet")
    if len(found) > 1:
        raise AmbiguousDevice(which=name, candidates=some_of([f"{d.uuid} on {d.host}" for d in found]))
    return found
