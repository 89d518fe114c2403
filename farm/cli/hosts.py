"""`farm hosts`: one database login for each worker host."""

from __future__ import annotations

import shlex

import typer
from rich.markup import escape

from farm.api import hosts
from farm.api.hosts import AddedHost, HostLine, RevokedHost
from farm.cli.options import asks
from farm.cli.output import console, remarks
from farm.cli.result_table import ResultTable

app = typer.Typer(help="Manage worker hosts: one database login for each.", invoke_without_command=True)


_HOSTS = ResultTable("hosts", HostLine, first=("host", "login"))


@app.callback()
@asks(hosts.list_)
def _list(found: list[HostLine]) -> None:
    """List the logins of worker hosts. A login acts only for the devices of its host."""
    _HOSTS.show(found, otherwise="No host has a login of its own. To add one: farm hosts add NAME")


@app.command()
@asks(hosts.add)
def add(added: AddedHost) -> None:
    """Make the login of a worker host and print its settings. If the host has a login, give it the rights of this version.

    The login acts for devices that are registered under this name. Run this again for each host after
    farm db upgrade.

    A new login gets a new password, which is printed once. The address of Redis is that of FARM_BROKER_URL, and the
    password of its user farm_worker is FARM_REDIS_WORKER_PASSWORD. Notes on standard error explain where to find values
    that are not known here. With FARM_API_URL, the addresses and settings are those of the server.

    Examples:
        farm hosts add gpu-7
    """
    if added.warning is not None:
        remarks.print(escape(added.warning))
    remarks.print(
        f"The login {escape(added.login)} {'was created' if added.new else 'is up to date'}. On {escape(added.host)} set:"
    )
    for one in added.settings:
        typer.echo(f"{one.variable}={shlex.quote(one.value)}")
    if added.password is not None:
        remarks.print("The password in FARM_DATABASE_URL is not shown again.")
    for note in (note for one in added.settings for note in one.notes):
        remarks.print(f"- {note}.", markup=False)


@app.command()
@asks(hosts.revoke)
def revoke(revoked: RevokedHost) -> None:
    """End the login of a worker host and its connections. Its results are kept, and its jobs in hand go to other devices.

    Examples:
        farm hosts revoke gpu-7
    """
    console.print(f"The login of {revoked.host} is revoked, and its connections are ended.", markup=False)
