"""Sessions of browsers that are signed in: list and end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, model_validator

from farm.api.access import Access
from farm.api.operation import MAX_ID, Cli, Document, InTable, operation
from farm.db import web_sessions
from farm.db.states import Role

SessionId = Annotated[int, Field(ge=1, le=MAX_ID)]


class SessionLine(Document):
    """A browser that is or was signed in. The database has only the hash of the session's secret."""

    id: Annotated[int, InTable()]
    name: Annotated[str, InTable("who", folds=True)] = Field(description="of the token or login")
    role: Annotated[Role, InTable()]
    origin: Annotated[str, InTable("at", folds=True, priority=4)] = Field(
        description="scheme, host and port at which the browser signed in"
    )
    address: Annotated[str, InTable("from", priority=2)]
    browser: Annotated[str, InTable(folds=True, priority=5)]
    created_at: Annotated[datetime, InTable("signed in", priority=3)]
    last_used_at: Annotated[datetime, InTable("last used", priority=1)]
    expires_at: Annotated[datetime, InTable("until")]
    ended_at: Annotated[datetime | None, InTable("ended")]
    valid: Annotated[bool, InTable(text=lambda valid: "yes" if valid else "no")]


class SessionChoice(Document):
    """Sessions to end: by their ids, or all of a token or login."""

    ids: Annotated[list[SessionId], Cli(argument=True, metavar="[ID]...")] = Field(
        default=[], max_length=1000, description="Sessions, as farm sessions lists them."
    )
    of: Annotated[str | None, Field(description="All sessions of a token or login."), Cli(metavar="NAME")] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SessionChoice:
        if bool(self.ids) is (self.of is not None):
            raise ValueError("Name sessions by their ids, or whose they are with --of NAME.")
        return self


class EndedSessions(Document):
    """How many sessions ended."""

    ended: int


@operation("GET", "/sessions", role=Role.ADMIN)
def list_(
    access: Access,
    *,
    all: Annotated[bool, Field(description="Include sessions that have ended."), Cli(("--all", "-a"))] = False,  # noqa: A002
) -> list[SessionLine]:
    """List the browsers that are signed in."""
    with access.connect() as connection:
        return [SessionLine.model_validate(one) for one in web_sessions.list_sessions(connection) if one.valid or all]


@operation("POST", "/sessions/revoke", role=Role.ADMIN)
def revoke(access: Access, sessions: SessionChoice) -> EndedSessions:
    """End sessions now. Their tokens stay valid."""
    with access.change(revoke) as change:
        if sessions.of is not None:
            ended = web_sessions.revoke_named(change.connection, sessions.of)
            change.record("session", f"all of {sessions.of}", after={"ended": ended})
        else:
            ended = web_sessions.revoke(change.connection, sessions.ids)
            change.record("session", ", ".join(map(str, sessions.ids)), after={"ended": ended})
    return EndedSessions(ended=ended)
