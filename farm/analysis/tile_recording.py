"""Rows of the study of tiles from a recording: a Parquet file of measurements, read without any database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.analysis.tiles import FAMILY, TiledRow
from farm.errors import BadRecording, FarmError, first_line
from farm.gemm import ADDED_COLUMNS
from farm.provenance import METADATA_KEY, Provenance
from farm.recording import NEEDED_COLUMNS, check_columns, provenance_in, readable

_OPTIONAL_COLUMNS = (
    *ADDED_COLUMNS, "device_type", "device_uuid", "distribution", "power_w", "runtime_settled_ms", "details",
)  # fmt: skip


def read_recording(path: Path) -> tuple[list[TiledRow], Provenance | None]:
    """The rows of the family, and the provenance in the file.

    The device type is a row's own, where the file has that column, and otherwise the file's. Raises `BadRecording`,
    `MissingColumns`.
    """
    import pyarrow.parquet as pq

    with readable(path), pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        check_columns(path, schema.names)
        columns = [*NEEDED_COLUMNS, *(name for name in _OPTIONAL_COLUMNS if name in schema.names)]
        # Without threads: Arrow's allocator may reserve all memory of the bound, and Arrow hangs or aborts where no
        # thread can start.
        table = [row for row in file.read(columns, use_threads=False).to_pylist() if row["family"] == FAMILY]
    metadata = (schema.metadata or {}).get(METADATA_KEY)
    provenance = None if metadata is None else provenance_in(path, metadata)
    usual = {} if provenance is None else {"device_type": provenance.device_type}
    return [_row(path, number, {**usual, **row}) for number, row in enumerate(table, start=1)], provenance


def _row(path: Path, number: int, row: Mapping[str, Any]) -> TiledRow:
    if row.get("device_type") is None:
        raise BadRecording(path=path, why="neither its rows nor its metadata name the device")
    try:
        objects = {name: json.loads(row.get(name) or "{}") for name in ("parameters", "details")}
        return TiledRow.from_columns({**row, **objects})
    except (FarmError, AttributeError, TypeError, ValueError) as error:
        raise BadRecording(path=path, why=f"row {number} of the family {FAMILY}: {first_line(error)}") from None
