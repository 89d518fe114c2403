"""Columns of results as Arrow has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from farm.schema.column import ColumnType
from farm.schema.results import COLUMNS, EXPORTED

ARROW_TYPES: Mapping[ColumnType, pa.DataType] = {
    ColumnType.BIGINT: pa.int64(),
    ColumnType.SMALLINT: pa.int64(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.TEXT: pa.string(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    ColumnType.UUID: pa.string(),
    ColumnType.JSONB: pa.string(),
}
"""The Arrow type of each type of column in files; objects are JSON text, so that every reader opens them."""


SCHEMA = pa.schema([(name, ARROW_TYPES[COLUMNS[name].type]) for name in EXPORTED])
"""The columns of an export."""


def arrow_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as an Arrow table of the columns of an export; a column without a single value has its type too."""
    return pa.table({name: _column([row[name] for row in rows], COLUMNS[name].type) for name in EXPORTED}, SCHEMA)


def _column(values: list[Any], kind: ColumnType) -> list[Any]:
    """The values as Arrow takes them: texts of what is stored as text."""
    if ARROW_TYPES[kind] != pa.string():
        return values
    return [value if value is None or isinstance(value, str) else _text(value) for value in values]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def python_values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """The values of a column of `arrow_table` as rows have them: objects, UUIDs, and times in UTC."""
    kind = COLUMNS[name].type
    if kind is ColumnType.TIMESTAMPTZ:
        column = column.cast(pa.timestamp("us"))
    decoded = _DECODED.get(kind)
    values: list[Any] = column.to_pylist()
    return values if decoded is None else [None if value is None else decoded(value) for value in values]


def _in_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)


_DECODED: Mapping[ColumnType, Callable[[Any], Any]] = {
    ColumnType.JSONB: json.loads,
    ColumnType.UUID: UUID,
    ColumnType.TIMESTAMPTZ: _in_utc,
}
