"""`farm import`: rows that were measured elsewhere, into this farm's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli.output import JsonOption, emit_json, remarks
from farm.cli.progress import counting
from farm.cli.tables import Column
from farm.cli.tables import Table as PrintedTable
from farm.errors import BadInput, BadRecording, MissingColumns, RowNotImported
from farm.importers import aiconfigurator as of_aiconfigurator
from farm.importers import dataset as of_dataset
from farm.importers import gpperf as of_gpperf
from farm.importers.landing import Import, LeftOut, Outcome, Table, import_table
from farm.services.session import session

app = typer.Typer(
    help="Import rows that were measured elsewhere, to compare with and to train on.", no_args_is_help=True
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check every row, say what would come, store nothing.")]


def _files(what: str) -> Any:
    return typer.Argument(metavar="FILE", help=what, show_default=False)


@app.command()
def dataset(
    files: Annotated[list[Path], _files("Parquet that farm results exported for one device type.")],
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Import the farm's own recordings. Each file is imported completely or not at all. The same content again adds nothing.

    Files with other content are left out and named.

    Examples:
        farm import dataset examples/datasets/*.parquet
    """
    _import(files, of_dataset.look, dry_run=dry_run, as_json=as_json)


@app.command()
def gpperf(
    files: Annotated[list[Path], _files("CSV of GPPerf, compressed by gzip or not.")],
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The card of a table that does not name it.")
    ] = of_gpperf.RTX_4070,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Import tables of GPPerf: CUTLASS kernels as its profiler timed them, and the paper's tiled kernel.

    Examples:
        farm import gpperf cutlass.csv
        farm import gpperf tiled.csv --device nvidia-geforce-rtx-4070 --dry-run
    """
    _import(files, lambda path: of_gpperf.look(path, device=device), dry_run=dry_run, as_json=as_json)


@app.command()
def aiconfigurator(
    files: Annotated[list[Path], _files("Parquet of NVIDIA AIConfigurator with GEMM latencies.")],
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Import GEMM tables of NVIDIA AIConfigurator: times of the vendor's library in bf16. Other rows are left out.

    Examples:
        farm import aiconfigurator gemm_perf.parquet --dry-run
    """
    _import(files, of_aiconfigurator.look, dry_run=dry_run, as_json=as_json)


def _import(files: Sequence[Path], look: Callable[[Path], Table], *, dry_run: bool, as_json: bool) -> None:
    """Imports the files that can be imported. Raises what is wrong with one of the others, once the rest is in."""
    tables, other = _looked_at(files, look)
    done, failed = list[Import](), list[BadInput]()
    with session() as opened:
        for one in tables:
            try:
                with _progress(one) as progress:
                    done.append(import_table(opened.engine, one, dry_run=dry_run, progress=progress))
            except KeyboardInterrupt:
                remarks.print(f"Interrupted. Nothing of {one.path} was imported.", markup=False)
                raise typer.Exit(130) from None
            except (RowNotImported, BadRecording) as error:
                failed.append(error)
            else:
                remarks.print(_said(done[-1]), markup=False)
    for why in other:
        remarks.print(f"Left out: {why}", markup=False)
    if as_json:
        emit_json([*map(_to_json, done), *map(_other_to_json, (*other, *failed))])
    else:
        _print(done)
    if failed:
        raise BadInput(detail="\n".join(map(str, failed)))


def _looked_at(files: Sequence[Path], look: Callable[[Path], Table]) -> tuple[list[Table], list[BadInput]]:
    """The files that can be imported, and why each of the others holds something else.

    Raises where a file is not there, which is a mistake and no other kind of file, and where none can be imported.
    """
    tables, other = list[Table](), list[BadInput]()
    for path in files:
        try:
            tables.append(look(path))
        except (BadRecording, MissingColumns) as error:
            if not path.is_file():
                raise
            other.append(error)
    if not tables:
        raise other[0] if len(other) == 1 else BadInput(detail="\n".join(map(str, other)))
    return tables, other


@contextmanager
def _progress(of: Table) -> Iterator[Callable[[int], None]]:
    with counting(of.path.name, of.rows) as done:
        yield lambda rows: done(rows, f"{of.path.name}, storing" if rows == of.rows else None)


def _said(one: Import) -> str:
    if one.outcome is Outcome.KNOWN:
        return f"{one.table.path} was imported before, as {one.uuids[0]}; nothing changed."
    known = one.configurations - one.new_configurations
    first = (
        f"{one.table.path}: {one.rows:,} rows of {one.configurations:,} configurations "
        f"({known:,} known here) {'would be' if one.outcome is Outcome.IMPORTABLE else 'are'} imported."
    )
    tested = f"{one.test_rows:,} of them are of a test set: models do not learn from their problems."
    return "\n".join([first, *([tested] if one.test_rows else []), *map(_why_left_out, one.left_out)])


def _why_left_out(one: LeftOut) -> str:
    rows = f"{one.rows:,} row{'s' if one.rows > 1 else ''}"
    return f"Left out: {rows}, {one.what}: {one.why}." if one.whole else f"Left out: {one.what} of {rows}: {one.why}."


_DEVICES = PrintedTable(
    "imported devices",
    Column("device", folds=True),
    Column("type", folds=True, priority=1),
    Column("host", folds=True, priority=2),
    Column("name", folds=True, priority=3),
    Column("rows", number=True),
)


def _print(done: list[Import]) -> None:
    lines = [
        (device.identity.uuid, device.identity.type, device.host, device.identity.name, device.rows)
        for one in done
        for device in one.devices
    ]
    if lines:
        _DEVICES.print(lines)


def _other_to_json(error: BadInput) -> dict[str, Any]:
    return {"file": str(error.fields["path"]), "outcome": "left out", "why": str(error)}


def _to_json(one: Import) -> dict[str, Any]:
    return {
        "file": str(one.table.path),
        "sha256": one.table.content,
        "outcome": one.outcome,
        "rows": one.table.rows,
        "configurations": one.configurations,
        "new_configurations": one.new_configurations,
        "devices": [
            {
                "uuid": d.identity.uuid,
                "type": d.identity.type,
                "host": d.host,
                "name": d.identity.name,
                "rows": d.rows,
                "facts": d.identity.facts,
            }
            for d in one.devices
        ],
        "test_rows": one.test_rows,
        "left_out": [asdict(left_out) for left_out in one.left_out],
        "device_uuids": one.uuids,
    }
