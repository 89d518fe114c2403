"""`farm db`: the revision of the database."""

from __future__ import annotations

import typer

from farm.cli.output import JsonOption, console, emit_json
from farm.db import migrate
from farm.db.engine import make_engine
from farm.services import services
from farm.settings import settings

app = typer.Typer(help="The database's revision.", no_args_is_help=True)


@app.command()
def upgrade(as_json: JsonOption = False) -> None:
    """Bring the database to the revision that this version of the farm needs. What is there stays."""
    with services(settings()) as urls:
        engine = make_engine(urls.database_url, application="farm db")
        before = migrate.current(engine)
        migrate.upgrade(engine)
        after = migrate.current(engine)
    if as_json:
        emit_json({"before": before, "after": after})
    elif before == after:
        console.print(f"The database is at revision {after} already.")
    else:
        console.print(f"The database went from {before or 'no tables'} to revision {after}.")


@app.command()
def current(as_json: JsonOption = False) -> None:
    """Say which revision the database has and which this version needs."""
    with services(settings()) as urls:
        found = migrate.current(make_engine(urls.database_url, application="farm db"))
    if as_json:
        emit_json({"current": found, "needed": migrate.head()})
    else:
        console.print(f"The database is at {found or 'no revision'}; this version needs {migrate.head()}.")


@app.command()
def check() -> None:
    """For developers: fail where the tables in code and the migrations differ."""
    with services(settings()) as urls:
        migrate.check_models_match(make_engine(urls.database_url, application="farm db"))
