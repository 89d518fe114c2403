"""`farm tokens`: who may do what over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from farm.api import farm_of, tokens
from farm.api.tokens import NewToken, TokenLine
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.settings import settings

app = typer.Typer(
    help="Manage tokens of the pages and the API, which allow to read, submit, operate or administer.",
    invoke_without_command=True,
)


@app.callback()
def _list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the tokens. Of a token itself only a hash is kept: it is shown once, where it is made."""
    if context.invoked_subcommand is not None:
        return
    with farm_of(settings()) as farm:
        known = farm.ask(tokens.list_)
    if as_json:
        emit_json(known)
    elif not known:
        console.print("No token was made yet: farm tokens create NAME --role read")
    else:
        rows = [(t.name, t.role, t.created_by, _day(t.created_at), _day(t.last_used_at), _until(t)) for t in known]
        _TOKENS.print(rows)


_TOKENS = Table(
    "tokens",
    Column("name", folds=True),
    Column("role"),
    Column("made by", folds=True, priority=2),
    Column("made", "(UTC)", priority=3),
    Column("last used", "(UTC)", priority=1),
    Column("valid until", "(UTC)"),
)


@app.command()
@takes(NewToken)
def create(new_token: NewToken, *, as_json: JsonOption = False) -> None:
    """Make a token and print it once. Use it as FARM_API_TOKEN, or sign in to the page with it.

    Examples:
        farm tokens create ada --role submit --expires 30d
    """
    with farm_of(settings()) as farm:
        created = farm.ask(tokens.create, new_token)
    if as_json:
        emit_json(created)
        return
    remarks.print(f"The token of {escape(created.name)}, who may {created.role}. It is not shown again:")
    typer.echo(created.token)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The token's name.", show_default=False)], as_json: JsonOption = False
) -> None:
    """Revoke a token. It gives no access from now on.

    Examples:
        farm tokens revoke ada
    """
    with farm_of(settings()) as farm:
        revoked = farm.ask(tokens.revoke, name)
    if as_json:
        emit_json(revoked)
    else:
        console.print(f"The token of {name} is revoked.", markup=False)


def _day(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%d %H:%M}"


def _until(token: TokenLine) -> Text | str:
    if token.revoked_at is not None:
        return Text(f"revoked {_day(token.revoked_at)}", style="yellow")
    if not token.valid:
        return Text(f"expired {_day(token.expires_at)}", style="yellow")
    return _day(token.expires_at) or "for ever"
