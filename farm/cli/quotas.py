"""`farm quotas`: what owners may have underway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from farm.api import farm_of, quotas
from farm.api.quotas import QuotaLimits, QuotaNow
from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.errors import BadInput
from farm.settings import settings

app = typer.Typer(
    help="Show and set limits of owners: open jobs, device time, priorities.", invoke_without_command=True
)

NO_LIMIT = "none"

OwnerArgument = Annotated[str, typer.Argument(help="An owner of campaigns: a token's name.", show_default=False)]


@app.callback()
def _quotas(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the limits of owners and their use. Quotas apply to the role submit."""
    if context.invoked_subcommand is not None:
        return
    with farm_of(settings()) as farm:
        found = farm.ask(quotas.list_)
    if as_json:
        emit_json(found)
    elif found:
        _print(found)
    else:
        console.print("Nobody has work underway, and nobody has a quota of their own.")


_QUOTAS = Table(
    "quotas",
    Column("owner", folds=True),
    Column("open jobs", number=True),
    Column("of", number=True),
    Column("device time", "h", number=True),
    Column("of", "h", number=True),
    Column("priorities", priority=1),
    Column("set for it", priority=2),
)


def _print(found: Sequence[QuotaNow]) -> None:
    _QUOTAS.print(
        (
            one.owner, one.jobs_underway, NO_LIMIT if one.open_jobs is None else one.open_jobs,
            f"{one.device_seconds_underway / 3600:,.1f}",
            NO_LIMIT if one.device_seconds is None else f"{one.device_seconds / 3600:,.1f}",
            f"{one.min_priority} to {one.max_priority}", "yes" if one.own else "no, the defaults",
        )
        for one in found
    )  # fmt: skip


@app.command("set")
def set_(
    owner: OwnerArgument,
    open_jobs: Annotated[
        str | None,
        typer.Option("--open-jobs", metavar="N", help="Jobs that wait or run; none: no limit.", show_default=False),
    ] = None,
    device_hours: Annotated[
        str | None,
        typer.Option(
            "--device-hours", metavar="H", help="Estimated device time in progress; none: no limit.", show_default=False
        ),
    ] = None,
    min_priority: Annotated[int | None, typer.Option("--min-priority", min=-100, max=100, show_default=False)] = None,
    max_priority: Annotated[int | None, typer.Option("--max-priority", min=-100, max=100, show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Set limits for an owner. Limits without an option don't change, and neither does work in progress.

    Examples:
        farm quotas set ada --open-jobs 50000 --device-hours 100 --max-priority 10
        farm quotas set ci --open-jobs none
    """
    with farm_of(settings()) as farm:
        now = farm.ask(quotas.show, owner)
        lowest = now.min_priority if min_priority is None else min_priority
        highest = now.max_priority if max_priority is None else max_priority
        if lowest > highest:
            raise BadInput(detail=f"The lowest priority of {owner} would be {lowest}, above the highest, {highest}.")
        limits = QuotaLimits(
            open_jobs=now.open_jobs if open_jobs is None else _whole("--open-jobs", open_jobs),
            device_seconds=now.device_seconds if device_hours is None else _seconds("--device-hours", device_hours),
            min_priority=lowest,
            max_priority=highest,
        )
        done = farm.ask(quotas.set_, owner, limits)
    _say(done, as_json)


def _whole(option: str, written: str) -> int | None:
    if written == NO_LIMIT:
        return None
    if not (written.isascii() and written.isdecimal() and len(written) <= 18):
        raise BadInput(detail=f"{option} {written} is neither a number of jobs nor {NO_LIMIT}.")
    return int(written)


def _seconds(option: str, written: str) -> float | None:
    if written == NO_LIMIT:
        return None
    try:
        hours = float(written)
    except ValueError:
        hours = -1.0
    if not 0 <= hours * 3600 <= quotas.MAX_SECONDS:
        raise BadInput(detail=f"{option} {written} is neither a number of hours nor {NO_LIMIT}.")
    return hours * 3600


@app.command()
def reset(owner: OwnerArgument, as_json: JsonOption = False) -> None:
    """Remove the limits of an owner. The defaults apply again (FARM_QUOTA_OPEN_JOBS and others).

    Examples:
        farm quotas reset ada
    """
    with farm_of(settings()) as farm:
        done = farm.ask(quotas.reset, owner)
    _say(done, as_json)


def _say(done: QuotaNow, as_json: bool) -> None:
    if as_json:
        emit_json(done)
    else:
        _print([done])
