"""`farm backup`: take, check and restore backups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

from farm.backup import create as taking
from farm.backup import restore as restoring
from farm.backup import verify as verifying
from farm.backup.manifest import Manifest
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.db.engine import check_reachable, make_engine
from farm.services import services, urls
from farm.services.session import require_own, session
from farm.settings import settings

app = typer.Typer(help="Back up the farm while it runs, check backups, and restore them.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(help="The folder of the backup.", show_default=False)]

_TABLES = Table("backup", Column("table"), Column("rows", number=True), Column("size", "MB", number=True))


@app.command()
def create(
    folder: Annotated[Path, typer.Argument(help="A new folder for the backup.", show_default=False)],
    since: Annotated[
        Path | None,
        typer.Option(
            help="An earlier backup on the same file system. Files that did not change take no space.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take a backup into a new folder, while the farm runs: the database, built kernels, and the registry of this home.

    The database is read in one snapshot, and no program waits for it. Private keys, passwords and logs are not in a backup.

    Examples:
        farm backup create /backups/monday
        farm backup create /backups/tuesday --since /backups/monday
    """
    with session() as opened, _reporting("reading") as report:
        taken = taking.create(opened.engine, opened.settings, folder, since=since, report=report)
    if as_json:
        emit_json({**_facts(taken.folder, taken.manifest), "reused_bytes": taken.reused_bytes})
        return
    found = taken.manifest
    console.print(
        f"{taken.folder} has {found.rows:,} rows, {_models(found)}{len(found.kernels):,} kernels: "
        f"{found.bytes / 1e6:,.1f} MB, {taken.reused_bytes / 1e6:,.1f} MB of them unchanged since the earlier backup.",
        markup=False,
    )
    _print_left_out(found)


@app.command()
def verify(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Check each file of a backup with its SHA-256, and count the rows of each table. Needs no services.

    Examples:
        farm backup verify /backups/monday
    """
    with _reporting("checking") as report:
        found = verifying.verify(folder, report)
    if as_json:
        emit_json(_facts(folder, found))
        return
    _print_tables(found)
    console.print(
        f"{folder} is complete and undamaged: taken {found.created_at:%Y-%m-%d %H:%M:%S} UTC by version "
        f"{found.farm_version} at revision {found.revision}.",
        markup=False,
    )
    _print_left_out(found)


@app.command()
def restore(
    folder: FolderArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="DATABASE_URL",
            help="An empty database, instead of FARM_DATABASE_URL or the embedded one. Give its password in PGPASSWORD.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into an empty database, and its registry into an empty home.

    Every file is checked first. All rows are loaded in one transaction, then read again and compared with the backup. A backup
    of an older revision is migrated.

    Restore only backups of people that you trust. The author of a backup decides what the farm has.

    Examples:
        farm backup restore /backups/monday
        farm backup restore /backups/monday --to postgresql://farm@host:5432/farm
    """
    current = settings()
    with _target(to) as engine, _reporting("restoring") as report:
        done = restoring.restore(engine, current, folder, report=report)
    found = done.manifest
    if as_json:
        emit_json({**_facts(folder, found), "registry": done.registry})
        return
    _print_tables(found)
    console.print(
        f"Restored {found.rows:,} rows and {len(found.kernels):,} kernels. Each table was read again, and is equal to the backup.",
        markup=False,
    )
    if done.registry is not None:
        console.print(f"The registry of models is {done.registry}.", markup=False)
    elif found.registry is not None:
        remarks.print("The registry was not restored: MLFLOW_TRACKING_URI names a server.")
    remarks.print(
        "Next: copy the folder keys of the old home, or set FARM_MODEL_KEYS and FARM_KERNEL_KEYS to its public keys. On a "
        "server, run farm db roles and farm hosts add again. docs/backing_up.md has all steps."
    )


@contextmanager
def _target(to: str | None) -> Iterator[Engine]:
    """The database to restore into. It is not migrated."""
    if to is not None:
        url = urls.database_url(to)
        engine = make_engine(url, application="farm backup")
        try:
            check_reachable(engine)
            yield engine
        finally:
            engine.dispose()
        return
    require_own(settings())
    with services(settings()) as found:
        engine = make_engine(found.database_url, application="farm backup")
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def _reporting(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is read or written now."""
    with remarks.status(what) as status:
        yield lambda name: status.update(f"{what} {name}")


def _facts(folder: Path, found: Manifest) -> dict[str, Any]:
    return {
        "folder": str(folder.absolute()),
        "created_at": found.created_at,
        "farm_version": found.farm_version,
        "revision": found.revision,
        "rows": found.rows,
        "bytes": found.bytes,
        "tables": {table.name: table.rows for table in found.tables},
        "kernels": len(found.kernels),
        "model_files": 0 if found.registry is None else len(found.registry.files),
        "left_out": found.left_out,
    }


def _models(found: Manifest) -> str:
    return "" if found.registry is None else f"{len(found.registry.files):,} files of models, "


def _print_tables(found: Manifest) -> None:
    _TABLES.print(
        (table.name, table.rows, sum(file.bytes for file in table.files) / 1e6) for table in found.tables if table.rows
    )


def _print_left_out(found: Manifest) -> None:
    for one in found.left_out:
        remarks.print(f"Not in the backup: {one}.", markup=False)
