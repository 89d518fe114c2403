"""`farm redis`: the users of the broker."""

from __future__ import annotations

import secrets

import typer

from farm.broker import redis_users
from farm.broker.redis_users import RedisUser
from farm.cli.output import JsonOption, emit_json, remarks
from farm.settings import settings

app = typer.Typer(help="Manage the users of Redis.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def users(as_json: JsonOption = False) -> None:
    """Print the ACL file of Redis: one user per service, with only the keys and commands that it needs.

    Their passwords are FARM_REDIS_COORDINATOR_PASSWORD, FARM_REDIS_WORKER_PASSWORD, FARM_REDIS_BUILDER_PASSWORD and
    FARM_REDIS_TRAINER_PASSWORD. Unset: one is made and printed on standard error. The file contains SHA-256 hashes only.

    Start Redis with aclfile naming the file, or run ACL LOAD after a change.

    Examples:
        farm redis users
    """
    current = settings()
    given = {
        RedisUser.COORDINATOR: current.redis_coordinator_password,
        RedisUser.WORKER: current.redis_worker_password,
        RedisUser.BUILDER: current.redis_builder_password,
        RedisUser.TRAINER: current.redis_trainer_password,
    }
    made = {user: secrets.token_urlsafe(24) for user in RedisUser if given[user] is None}
    passwords = made | {user: value.get_secret_value() for user, value in given.items() if value is not None}
    lines = redis_users.acl_lines(passwords)
    if as_json:
        emit_json({"acl": lines, "made": {redis_users.name_of(user): password for user, password in made.items()}})
        return
    typer.echo("\n".join(lines))
    if made:
        remarks.print("The passwords that were made, which are not shown again:")
        for user, password in made.items():
            typer.echo(f"{redis_users.name_of(user)} {password}", err=True)
