"""`farm sessions`: browsers that are signed in."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.db import web_sessions
from farm.errors import BadInput
from farm.services.session import session

app = typer.Typer(help="List and end the sessions of browsers that are signed in.", invoke_without_command=True)


@app.callback()
def _list(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Sessions that are over, too.", show_default=False)] = False,
    as_json: JsonOption = False,
) -> None:
    """List the browsers that are signed in. Of a session's id only a hash is kept."""
    if context.invoked_subcommand is not None:
        return
    with session() as opened, opened.engine.connect() as connection:
        known = [one for one in web_sessions.known(connection) if one.valid or all_]
    if as_json:
        emit_json(known)
    elif not known:
        console.print("No browser is signed in.")
    else:
        _SESSIONS.print(
            (
                one.id,
                one.name,
                one.role,
                one.address,
                one.origin,
                one.browser,
                _day(one.created_at),
                _day(one.last_used_at),
                _until(one),
            )
            for one in known
        )


_SESSIONS = Table(
    "sessions",
    Column("id", number=True),
    Column("who", folds=True),
    Column("role"),
    Column("from", priority=2),
    Column("at", folds=True, priority=4),
    Column("browser", folds=True, priority=5),
    Column("signed in", "(UTC)", priority=3),
    Column("last used", "(UTC)", priority=1),
    Column("until", "(UTC)"),
)


@app.command()
def revoke(
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID]...", help="Sessions, as farm sessions lists them.", show_default=False),
    ] = None,
    of: Annotated[
        str | None, typer.Option("--of", metavar="NAME", help="All sessions of a token or login.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """End sessions now. Their token stays valid. farm tokens revoke ends both.

    Examples:
        farm sessions revoke 12 15
        farm sessions revoke --of ada
    """
    if bool(ids) is (of is not None):
        raise BadInput(detail="Name sessions by their ids, or whose they are with --of NAME.")
    with session() as opened, opened.change("sessions_revoke") as change:
        if of is not None:
            ended = web_sessions.revoke_named(change.connection, of)
            change.record("session", f"all of {of}", after={"ended": ended})
        else:
            ended = web_sessions.revoke(change.connection, ids or [])
            change.record("session", ", ".join(map(str, ids or [])), after={"ended": ended})
    if as_json:
        emit_json({"ended": ended})
    else:
        console.print(f"{ended} {'session' if ended == 1 else 'sessions'} ended.")


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _until(one: web_sessions.SessionNow) -> Text | str:
    if one.ended_at is not None:
        return Text(f"ended {_day(one.ended_at)}", style="yellow")
    return _day(one.expires_at) if one.valid else Text("over", style="yellow")
