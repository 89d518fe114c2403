"""`farm results`: measurements as a table, CSV, Parquet or JSON."""

from __future__ import annotations

import csv
import io
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli.output import JsonOption, console, emit_json, kernel_text, remarks, table, types_text
from farm.cli.session import session
from farm.db import campaigns, measurements
from farm.errors import BadInput


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


def results(
    campaign: Annotated[str | None, typer.Option("--campaign", "-c", help="Only of this campaign.")] = None,
    device_type: Annotated[str | None, typer.Option("--type", "-t", help="Only on this device type.")] = None,
    family: Annotated[str | None, typer.Option("--family", "-f", help="Only of this kernel family.")] = None,
    sort: Annotated[str, typer.Option("--sort", "-s", help="A column; -column for largest first.")] = "measurement_id",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many rows.")] = None,
    format_: Annotated[Format | None, typer.Option("--format", help="How to print or write.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file; its ending tells the format.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measurements. On a terminal the first 30, or as many as --limit says; exports hold every column and row."""
    chosen = _format(format_, output, as_json)
    if sort.removeprefix("-") not in measurements.RESULT_COLUMNS:
        raise BadInput(detail=f"--sort {sort}: no such column. Columns: {', '.join(measurements.RESULT_COLUMNS)}")
    shown = limit if chosen is not Format.TABLE else limit or 30
    with session() as opened, opened.engine.connect() as connection:
        campaign_id = None if campaign is None else campaigns.find(connection, campaign)["id"]
        rows = measurements.read(
            connection, campaign_id=campaign_id, device_type=device_type, family=family, order_by=sort, limit=shown
        )
    if chosen is Format.TABLE:
        _print_table(rows, limited=len(rows) == shown and limit is None)
    elif chosen is Format.JSON and output is None:
        emit_json(rows)
    elif output is None and chosen is Format.PARQUET:
        raise BadInput(detail="Parquet is not for a terminal: add --output FILE.parquet")
    else:
        _export(rows, chosen, output)
    if output is not None:
        remarks.print(f"{len(rows):,} rows in {output}")


def _format(given: Format | None, output: Path | None, as_json: bool) -> Format:
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


def _print_table(rows: list[dict[str, Any]], *, limited: bool) -> None:
    if not rows:
        console.print("No measurements match.")
        return
    columns = [
        "device type",
        "kernel",
        "m",
        "n",
        "k",
        "types",
        "layout",
        "runtime ms",
        "±%",
        "TFLOP/s",
        "power W",
        "mJ",
    ]
    lines = [
        (
            r["device_type"], kernel_text(r), r["m"], r["n"], r["k"], types_text(r), r["layout"], r["runtime_ms"],
            100 * r["runtime_rse"], r["tflops"], r["power_w"], r["energy_mj"],
        )
        for r in rows
    ]  # fmt: skip
    console.print(table(None, columns, lines, right=["m", "n", "k", *columns[7:]]))
    if any(r["source"] != "measured" for r in rows):
        console.print("Some rows are recorded or imported, not measured here: see the column source in an export.")
    if limited:
        remarks.print("There may be more: --limit N, or export them all with --output FILE.csv")


def _export(rows: list[dict[str, Any]], chosen: Format, output: Path | None) -> None:
    """CSV has JSON in the columns that hold objects; Parquet too, so that every reader opens it."""
    flat = [{key: json.dumps(v) if isinstance(v, dict) else v for key, v in row.items()} for row in rows]
    try:
        if chosen is Format.PARQUET:
            assert output is not None
            _write_parquet(flat, output)
            return
        text = io.StringIO()
        if chosen is Format.JSON:
            json.dump(rows, text, indent=1, default=str)
        else:
            writer = csv.DictWriter(text, fieldnames=list(measurements.RESULT_COLUMNS), lineterminator="\n")
            writer.writeheader()
            writer.writerows(flat)
        if output is None:
            sys.stdout.write(text.getvalue())
        else:
            output.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise BadInput(detail=f"{output} cannot be written: {error.strerror}") from None


def _write_parquet(rows: list[dict[str, Any]], output: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [_plain(row[name]) for row in rows] for name in measurements.RESULT_COLUMNS}
    pq.write_table(pa.table(columns), output, compression="zstd")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float, str)) or hasattr(value, "tzinfo") else str(value)
