"""`farm sessions`: browsers that are signed in."""

from __future__ import annotations

import typer

from farm.api import sessions
from farm.api.sessions import EndedSessions, SessionLine
from farm.cli.options import asks
from farm.cli.output import console
from farm.cli.result_table import ResultTable

app = typer.Typer(help="List and end the sessions of browsers that are signed in.", invoke_without_command=True)

_SESSIONS = ResultTable("sessions", SessionLine)


@app.callback()
@asks(sessions.list_)
def _list(found: list[SessionLine]) -> None:
    """List the browsers that are signed in. The farm keeps only a hash of a session's secret."""
    _SESSIONS.show(found, otherwise="No browser is signed in.")


@app.command()
@asks(sessions.revoke)
def revoke(done: EndedSessions) -> None:
    """End sessions now. Their token stays valid. farm tokens revoke ends both.

    Examples:
        farm sessions revoke 12 15
        farm sessions revoke --of ada
    """
    console.print(f"{done.ended} {'session' if done.ended == 1 else 'sessions'} ended.")
