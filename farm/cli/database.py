"""`farm db`: the revision of the database, and the roles of services, workers and readers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.markup import escape
from sqlalchemy import Engine

from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.db import audit, live_programs, migrate, roles, service_roles
from farm.db.engine import make_engine
from farm.db.service_roles import Service
from farm.errors import BadRole
from farm.services import services
from farm.services.session import require_own
from farm.settings import settings

app = typer.Typer(
    help="Manage the revision of the database and the roles of services, workers and readers.", no_args_is_help=True
)


@app.command()
def upgrade(
    force: Annotated[
        bool, typer.Option("--force", help="Upgrade even if live programs fail then.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upgrade the database to the revision that this version of the farm needs. Data are kept.

    Programs that run go on. If the new revision does not serve a live program, nothing is changed.

    Examples:
        farm db upgrade
    """
    with _database() as engine:
        before = migrate.upgrade(
            engine,
            waiting=lambda: remarks.print("Another upgrade of this database is under way; waiting until it ends."),
            check=None if force else live_programs.require_served_after,
        )
        after = migrate.current(engine)
    if as_json:
        emit_json({"before": before, "after": after})
    elif before == after:
        console.print(f"The database is at revision {after} already.")
    else:
        console.print(f"The database went from {before or 'no tables'} to revision {after}.")


@app.command()
def current(as_json: JsonOption = False) -> None:
    """Show the revision of the database, the revision that this version needs, and the oldest programs that it serves.

    Examples:
        farm db current
    """
    with _database() as engine:
        found = migrate.current(engine)
        oldest = {program: migrate.served_from(engine, program) for program in migrate.DECLARATIONS}
    if as_json:
        declared = {name: oldest[program] for program, name in migrate.DECLARATIONS.items()}
        emit_json({"current": found, "needed": migrate.head(), **declared})
        return
    console.print(f"The database is at {found or 'no revision'}; this version needs {migrate.head()}.")
    for program, revision in oldest.items():
        if revision is not None:
            console.print(f"It serves {program} of the farm from revision {revision} on.")


_PROGRAMS = Table(
    "programs of the farm",
    Column("host"),
    Column("program"),
    Column("version"),
    Column("revision"),
    Column("build", priority=2),
    Column("count", number=True, priority=1),
    Column("since", "(UTC)", priority=3),
)


@app.command()
def programs(as_json: JsonOption = False) -> None:
    """List the live programs of the farm with their hosts and versions.

    A program that was killed is listed for 90 seconds.

    Examples:
        farm db programs
    """
    with _database() as engine, engine.connect() as connection:
        found = live_programs.live(connection) if migrate.current(engine) else []
    if as_json:
        emit_json([asdict(one) for one in found])
        return
    if not found:
        remarks.print("No program of the farm runs.")
        return
    _PROGRAMS.print(
        (
            one.host,
            one.program,
            one.version,
            one.revision,
            one.build,
            one.count,
            one.started_at and f"{one.started_at:%Y-%m-%d %H:%M}",
        )
        for one in found
    )


@app.command(name="roles")
def service_roles_(
    prefix: Annotated[
        str, typer.Option(help="Prefix of the names, if several farms share one server.")
    ] = service_roles.DEFAULT_PREFIX,
    as_json: JsonOption = False,
) -> None:
    """Create or update the database roles of the services: farm_application, farm_web and farm_trainer.

    None of them owns a table. All are made in one transaction. Run this again after every farm db upgrade.

    Their passwords are FARM_APPLICATION_PASSWORD, FARM_WEB_PASSWORD and FARM_TRAINER_PASSWORD. Unset: a new role gets one, printed
    this once; an old one keeps its own.

    FARM_DATABASE_URL must name the role that owns the tables. From then on only roles with rights in this database connect to it.

    Examples:
        farm db roles
        farm db roles --prefix lab2
    """
    current_settings = settings()
    names = {service: service_roles.name_of(service, prefix) for service in Service}
    _require_shared("services", "services", names[Service.APPLICATION])
    given: dict[Service, SecretStr | None] = {
        Service.APPLICATION: current_settings.application_password,
        Service.WEB: current_settings.web_password,
        Service.TRAINER: current_settings.trainer_password,
    }
    with _database() as engine:
        migrate.require_head(engine)
        with audit.change(engine, audit.local_actor(), "db_roles") as change:
            new = {service: not roles.exists(change.connection, name) for service, name in names.items()}
            made = {
                service: secrets.token_urlsafe(24) for service in Service if new[service] and given[service] is None
            }
            passwords = {service: _value(given[service]) or made.get(service) for service in Service}
            service_roles.set_up_service_roles(change.connection, passwords, prefix=prefix)
            for service, name in names.items():
                change.record(
                    "database role", name, after={"new": new[service], "password_set": bool(passwords[service])}
                )
    if as_json:
        emit_json([{"role": names[one], "new": new[one], "password": made.get(one)} for one in Service])
        return
    for service, name in names.items():
        remarks.print(f"The role {escape(name)} {'was created' if new[service] else 'is up to date'}.")
    if made:
        remarks.print("The passwords of new roles, which are not shown again:")
        for service, password in made.items():
            typer.echo(f"{names[service]} {password}")


