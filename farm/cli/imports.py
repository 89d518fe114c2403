"""`farm import`: rows that were measured elsewhere, into this farm's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.api import farm_of, imports
from farm.api.imports import DeviceOfImport, ImportedFile, RowsLeftOut, look
from farm.api.operation import Upload
from farm.cli.output import JsonOption, emit_json, remarks
from farm.cli.progress import counting
from farm.cli.result_table import ResultTable
from farm.errors import BadInput, BadRecording, FarmError, MissingColumns
from farm.importers.formats import Format, Importer, importer_of
from farm.importers.landing import Outcome, Table
from farm.settings import settings

app = typer.Typer(
    help="Import rows that were measured elsewhere, to compare with and to train on.", no_args_is_help=True
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check every row, say what would come, store nothing.")]


def add_command(importer: Importer) -> None:
    """Adds `farm import NAME`."""

    def run(files: Any, dry_run: DryRun = False, as_json: JsonOption = False) -> None:
        _import(files, Format(importer.name), dry_run=dry_run, as_json=as_json)

    def run_with_device(
        files: Any,
        device: Annotated[
            str, typer.Option("--device", metavar="NAME", help="The card of a table that does not name it.")
        ] = importer.device or "",
        dry_run: DryRun = False,
        as_json: JsonOption = False,
    ) -> None:
        _import(files, Format(importer.name), device=device, dry_run=dry_run, as_json=as_json)

    command: Callable[..., None] = run if importer.device is None else run_with_device
    command.__annotations__["files"] = Annotated[
        list[Path], typer.Argument(metavar="FILE", help=importer.files, show_default=False)
    ]
    app.command(importer.name, help=importer.help)(command)


for _format in Format:
    add_command(importer_of(_format))


def _import(
    files: Sequence[Path],
    file_format: Format,
    *,
    device: str | None = None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Imports the files that can be imported. Raises what is wrong with one of the others, once the rest is in."""
    tables, other = _looked_at(files, lambda path: look(file_format, Upload(path), device))
    done, failed = list[ImportedFile](), dict[Path, str]()
    with farm_of(settings()) as farm:
        for one in tables:
            try:
                with _progress(one) as progress:
                    upload = Upload(one.path, progress)
                    done.append(
                        farm.ask(
                            imports.import_, file_format, upload, name=str(one.path), device=device, dry_run=dry_run
                        )
                    )
            except KeyboardInterrupt:
                known = (
                    "The server may still import it." if settings().api_url else f"Nothing of {one.path} was imported."
                )
                remarks.print(f"Interrupted. {known}", markup=False)
                raise typer.Exit(130) from None
            except FarmError as error:
                if error.exit_code != BadInput.exit_code:
                    raise
                failed[one.path] = str(error)
            else:
                remarks.print(_message(done[-1]), markup=False)
    for why in other.values():
        remarks.print(f"Left out: {why}", markup=False)
    if as_json:
        emit_json(
            [*done, *({"file": str(path), "outcome": "left out", "why": why} for path, why in (other | failed).items())]
        )
    else:
        _print(done)
    if failed:
        raise BadInput(detail="\n".join(failed.values()))


def _looked_at(files: Sequence[Path], look: Callable[[Path], Table]) -> tuple[list[Table], dict[Path, str]]:
    """The files that can be imported, and why each of the others holds something else.

    Raises where a file is not there, which is a mistake and no other kind of file, and where none can be imported.
    """
    tables, other = list[Table](), dict[Path, str]()
    for path in files:
        try:
            tables.append(look(path))
        except (BadRecording, MissingColumns) as error:
            if not path.is_file():
                raise
            other[path] = str(error)
    if not tables:
        raise BadInput(detail="\n".join(other.values()))
    return tables, other


@contextmanager
def _progress(of: Table) -> Iterator[Callable[[int], None]]:
    with counting(of.path.name, of.rows) as done:
        yield lambda rows: done(rows, f"{of.path.name}, storing" if rows == of.rows else None)


def _message(one: ImportedFile) -> str:
    if one.outcome is Outcome.KNOWN:
        return f"{one.file} was imported before, as {one.device_uuids[0]}; nothing changed."
    rows = sum(device.rows for device in one.devices)
    known = one.configurations - one.new_configurations
    first = (
        f"{one.file}: {rows:,} rows of {one.configurations:,} configurations "
        f"({known:,} known here) {'would be' if one.outcome is Outcome.IMPORTABLE else 'are'} imported."
    )
    tested = f"{one.test_rows:,} of them are of a test set: models do not learn from their problems."
    return "\n".join([first, *([tested] if one.test_rows else []), *map(_why_left_out, one.left_out)])


def _why_left_out(one: RowsLeftOut) -> str:
    rows = f"{one.rows:,} row{'s' if one.rows > 1 else ''}"
    return f"Left out: {rows}, {one.what}: {one.why}." if one.whole else f"Left out: {one.what} of {rows}: {one.why}."


_DEVICES = ResultTable("imported devices", DeviceOfImport)


def _print(done: list[ImportedFile]) -> None:
    if devices := [device for one in done for device in one.devices]:
        _DEVICES.show(devices)
