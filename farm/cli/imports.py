"""`farm import`: rows that were measured elsewhere, into this farm's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from farm.cli.output import JsonOption, console, emit_json, remarks, table
from farm.cli.session import session
from farm.importers.dataset import Dataset, Import, Outcome, import_dataset, look

app = typer.Typer(help="Rows that were measured elsewhere, to compare with and to learn from.", no_args_is_help=True)


@app.callback()
def _import() -> None:
    """A group, though it has one command yet: `farm import dataset`."""


@app.command()
def dataset(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Parquet that farm results exported for one device type.", show_default=False
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check every row, say what would come, store nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Import the farm's own recordings, each whole or not at all, and each once: the same content again adds nothing."""
    heads = [look(path) for path in files]
    done = list[Import]()
    with session() as opened:
        for head in heads:
            try:
                with _progress(head) as progress:
                    done.append(import_dataset(opened.engine, head, dry_run=dry_run, progress=progress))
            except KeyboardInterrupt:
                remarks.print(f"Interrupted. Nothing of {head.path} was imported.", markup=False)
                raise typer.Exit(130) from None
            remarks.print(_said(done[-1]), markup=False)
    if as_json:
        emit_json([_to_json(one) for one in done])
    else:
        _print(done)


@contextmanager
def _progress(head: Dataset) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=remarks, transient=True, disable=not remarks.is_terminal) as bar:
        task = bar.add_task(head.path.name, total=head.rows)

        def read(rows: int) -> None:
            bar.update(task, completed=rows, description=f"{head.path.name}, storing" if rows == head.rows else None)

        yield read


def _said(one: Import) -> str:
    if one.outcome is Outcome.KNOWN:
        return f"{one.dataset.path} was imported before, as {one.uuids[0]}; nothing changed."
    known = one.configurations - one.new_configurations
    return (
        f"{one.dataset.path}: {one.dataset.rows:,} rows of {one.configurations:,} configurations "
        f"({known:,} known here) {'would be' if one.outcome is Outcome.IMPORTABLE else 'are'} imported."
    )


def _print(done: list[Import]) -> None:
    lines = [
        (device.identity.uuid, device.identity.type, device.host, device.identity.name, device.rows)
        for one in done
        for device in one.devices
    ]
    if lines:
        console.print(table(None, ["device", "type", "host", "name", "rows"], lines, right=["rows"], whole=["device"]))


def _to_json(one: Import) -> dict[str, Any]:
    head = one.dataset
    return {
        "file": str(head.path),
        "sha256": head.content,
        "outcome": one.outcome,
        "rows": head.rows,
        "configurations": one.configurations,
        "new_configurations": one.new_configurations,
        "device_type": head.provenance.device_type,
        "provenance": head.provenance.provenance,
        "devices": [
            {
                "uuid": d.identity.uuid,
                "host": d.host,
                "name": d.identity.name,
                "rows": d.rows,
                "facts": d.identity.facts,
            }
            for d in one.devices
        ],
        "device_uuids": one.uuids,
    }
