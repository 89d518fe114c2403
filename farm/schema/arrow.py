"""Columns of results as Arrow has them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from farm.schema.column import ColumnType

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
