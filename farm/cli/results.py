"""`farm results`: measurements as a table, CSV, Parquet, JSON, the commands that repeat them, or a tuner's T4."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from farm import __version__
from farm.api import farm_of
from farm.api import results as operations
from farm.api.results import Identity
from farm.atomic_write import replacing, require_new
from farm.cli import t4
from farm.cli.files import ForceOption, write
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, kernel_text, remarks, types_text
from farm.cli.tables import Column, Table
from farm.csv_cells import cell
from farm.errors import BadInput
from farm.provenance import METADATA_KEY, Provenance
from farm.schema.results import EXPORTED
from farm.settings import settings


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"
    COMMANDS = "commands"
    T4 = "t4"


@takes(operations.rows, without=("commands", "after", "limit"))
def results(
    query: dict[str, Any],
    *,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many rows.")] = None,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="How to print or write. commands: a line for each row that measures it again, alone. "
            "t4: for autotuners, a campaign's jobs with those that failed.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file; its ending tells the format. t4: a folder too."),
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
    chosen = _format(format_, output, as_json)
    if output is not None and (chosen is not Format.T4 or output.suffix == ".json"):
        require_new(output, force=force)
    operations.conditions(**{name: query.get(name) for name in ("where", "source", "since", "until")})
    if chosen is Format.T4:
        if "campaign" not in query or limit is not None or query["sort"] != "measurement_id":
            raise BadInput(
                detail="T4 is the jobs of one campaign, all of them that match: --campaign NAME, no --sort or --limit"
            )
        with farm_of(settings()) as farm:
            asked = {name: value for name, value in query.items() if name not in ("sort", "short_rounds")}
            t4.export(farm, asked, output=output, force=force)
        return
    shown = limit if chosen is not Format.TABLE else limit or 30
    with farm_of(settings()) as farm:
        found = operations.all_rows(farm, shown, **query, commands=chosen is Format.COMMANDS)
    rows = found.rows
    if chosen is Format.TABLE:
        _print_table(rows, limited=len(rows) == shown and limit is None, rounds=query["short_rounds"])
    elif chosen is Format.JSON and output is None:
        emit_json(rows)
    elif chosen is Format.COMMANDS:
        write("".join(f"{line}\n" for line in found.commands or ()), output, force=force)
    else:
        provenance = None if found.identity is None else _provenance(rows, found.identity)
        _export(rows, chosen, output, provenance, force=force)
    if output is not None:
        remarks.print(f"{len(rows):,} rows in {output}")


def _format(given: Format | None, output: Path | None, as_json: bool) -> Format:
    if given is Format.PARQUET and output is None:
        raise BadInput(detail="Parquet is not for a terminal: add --output FILE.parquet")
    if given is not None:
        return given
    if as_json:
        return Format.JSON
    if output is None:
        return Format.TABLE
    try:
        return Format(output.suffix.removeprefix("."))
    except ValueError:
        raise BadInput(detail=f"{output}: name it .csv, .parquet or .json, or add --format") from None


_RESULTS = Table(
    "results",
    Column("device type", folds=True, priority=3),
    Column("kernel", folds=True),
    Column("m", number=True),
    Column("n", number=True),
    Column("k", number=True),
    Column("types", priority=4),
    Column("layout", priority=6),
    Column("runtime", "ms", number=True),
    Column("±", "%", number=True, priority=5),
    Column("TFLOP/s", number=True),
    Column("power", "W", number=True, priority=1),
    Column("energy", "mJ", number=True, priority=2),
    Column("round", number=True, priority=1),
)


def _print_table(rows: list[dict[str, Any]], *, limited: bool, rounds: bool) -> None:
    if not rows:
        console.print("No measurements match.")
        return
    lines = [
        (
            r["device_type"], kernel_text(r), str(r["m"]), str(r["n"]), str(r["k"]), types_text(r), r["layout"], r["runtime_ms"],
            100 * r["runtime_rse"], r["tflops"], r["power_w"], r["energy_mj"], r.get("round"),
        )
        for r in rows
    ]  # fmt: skip
    _RESULTS.print(lines, without=() if rounds else ("round",))
    if any(r["source"] != "measured" for r in rows):
        console.print("Some rows are recorded or imported, not measured here: see the column source in an export.")
    if limited:
        remarks.print("There may be more: --limit N, or export them all with --output FILE.csv")


def _provenance(rows: list[dict[str, Any]], identity: Identity) -> Provenance:
    """What makes an export of one device type a recording, which a `recorded` device answers from."""
    of = {name: ", ".join(sorted({str(row[name]) for row in rows})) for name in ("campaign", "host", "source")}
    first, last = (f"{pick(row['measured_at'] for row in rows):%Y-%m-%d}" for pick in (min, max))
    when = first if first == last else f"{first} to {last}"
    return Provenance(
        device_type=identity.type,
        device_name=identity.name,
        traits=operations.traits_of(identity),
        provenance=f"{of['source']} by gemm-farm {__version__} on {of['host']}, {when}, campaign {of['campaign']}",
    )


def _export(
    rows: list[dict[str, Any]], chosen: Format, output: Path | None, provenance: Provenance | None, *, force: bool
) -> None:
    """CSV has JSON in the columns that hold objects; Parquet too, so that every reader opens it."""
    if chosen is Format.PARQUET:
        assert output is not None
        with replacing(output, force=force) as draft:
            _write_parquet(rows, draft, provenance)
        return
    text = io.StringIO()
    if chosen is Format.JSON:
        json.dump(rows, text, indent=1, default=str)
    else:
        writer = csv.DictWriter(text, fieldnames=EXPORTED, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            flat = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()}
            writer.writerow({name: cell(value) for name, value in flat.items()})
    write(text.getvalue(), output, force=force)


def _write_parquet(rows: list[dict[str, Any]], draft: Path, provenance: Provenance | None) -> None:
    import pyarrow.parquet as pq

    from farm.schema.arrow import arrow_table

    found = arrow_table(rows)
    if provenance is not None:
        found = found.replace_schema_metadata({METADATA_KEY: json.dumps(provenance.to_json())})
    pq.write_table(found, draft, compression="zstd")
