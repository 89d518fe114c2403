"""`farm hosts`: one database login for each worker host."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from sqlalchemy import text

from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.db import roles, worker_logins
from farm.errors import BadRole
from farm.services import host_settings
from farm.services.session import session
from farm.settings import settings

app = typer.Typer(help="Manage worker hosts: one database login for each.", invoke_without_command=True)

NameArgument = Annotated[str, typer.Argument(help="The host's name, as farm devices shows it.", show_default=False)]


@app.callback()
def _list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the logins of worker hosts. A login acts for the devices of its host, and for no others."""
    if context.invoked_subcommand is not None:
        return
    with session() as opened, opened.engine.connect() as connection:
        known = worker_logins.known(connection)
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
def add(
    name: NameArgument,
    prefix: Annotated[
        str, typer.Option(help="How logins begin, where several farms share one server.")
    ] = worker_logins.DEFAULT_PREFIX,
    as_json: JsonOption = False,
) -> None:
    """Make the login of a worker host and print its settings. If the host has a login, give it the rights of this version.

    The login acts for devices that are registered under this name. Run this again for each host after
    farm db upgrade.

    A new login gets a new password, which is printed once. The address of Redis is that of FARM_BROKER_URL, and the
    password of its user farm_worker is FARM_REDIS_WORKER_PASSWORD. Notes on standard error explain where to find values
    that this host does not know.

    Examples:
        farm hosts add gpu-7
    """
    login, current = worker_logins.login_of(name, prefix), settings()
    _require_shared(login)
    # These may refuse a setting, so they come before a password that is printed once.
    others = [host_settings.broker(current, name=name), host_settings.kernel_keys(current)]
    with session() as opened, opened.change("hosts_add") as change:
        new = not roles.exists(change.connection, login)
        made = secrets.token_urlsafe(24) if new else None
        worker_logins.add(change.connection, name, password=made, prefix=prefix)
        change.record("host", name, after={"login": login, "new": new, "password_set": new})
        limited = roles.limits_temporary_files(change.connection, login)
        database = host_settings.database(
            opened.urls.database_url,
            name=name,
            login=login,
            password=made,
            database=change.connection.execute(text("SELECT current_database()")).scalar_one(),
        )
    if not limited:
        remarks.print(escape(roles.NO_FILE_LIMIT.format(name=login)))
    lines = [database, *others]
    if as_json:
        emit_json(
            {"host": name, "login": login, "new": new, "password": made, "settings": [asdict(one) for one in lines]}
        )
        return
    remarks.print(f"The login {escape(login)} {'was made' if new else 'is as it should be'}. On {escape(name)} set:")
    for one in lines:
        typer.echo(f"{one.variable}={shlex.quote(one.value)}")
    if made is not None:
        remarks.print("The password in FARM_DATABASE_URL is not shown again.")
    for note in (note for one in lines for note in one.notes):
        remarks.print(f"- {note}.", markup=False)


@app.command()
def revoke(name: NameArgument, as_json: JsonOption = False) -> None:
    """End the login of a worker host and its connections. Its results are kept, and its jobs in hand go to other devices.

    Examples:
        farm hosts revoke gpu-7
    """
    with session() as opened:
        with opened.change("hosts_revoke") as change:
            logins = worker_logins.shut_out(change.connection, name)
            change.record("host", name, after={"logins": logins, "revoked": True})
        with opened.change("hosts_revoke") as change:
            worker_logins.remove(change.connection, name, logins)
            change.record("host", name, after={"logins": [], "revoked": True})
    if as_json:
        emit_json({"host": name, "logins": logins, "revoked": True})
    else:
        console.print(f"The login of {name} is revoked, and its connections are ended.", markup=False)


def _require_shared(login: str) -> None:
    """Raises `BadRole` where the database is the embedded one."""
    here = settings()
    if here.embedded_database:
        why = f"the database embedded in {here.home} has one role, and only this machine reaches it"
        raise BadRole(
            name=login, whom="workers", why=f"{why}. Set FARM_DATABASE_URL to a Postgres that worker hosts reach"
        )
