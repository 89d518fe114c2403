"""Files as importers read them, Parquet and CSV: some thousand rows at a time, each a mapping of its columns."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import BadRecording, first_line
from farm.recording import readable

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
"""Rows in memory at a time: some 50 MB with every column."""


def parquet_head(path: Path) -> tuple[pa.Schema, int]:
    """The schema of a Parquet file, and how many rows it has. Raises `BadRecording`."""
    import pyarrow.parquet as pq

    with readable(path):
        found = pq.read_schema(path), pq.read_metadata(path).num_rows
    _some(path, found[1])
    return found


def parquet_batches(path: Path, kinds: Mapping[str, type]) -> Iterator[list[dict[str, Any]]]:
    """The rows of a Parquet file with those of these columns that it has, as values of these types; NaN is no value.

    Raises `BadRecording`.
    """
    import pyarrow.parquet as pq

    before = 0
    with readable(path), pq.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name in kinds]
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            yield _plain(path, batch, kinds, before)
            before += batch.num_rows


def _plain(path: Path, batch: pa.RecordBatch, kinds: Mapping[str, type], before: int) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    moment = pa.timestamp("us", "UTC")
    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), datetime: moment}
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = arrow[kinds[name]]
        try:
            numbers = pa.types.is_floating(column.type)
            values = pc.if_else(pc.is_nan(column), None, column) if numbers else column
            columns[name] = pc.cast(values, kind, safe=kind != moment)
        except pa.ArrowException as error:
            among = f"rows {before + 1:,} to {before + batch.num_rows:,}"
            why = f"its column {name} holds what is no {kind}, among {among}: {first_line(error)}"
            raise BadRecording(path=path, why=why) from None
    found: list[dict[str, Any]] = pa.RecordBatch.from_pydict(columns).to_pylist()
    return found


_GZIP = b"\x1f\x8b"


@contextmanager
def _csv(path: Path) -> Iterator[csv.DictReader[str]]:
    """A CSV, compressed by gzip or not. Raises `BadRecording`."""
    try:
        with readable(path), path.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            with (
                gzip.open(raw) if packed else nullcontext(raw) as plain,
                io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text,
            ):
                yield csv.DictReader(text)
    except (EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise BadRecording(path=path, why=f"it is no CSV: {error}") from None


def csv_head(path: Path) -> tuple[list[str], int]:
    """The columns of a CSV, and how many rows it has. Raises `BadRecording`."""
    with _csv(path) as table:
        columns, rows = list(table.fieldnames or []), sum(1 for _ in table)
    _some(path, rows)
    return columns, rows


def csv_batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of a CSV, as text. A cell that a row lacks is None; those that it has too many are under None.

    Raises `BadRecording`.
    """
    with _csv(path) as table:
        while rows := list(islice(table, BATCH_ROWS)):
            yield rows


def _some(path: Path, rows: int) -> None:
    if not rows:
        raise BadRecording(path=path, why="it has no rows")
