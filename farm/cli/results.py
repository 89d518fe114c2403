"""`farm results`: measurements as a table, or exported in a format of `farm.exporters`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farm.api import farm_of
from farm.api import results as operations
from farm.atomic_write import require_new
from farm.both_times import burst_apart
from farm.cli.files import ForceOption, stdout, write_export
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, kernel_text, plain, remarks, types_text
from farm.cli.problem_columns import ADDED, added_cells, usual_columns
from farm.cli.tables import Column, Table
from farm.errors import BadInput
from farm.exporters import EXPORTERS
from farm.exporters.json_rows import json_list
from farm.protocols import ProtocolName
from farm.settings import settings

TABLE = "table"
if TYPE_CHECKING:
    Format = str
else:
    Format = Literal[(TABLE, *EXPORTERS)]

TABLE_ROWS = 30
"""Rows of a table without --limit."""


@takes(operations.rows, without=("commands", "after", "limit"))
def results(
    query: dict[str, Any],
    *,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = None,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Output format. "
            + " ".join(f"{name}: {one.meaning}." for name, one in EXPORTERS.items() if one.meaning),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write to this file. Its extension selects the format. t4 also takes a folder."
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show or export measurements. A terminal shows the first 30 rows or --limit; exports have every column and row.

    --where uses the language of a campaign's constraints, for the columns of an export, the parameters of kernels, and
    parts of details and environment. A row matches no condition on a value that it lacks. has(power_w) selects rows with a
    value.

    Examples:
        farm results --campaign quickstart --sort -tflops --limit 10
        farm results --type nvidia-h200 --since 7d --output h200.csv
        farm results --where "m >= 4096 and ab == f16"
    """
    chosen = format_of(format_, output, as_json=as_json)
    operations.conditions(**{name: query.get(name) for name in ("where", "source", "since", "until")})
    if chosen == TABLE or (chosen == "json" and output is None):
        _show(query, limit, as_json=chosen != TABLE)
        return
    exporter = EXPORTERS[chosen]
    exporter.check(query, limit)
    one_file = exporter.one_file(output)
    if output is not None and one_file:
        require_new(output, force=force)
    with farm_of(settings()) as farm:
        export = exporter.export(farm, query, limit, one_file=one_file)
        write_export(export, output, folder=not one_file, force=force)


def format_of(given: str | None, output: Path | None, *, as_json: bool) -> str:
    """The given format, or the one that the name of the output means. Raises `BadInput`."""
    if output is None:
        if given in EXPORTERS and EXPORTERS[given].binary:
            raise BadInput(detail=f"{given.capitalize()} cannot be printed. Add --output FILE.{given}")
        return given or ("json" if as_json else TABLE)
    suffix = output.suffix.removeprefix(".")
    if given is None and not as_json and suffix not in EXPORTERS:
        raise BadInput(detail=f"{output}: use the extension .csv, .parquet, .json or .jsonl, or add --format")
    return given or ("json" if as_json else suffix)


def _show(query: dict[str, Any], limit: int | None, *, as_json: bool) -> None:
    with farm_of(settings()) as farm:
        if as_json:
            pages = (page.rows for page in operations.pages(farm, limit, **query))
            with stdout() as written:
                for text in json_list(pages, indent=2, default=plain):
                    written.write(text.encode())
                written.write(b"\n")
            return
        max_rows = limit or TABLE_ROWS
        rows = operations.all_rows(farm, max_rows, **query).rows
    _print_table(rows, limited=len(rows) == max_rows and limit is None, rounds=query["short_rounds"])


_RESULTS = Table(
    "results",
    Column("device type", folds=True, priority=3),
    Column("kernel", folds=True),
    Column("m", number=True),
    Column("n", number=True),
    Column("k", number=True),
    *ADDED,
    Column("types", priority=4),
    Column("layout", priority=6),
    Column("runtime", "ms", number=True),
    Column("burst", "ms", number=True, priority=3),
    Column("±", "%", number=True, priority=5),
    Column("TFLOP/s", number=True),
    Column("power", "W", number=True, priority=1),
    Column("energy", "mJ", number=True, priority=2),
    Column("round", number=True, priority=1),
    Column("protocol", folds=True, priority=3),
)


def _print_table(rows: list[dict[str, Any]], *, limited: bool, rounds: bool) -> None:
    if not rows:
        console.print("No measurements match.")
        return
    lines = [
        (
            r["device_type"], kernel_text(r), str(r["m"]), str(r["n"]), str(r["k"]), *added_cells(r), types_text(r), r["layout"], r["runtime_ms"],
            burst_apart(r["runtime_burst_ms"], r["runtime_ms"]), 100 * r["runtime_rse"], r["tflops"], r["power_w"],
            r["energy_mj"], r.get("round"), r["protocol"],
        )
        for r in rows
    ]  # fmt: skip
    without = usual_columns(rows) if rounds else [*usual_columns(rows), "round"]
    if not any(burst_apart(r["runtime_burst_ms"], r["runtime_ms"]) for r in rows):
        without.append("burst")
    if all(r["protocol"] == ProtocolName.FARM for r in rows):
        without.append("protocol")
    _RESULTS.print(lines, without=without)
    if any(r["source"] != "measured" for r in rows):
        console.print("Some rows are recorded or imported. The column source of an export marks them.")
    if limited:
        remarks.print("There may be more rows: --limit N, or --output FILE.csv to export all")
