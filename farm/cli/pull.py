"""`farm pull`: the finished campaigns of another farm, into this one."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.api import farm_of
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.progress import counting
from farm.errors import BadInput
from farm.settings import settings
from farm.time_parsing import moment


def pull(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The farm serve of the other farm: https://host.", show_default=False)
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The name of the other farm here. Give the same one each time.",
            show_default="the host and port of the URL",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only campaigns that ended from this day or time on, or this long ago: 2h, 7d.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Import the finished campaigns of another farm over its HTTP API. Again, it imports only what is new.

    FARM_PULL_TOKEN has a token of that farm, with the role read. Rows are stored as imported, with their farm, device, driver and
    times. Rows that the other farm imported itself are not passed on.

    Examples:
        farm pull https://farm-b.example --name b
        farm pull http://127.0.0.1:8001 --since 7d --json
    """
    from farm.client.pulling import Pull, name_of, other_farm

    earliest = None if since is None else moment(since)
    here = settings()
    other = other_farm(url, None if here.pull_token is None else here.pull_token.get_secret_value())
    try:
        called = name_of(url, name)
        with farm_of(here) as farm:
            work = Pull(other, farm, called)
            try:
                found = work.campaigns(earliest)
                with counting(f"campaigns of {called}", len(found)) as done:
                    work.run(found, done)
            except KeyboardInterrupt:
                remarks.print(
                    f"Interrupted after {work.done.rows:,} rows. The same command continues; nothing is stored twice.",
                    markup=False,
                )
                raise typer.Exit(130) from None
    finally:
        other.close()
    if as_json:
        emit_json(work.done)
    else:
        for line in work.done.campaigns:
            if line.rows:
                console.print(f"{line.campaign}: {line.rows:,} rows of {', '.join(line.device_types)}", markup=False)
        own = f" {work.done.own:,} are this farm's own." if work.done.own else ""
        console.print(
            f"{work.done.rows:,} rows of {called} were imported. {work.done.unchanged:,} campaigns have no new rows.{own}",
            markup=False,
        )
    if failed := [f"{line.campaign}: {line.error}" for line in work.done.campaigns if line.error]:
        raise BadInput(detail="\n".join(failed))
