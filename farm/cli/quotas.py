"""`farm quotas`: limits on the work that owners have in progress."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.api import farm_of, quotas
from farm.api.quotas import MAX_SECONDS, NO_LIMIT, QuotaLimits, QuotaNow
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, emit_json
from farm.cli.result_table import ResultTable
from farm.db.quotas import MAX_PRIORITY, MIN_PRIORITY
from farm.errors import BadInput
from farm.settings import settings

app = typer.Typer(
    help="Show and set limits of owners: open jobs, device time, priorities.", invoke_without_command=True
)

_QUOTAS = ResultTable("quotas", QuotaNow, first=("owner", "jobs_underway", "open_jobs", "device_seconds_underway"))


@app.callback()
@asks(quotas.list_)
def _list(found: list[QuotaNow]) -> None:
    """List the limits of owners and their use. Quotas apply to the role submit."""
    _QUOTAS.show(found, otherwise="No owner has open work or limits of its own.")


@app.command("set")
@takes(quotas.show)
def set_(
    query: dict[str, str],
    *,
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
    min_priority: Annotated[
        int | None,
        typer.Option("--min-priority", min=MIN_PRIORITY, max=MAX_PRIORITY, help="Lowest priority.", show_default=False),
    ] = None,
    max_priority: Annotated[
        int | None,
        typer.Option(
            "--max-priority", min=MIN_PRIORITY, max=MAX_PRIORITY, help="Highest priority.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set limits for an owner. Limits without an option don't change, and neither does work in progress.

    Examples:
        farm quotas set ada --open-jobs 50000 --device-hours 100 --max-priority 10
        farm quotas set ci --open-jobs none
    """
    owner = query["owner"]
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
    if as_json:
        emit_json(done)
    else:
        _QUOTAS.show([done])


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
    if not 0 <= hours * 3600 <= MAX_SECONDS:
        raise BadInput(detail=f"{option} {written} is neither a number of hours nor {NO_LIMIT}.")
    return hours * 3600


@app.command()
@asks(quotas.reset)
def reset(done: QuotaNow) -> None:
    """Remove the limits of an owner. The defaults apply again (FARM_QUOTA_OPEN_JOBS and others).

    Examples:
        farm quotas reset ada
    """
    _QUOTAS.show([done])
