"""`farm hosts`: one database login for each worker host."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich.markup import escape

from farm.api import farm_of, hosts
from farm.api.hosts import NewHost
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.settings import settings

app = typer.Typer(help="Manage worker hosts: one database login for each.", invoke_without_command=True)


@app.callback()
def _list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the logins of worker hosts. A login acts for the devices of its host, and for no others."""
    if context.invoked_subcommand is not None:
        return
    with farm_of(settings()) as farm:
        known = farm.ask(hosts.list_)
    if as_json:
        emit_json(known)
    elif not known:
        console.print("No host has a login of its own: farm hosts add NAME")
    else:
        _HOSTS.print(
            (
                one.host or "every host",
                one.login,
                one.devices if one.host else None,
                f"{one.created_at:%Y-%m-%d %H:%M}",
                None if one.last_seen_at is None else f"{one.last_seen_at:%Y-%m-%d %H:%M}",
            )
            for one in known
        )


_HOSTS = Table(
    "hosts",
    Column("host", folds=True),
    Column("login", folds=True),
    Column("devices", number=True),
    Column("made", "(UTC)", priority=2),
    Column("last heard of", "(UTC)", priority=1),
)


@app.command()
@takes(NewHost)
def add(new_host: NewHost, *, as_json: JsonOption = False) -> None:
    """Make the login of a worker host and print its settings. If the host has a login, give it the rights of this version.

    The login acts for devices that are registered under this name. Run this again for each host after
    farm db upgrade.

    A new login gets a new password, which is printed once. The address of Redis is that of FARM_BROKER_URL, and the
    password of its user farm_worker is FARM_REDIS_WORKER_PASSWORD. Notes on standard error explain where to find values
    that are not known here. With FARM_API_URL, the addresses and settings are those of the server.

    Examples:
        farm hosts add gpu-7
    """
    with farm_of(settings()) as farm:
        added = farm.ask(hosts.add, new_host)
    if added.warning is not None:
        remarks.print(escape(added.warning))
    if as_json:
        emit_json(added)
        return
    remarks.print(
        f"The login {escape(added.login)} {'was made' if added.new else 'is as it should be'}. On {escape(added.host)} set:"
    )
    for one in added.settings:
        typer.echo(f"{one.variable}={shlex.quote(one.value)}")
    if added.password is not None:
        remarks.print("The password in FARM_DATABASE_URL is not shown again.")
    for note in (note for one in added.settings for note in one.notes):
        remarks.print(f"- {note}.", markup=False)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The host's name, as farm devices shows it.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """End the login of a worker host and its connections. Its results are kept, and its jobs in hand go to other devices.

    Examples:
        farm hosts revoke gpu-7
    """
    with farm_of(settings()) as farm:
        revoked = farm.ask(hosts.revoke, name)
    if as_json:
        emit_json(revoked)
    else:
        console.print(f"The login of {name} is revoked, and its connections are ended.", markup=False)
