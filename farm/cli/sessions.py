"""`farm sessions`: browsers that are signed in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import typer
from rich.text import Text

from farm.api import farm_of, sessions
from farm.api.sessions import SessionChoice, SessionLine
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.settings import settings

app = typer.Typer(help="List and end the sessions of browsers that are signed in.", invoke_without_command=True)


@app.callback()
@takes(sessions.list_)
def _list(query: dict[str, Any], *, context: typer.Context, as_json: JsonOption = False) -> None:
    """List the browsers that are signed in. Of a session's id only a hash is kept."""
    if context.invoked_subcommand is not None:
        return
    with farm_of(settings()) as farm:
        known = farm.ask(sessions.list_, **query)
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
@takes(SessionChoice)
def revoke(choice: SessionChoice, *, as_json: JsonOption = False) -> None:
    """End sessions now. Their token stays valid. farm tokens revoke ends both.

    Examples:
        farm sessions revoke 12 15
        farm sessions revoke --of ada
    """
    with farm_of(settings()) as farm:
        done = farm.ask(sessions.revoke, choice)
    if as_json:
        emit_json(done)
    else:
        console.print(f"{done.ended} {'session' if done.ended == 1 else 'sessions'} ended.")


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _until(one: SessionLine) -> Text | str:
    if one.ended_at is not None:
        return Text(f"ended {_day(one.ended_at)}", style="yellow")
    return _day(one.expires_at) if one.valid else Text("over", style="yellow")
