"""`farm audit`: who changed what, when and from where."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.api import audit as operations
from farm.api import farm_of
from farm.api.audit import AuditLine, Trimmed
from farm.atomic_write import require_new
from farm.cli.files import ForceOption
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.result_table import ResultTable, values_text
from farm.errors import BadInput
from farm.settings import settings

app = typer.Typer(help="Show who changed what, when and from where.", invoke_without_command=True)

FOLLOW_SECONDS = 2.0


@app.callback()
@takes(operations.list_, without=("before", "after"))
def _audit(
    query: dict[str, Any],
    *,
    context: typer.Context,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep printing new changes until Ctrl-C.", show_default=False),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List changes that people made, the newest first."""
    if context.invoked_subcommand is not None:
        return
    if follow and as_json:
        raise BadInput(detail="--follow prints lines and --json one document. Leave one of them out.")
    with farm_of(settings()) as farm:
        found = farm.ask(operations.list_, **query)
        if as_json:
            emit_json(found)
            return
        if not follow:
            _AUDIT.show(found, otherwise="No changes match.")
            return
        for one in reversed(found):
            _print_line(one)
        last = found[0].id if found else 0
        try:
            while True:
                for one in farm.ask(operations.list_, **{**query, "limit": operations.PAGE}, after=last):
                    _print_line(one)
                    last = one.id
                time.sleep(FOLLOW_SECONDS)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


_AUDIT = ResultTable("audit", AuditLine)


def _print_line(one: AuditLine) -> None:
    after = f": {values_text(one.after)}" if one.after else ""
    console.print(
        f"{one.at:%Y-%m-%d %H:%M:%S} {one.who} ({one.way}, {one.origin}) {one.operation} {one.kind} {one.name}{after}",
        markup=False,
    )
    sys.stdout.flush()


@app.command()
@takes(operations.export)
def export(
    query: dict[str, Any],
    *,
    file: Annotated[Path, typer.Argument(help="The file to write, as JSON lines.", show_default=False)],
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write changes to a file, one JSON object on a line, the oldest first.

    Examples:
        farm audit export audit.jsonl --since 30d
    """
    require_new(file, force=force)
    with farm_of(settings()) as farm:
        made = farm.ask(operations.export, **query)
    made.move_to(file, force=force)
    if as_json:
        emit_json({"file": str(file), "rows": made.rows})
    else:
        remarks.print(f"{made.rows or 0:,} changes were written to {file}.", markup=False)


@app.command()
@asks(operations.trim)
def trim(done: Trimmed) -> None:
    """Remove old rows permanently. Only the owner of the database can do this, and the audit records it.

    Nothing else removes rows. Export them first if you must keep them.

    Examples:
        farm audit trim --before 365d
    """
    console.print(f"{done.removed:,} rows from before {done.before:%Y-%m-%d %H:%M} UTC were removed.")
