"""`farm prune`: remove old data that nothing needs."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.retention.rule import Place
from farm.retention.rules import policies
from farm.retention.rules import prune as pruned
from farm.services.session import session
from farm.settings import settings

_PRUNED = Table(
    "pruned",
    Column("name"),
    Column("older than"),
    Column("count", number=True),
    Column("size", "MB", number=True),
    Column("what", folds=True, priority=1),
)


def prune(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="What to prune: deleted, sessions, kernels, cache, logs. The default is all that has a setting FARM_KEEP_NAME.",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only what is this old: 12h, 90d. The default is the setting FARM_KEEP_NAME.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove it. Without this, only show it.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show, and with --yes remove, old data that nothing needs: deleted campaigns and models, sessions, unused kernels, logs.

    No row, model or campaign that was not deleted is removed, and no kernel that one of them uses. An interrupted removal continues
    with the next one.

    Examples:
        farm prune sessions logs --older-than 90d
        farm prune --yes
    """
    ages = policies(settings(), names or [], older_than)
    with session() as opened:
        found = list(pruned(Place(opened.engine, opened.settings), ages, dry_run=not yes))
    if as_json:
        emit_json(
            {
                "dry_run": not yes,
                "pruned": {
                    one.rule.name: {"older_than": one.older_than, "count": one.old.count, "bytes": one.old.bytes}
                    for one in found
                },
            }
        )
        return
    _PRUNED.print((one.rule.name, one.older_than, one.old.count, one.old.bytes / 1e6, one.rule.what) for one in found)
    console.print("Removed the above." if yes else "Nothing was removed. To remove the above, add --yes.")
