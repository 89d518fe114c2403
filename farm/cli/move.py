"""`farm move`: from the embedded database to a server."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.backup import move as moving
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.services import urls
from farm.services.session import require_own
from farm.settings import settings


def move(
    to: Annotated[
        str,
        typer.Argument(
            metavar="DATABASE_URL",
            help="An empty database. Give its password in PGPASSWORD, so that it is in no list of processes.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Move the embedded database of this home to an empty database of a server.

    Stop the farm first. All rows are loaded in one transaction, read again and compared. Afterwards the embedded database does not
    start again, and its data stay where they are. Models stay in the home.

    Examples:
        farm move postgresql://farm@host:5432/farm
    """
    require_own(settings())
    with remarks.status("moving") as status:
        done = moving.move(settings(), urls.database_url(to), report=lambda name: status.update(f"moving {name}"))
    if as_json:
        emit_json({"database": done.url, "rows": done.rows})
        return
    console.print(f"Moved {sum(done.rows.values()):,} rows to {done.url}.", markup=False)
    remarks.print(
        "Next: set FARM_DATABASE_URL to it, with its password, and keep FARM_HOME: it has the models and keys.",
        markup=False,
    )
