"""Reading Parquet and CSV files in batches of rows, each row a mapping of its columns."""

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

from farm.errors import BadRecording, RowNotImported
from farm.formatting import shortened
from farm.recording import readable, readable_in_steps

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
"""Rows in memory at a time: about 50 MB with every column."""


def parquet_head(path: Path) -> tuple[pa.Schema, int]:
    """The schema of a Parquet file, and how many rows it has. Raises `BadRecording`."""
    import pyarrow.parquet as pq

    with readable(path):
        schema, rows = pq.read_schema(path), pq.read_metadata(path).num_rows
    _check_not_empty(path, rows)
    return schema, rows


@readable_in_steps
def parquet_batches(path: Path, kinds: Mapping[str, type]) -> Iterator[list[dict[str, Any]]]:
    """The rows of a Parquet file with those of these columns that it has, as values of these types; NaN is no value.

    Raises `BadRecording`, `RowNotImported`.
    """
    import pyarrow.parquet as pq

    before = 0
    with pq.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name in kinds]
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            yield _plain(path, batch, kinds, before)
            before += batch.num_rows


_KINDS: Mapping[type, str] = {
    **{int: "a whole number", float: "a number", str: "text", bool: "true or false", datetime: "a time"},
}


def _plain(path: Path, batch: pa.RecordBatch, kinds: Mapping[str, type], before: int) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        try:
            columns.append(_converted(column, kinds[name]))
        except _NOT_CONVERTED:
            number, value = _first_bad(column, kinds[name])
            why = f"{name} is {value}, which is not {_KINDS[kinds[name]]}"
            raise RowNotImported(path=path, row=before + number, why=why) from None
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


_NOT_CONVERTED = (ValueError, TypeError, OverflowError, NotImplementedError)
"""What Arrow raises, its own errors included, for a value that it cannot convert or that Python cannot hold."""


def _converted(column: pa.Array, kind: type) -> list[Any]:
    """The values of a column as that type; NaN is no value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    time = pa.timestamp("us", "UTC")
    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), datetime: time}[kind]
    if pa.types.is_float16(column.type):
        column = pc.cast(column, pa.float32())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    values: list[Any] = pc.cast(column, arrow, safe=arrow != time).to_pylist()
    return values


def _first_bad(column: pa.Array, kind: type) -> tuple[int, str]:
    """The number of the first row, from 1, whose value cannot be converted, and the value as messages show it."""
    for i in range(len(column)):
        try:
            _converted(column.slice(i, 1), kind)
        except _NOT_CONVERTED:
            try:
                return i + 1, shortened(repr(column[i].as_py()))
            except _NOT_CONVERTED:
                return i + 1, "damaged"
    return 1, "damaged"


_GZIP = b"\x1f\x8b"


@contextmanager
def _csv(path: Path) -> Iterator[csv.DictReader[str]]:
    """A CSV, compressed by gzip or not. Raises `BadRecording`."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            with (
                gzip.open(raw) if packed else nullcontext(raw) as plain,
                io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text,
            ):
                yield csv.DictReader(text)
    except (EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise BadRecording(path=path, why=f"it is not CSV: {error}") from None


def csv_head(path: Path) -> tuple[list[str], int]:
    """The columns of a CSV, and how many rows it has. Raises `BadRecording`."""
    with readable(path), _csv(path) as table:
        columns, rows = list(table.fieldnames or []), sum(1 for _ in table)
    _check_not_empty(path, rows)
    return columns, rows


@readable_in_steps
def csv_batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of a CSV, as text. A cell that a row lacks is None; those that it has too many are under None.

    Raises `BadRecording`.
    """
    with _csv(path) as table:
        while rows := list(islice(table, BATCH_ROWS)):
            yield rows


def _check_not_empty(path: Path, rows: int) -> None:
    if not rows:
        raise BadRecording(path=path, why="it has no rows")
