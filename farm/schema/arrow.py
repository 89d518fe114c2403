"""Columns of results as Arrow has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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
    return pa.table({name: [_plain(row[name]) for row in rows] for name in EXPORTED}, SCHEMA)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return value if value is None or isinstance(value, (int, float, str)) or hasattr(value, "tzinfo") else str(value)
