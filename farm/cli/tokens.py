"""`farm tokens`: who may do what over HTTP."""

from __future__ import annotations

import typer
from rich.markup import escape

from farm.api import tokens
from farm.api.tokens import CreatedToken, RevokedToken, TokenLine
from farm.cli.options import asks
from farm.cli.output import console, remarks
from farm.cli.result_table import ResultTable

app = typer.Typer(
    help="Manage tokens of the pages and the API, which allow to read, submit, operate or administer.",
    invoke_without_command=True,
)

_TOKENS = ResultTable("tokens", TokenLine)


@app.callback()
@asks(tokens.list_)
def _list(found: list[TokenLine]) -> None:
    """List the tokens. The farm keeps only a hash of a token, which is shown once when it is made."""
    _TOKENS.show(found, otherwise="There are no tokens yet. To make one: farm tokens create NAME --role read")


@app.command()
@asks(tokens.create)
def create(created: CreatedToken) -> None:
    """Make a token and print it once. Use it as FARM_API_TOKEN, or sign in to the page with it.

    Examples:
        farm tokens create ada --role submit --expires 30d
    """
    remarks.print(f"The token of {escape(created.name)}, who may {created.role}. It is not shown again:")
    typer.echo(created.token)


@app.command()
@asks(tokens.revoke)
def revoke(revoked: RevokedToken) -> None:
    """Revoke a token. It gives no access from now on.

    Examples:
        farm tokens revoke ada
    """
    console.print(f"The token of {revoked.name} is revoked.", markup=False)
