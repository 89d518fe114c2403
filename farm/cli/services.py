"""`farm up`, `farm down`, `farm doctor`: start, stop and check the farm on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from farm import __version__ as farm_version
from farm.api import about, farm_of
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.cli.training import can_train
from farm.errors import FarmError, first_line
from farm.installing import INSTALL
from farm.services import background
from farm.services.background import RunningStack
from farm.services.doctor import Check, CheckState, examine
from farm.services.session import require_own
from farm.settings import Settings, settings

SERVICE_IS_BROKEN = 3
"""The exit code of `farm.errors` for a service that cannot be used."""


def up(
    workers: Annotated[bool, typer.Option("--workers/--no-workers", help="Measure on this machine's devices.")] = True,
    trainer: Annotated[bool, typer.Option("--trainer/--no-trainer", help="Train models on this machine.")] = True,
    builder: Annotated[
        bool,
        typer.Option("--builder/--no-builder", help="Build kernels, where the extra build or triton is installed."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Start the farm in the background: services, coordinator, workers and trainer. They run until farm down.

    The trainer and the builder run only while there is work for them. Until then their state is "waiting".

    Examples:
        farm up
        farm up --no-trainer
    """
    require_own(settings())
    if trainer and not can_train():
        remarks.print(f"No trainer: it needs MLflow and scikit-learn ({INSTALL['trainer']}).", markup=False)
        trainer = False
    with remarks.status("starting the farm"):
        stack, started = background.start_in_background(settings(), workers=workers, trainer=trainer, builder=builder)
    ended = {name: program["log"] for name, program in stack.programs.items() if program["state"] == "ended"}
    if as_json:
        emit_json({"started": started, **asdict(stack)})
    else:
        _show(stack, started=started)
    for name, log in ended.items():
        remarks.print(f"[yellow]{name} ended, and is started again and again.[/] {log} says why.", soft_wrap=True)
    if ended:
        raise typer.Exit(SERVICE_IS_BROKEN)


_PROGRAMS = Table(
    "programs",
    Column("program"),
    Column("state"),
    Column("process", number=True),
    Column("restarts", number=True),
    Column("log", priority=1),
)


def _show(stack: RunningStack, *, started: bool) -> None:
    console.print("The farm is up." if started else f"The farm is up already (process {stack.pid}).")
    rows = [
        (name, p["state"], str(p["pid"] or "–"), p["restarts"], Path(p["log"]).name)
        for name, p in stack.programs.items()
    ]
    _PROGRAMS.print(rows)
    for name, url in stack.urls.items():
        console.print(f"{name:<9} {url}", soft_wrap=True)
    console.print(f"{'logs':<9} {stack.home / 'logs'}", soft_wrap=True)
    remarks.print("Next: farm submit FILE, farm status. farm down stops it.")


def down(as_json: JsonOption = False) -> None:
    """Stop what farm up started, and services that a killed command left running. Data are kept.

    Examples:
        farm down
    """
    with remarks.status("stopping the farm"):
        done = background.stop_in_background(settings())
    if as_json:
        emit_json(asdict(done))
        return
    console.print(f"Stopped: {', '.join(done.stopped)}." if done.stopped else "Nothing was running.")
    if done.still_used:
        console.print(f"Still used by another command, and goes on until that ends: {', '.join(done.still_used)}.")


_CHECKS = Table("checks", Column("check"), Column("state"), Column("what", folds=True), Column("fix", folds=True))


def doctor(as_json: JsonOption = False) -> None:
    """Check every dependency of the farm and name the fix for each problem. Changes nothing.

    Examples:
        farm doctor
        farm doctor --json
    """
    with remarks.status("looking"):
        checks = [*examine(settings()), *_check_api(settings())]
    if as_json:
        emit_json([asdict(check) for check in checks])
    else:
        colours = {CheckState.OK: "green", CheckState.WARNING: "yellow", CheckState.MISSING: "red"}
        _CHECKS.print(
            (check.check, Text(check.state, style=colours[check.state]), check.what, check.fix) for check in checks
        )
    if any(check.state is CheckState.MISSING for check in checks):
        raise typer.Exit(SERVICE_IS_BROKEN)


def _check_api(current: Settings) -> list[Check]:
    """Checks whether the API of FARM_API_URL answers, and for which account."""
    if current.api_url is None:
        return []
    try:
        with farm_of(current) as farm:
            found = farm.ask(about.show)
    except FarmError as error:
        return [Check("api", CheckState.MISSING, first_line(error), "start farm serve there, or correct FARM_API_URL")]
    what = f"version {found.version} at {current.api_url}, to {found.who}; {found.devices_live} devices are live"
    if found.version != farm_version:
        return [Check("api", CheckState.WARNING, what, f"this is version {farm_version}: use the same on both sides")]
    return [Check("api", CheckState.OK, what)]