def _value(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


@app.command()
def worker_role(
    name: Annotated[str, typer.Argument(help="The role's name.")] = roles.WORKER_ROLE,
    as_json: JsonOption = False,
) -> None:
    """Create or update the database role of worker hosts. It can only claim and land.

    It cannot change tables, campaigns, results, models or other roles. Run this again after every farm db upgrade.

    Its password is FARM_WORKER_PASSWORD. Unset: a new role gets one, printed this once; an old one keeps its own.

    Workers then use FARM_DATABASE_URL=postgresql://farm_worker:PASSWORD@HOST:5432/farm.

    Examples:
        farm db worker-role
    """
    _set_up(
        name,
        settings().worker_password,
        roles.set_up_worker_role,
        whom="workers",
        can="claim and land",
        as_json=as_json,
    )


@app.command()
def reader_role(
    name: Annotated[str, typer.Argument(help="The role's name.")] = roles.READER_ROLE,
    as_json: JsonOption = False,
) -> None:
    """Create or update a database role for pandas, Grafana and similar programs. It can only read the views.

    docs/sql.md describes them. Run this again after every farm db upgrade.

    Its password is FARM_READER_PASSWORD. Unset: a new role gets one, printed this once; an old one keeps its own.

    Readers then use postgresql://farm_reader:PASSWORD@HOST:5432/farm.

    Examples:
        farm db reader-role
    """
    _set_up(
        name,
        settings().reader_password,
        roles.set_up_reader_role,
        whom="readers",
        can="read the views",
        as_json=as_json,
    )


def _set_up(
    name: str, given: SecretStr | None, set_up: Callable[..., None], *, whom: str, can: str, as_json: bool
) -> None:
    """Creates or updates a role with the given password, or with a new one, which it prints."""
    _require_shared(whom, "worker hosts" if whom == "workers" else whom, name)
    with _database() as engine:
        migrate.require_head(engine)
        with audit.change(engine, audit.local_actor(), f"db_{whom}_role") as change:
            new = not roles.exists(change.connection, name)
            made = secrets.token_urlsafe(24) if new and given is None else None
            set_up(change.connection, name, password=_value(given) or made)
            change.record("database role", name, after={"new": new, "password_set": bool(given or made)})
            limited = whom != "workers" or roles.limits_temporary_files(change.connection, name)
    if not limited:
        remarks.print(escape(roles.NO_FILE_LIMIT.format(name=name)))
    if as_json:
        emit_json({"role": name, "new": new, "password": made})
        return
    remarks.print(f"The role {escape(name)} {'was created' if new else 'is up to date'}: it can {can}.")
    if made is not None:
        remarks.print("Its password, which is not shown again:")
        typer.echo(made)


def _require_shared(whom: str, who: str, name: str) -> None:
    """Raises `BadRole` for the embedded database."""
    current_settings = settings()
    if current_settings.embedded_database:
        why = f"the database embedded in {current_settings.home} has one role, and only this machine reaches it"
        raise BadRole(name=name, whom=whom, why=f"{why}. Set FARM_DATABASE_URL to a Postgres that {who} reach")


@app.command()
def check() -> None:
    """For developers: fail if the tables in code differ from the migrations.

    Examples:
        farm db check
    """
    with _database() as engine:
        migrate.check_models_match(engine)


@contextmanager
def _database() -> Iterator[Engine]:
    """The farm's database, at any revision."""
    require_own(settings())
    with services(settings()) as urls:
        engine = make_engine(urls.database_url, application="farm db")
        try:
            yield engine
        finally:
            engine.dispose()
