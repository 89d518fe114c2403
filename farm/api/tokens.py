"""Tokens of the API and the pages: list, create, revoke."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import Cli, Document, InTable, operation
from farm.db import tokens
from farm.db.states import Role
from farm.time_parsing import duration

TokenName = Annotated[str, Field(description="The token's name."), Cli(argument=True, metavar="NAME")]


class TokenLine(Document):
    """A token. The database has only the hash of the token itself."""

    name: Annotated[str, InTable(folds=True)]
    role: Annotated[Role, InTable()]
    created_by: Annotated[str, InTable("made by", folds=True, priority=2)]
    created_at: Annotated[datetime, InTable("made", priority=3)]
    expires_at: Annotated[
        datetime | None, InTable("expires", text=lambda at: f"{at:%Y-%m-%d %H:%M}" if at else "never")
    ]
    revoked_at: Annotated[datetime | None, InTable("revoked")]
    last_used_at: Annotated[datetime | None, InTable("last used", priority=1)]
    valid: Annotated[bool, InTable(text=lambda valid: "yes" if valid else "no")] = Field(
        description="until it expires or is revoked"
    )


class NewToken(Document):
    """Request to create a token."""

    name: Annotated[str, Field(description="Who it is for: a person or a program."), Cli(argument=True)]
    role: Annotated[
        Role,
        Field(
            description="What it allows. read: read, and use models. submit: also submit campaigns and control its own. "
            "operate: all campaigns and devices. admin: also tokens, sessions and worker hosts."
        ),
        Cli(("--role", "-r")),
    ] = Role.READ
    expires: Annotated[
        str | None,
        Field(description="Not valid after this long: 12h, 30d. Without it, never expires."),
        Cli(metavar="TIME"),
    ] = None


class CreatedToken(Document):
    """A new token. It is shown only in this response."""

    name: str
    role: Role
    token: str


class RevokedToken(Document):
    """A token that gives no access any more."""

    name: str
    revoked: bool = True


@operation("GET", "/tokens", role=Role.ADMIN)
def list_(access: Access) -> list[TokenLine]:
    """List the tokens, valid ones first."""
    with access.connect() as connection:
        return [TokenLine.model_validate(one) for one in tokens.list_tokens(connection)]


@operation("POST", "/tokens", role=Role.ADMIN, privileged=True)
def create(access: Access, new_token: NewToken) -> CreatedToken:
    """Create a token. The response is the only place that shows it."""
    lifetime = None if new_token.expires is None else duration(new_token.expires)
    with access.change(create) as change:
        token = tokens.create(change.connection, new_token.name, new_token.role, by=access.who, lifetime=lifetime)
        change.record("token", new_token.name, after={"role": new_token.role, "lifetime": lifetime})
    return CreatedToken(name=new_token.name, role=new_token.role, token=token)


@operation("POST", "/tokens/{token_name}/revoke", role=Role.ADMIN, privileged=True)
def revoke(access: Access, token_name: TokenName) -> RevokedToken:
    """Revoke a token. It gives no access from now on, and its sessions end."""
    with access.change(revoke) as change:
        tokens.revoke(change.connection, token_name)
        change.record("token", token_name, after={"revoked": True})
    return RevokedToken(name=token_name)
