"""Rows of the `tiled` family from a recording: a Parquet file of measurements, read without any database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.analysis.tiles import FAMILY, TiledRow
from farm.errors import BadRecording, FarmError, MissingColumns, first_line
from farm.provenance import METADATA_KEY, Provenance

_NEEDED = ("m", "n", "k", "ab", "cd", "acc", "layout", "alpha", "beta", "family", "parameters", "runtime_ms")
_WELCOME = ("device_type", "device_uuid", "distribution", "power_w", "details")


def read_recording(path: Path) -> tuple[list[TiledRow], Provenance | None]:
    """The rows of the family, and what the file says of where they come from.

    The device type is a row's own, where the file has that column, and otherwise the file's. Raises `BadRecording`,
    `MissingColumns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        missing = [name for name in _NEEDED if name not in schema.names]
        if missing:
            raise MissingColumns(path=path, missing=", ".join(missing), found=", ".join(schema.names))
        columns = [*_NEEDED, *(name for name in _WELCOME if name in schema.names)]
        table = pq.read_table(path, columns=columns, filters=[("family", "==", FAMILY)]).to_pylist()
    except FileNotFoundError:
        raise BadRecording(path=path, why="there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise BadRecording(path=path, why=first_line(error)) from None
    provenance = _provenance(path, (schema.metadata or {}).get(METADATA_KEY))
    usual = {} if provenance is None else {"device_type": provenance.device_type}
    return [_row(path, number, {**usual, **row}) for number, row in enumerate(table, start=1)], provenance


def _provenance(path: Path, metadata: bytes | None) -> Provenance | None:
    if metadata is None:
        return None
    try:
        return Provenance.from_json(json.loads(metadata))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRecording(path=path, why=f"its provenance cannot be read: {error!r}") from None


def _row(path: Path, number: int, row: Mapping[str, Any]) -> TiledRow:
    if row.get("device_type") is None:
        raise BadRecording(path=path, why="neither its rows nor its metadata say what device was measured")
    try:
        objects = {name: json.loads(row.get(name) or "{}") for name in ("parameters", "details")}
        return TiledRow.from_columns({**row, **objects})
    except (FarmError, AttributeError, TypeError, ValueError) as error:
        raise BadRecording(path=path, why=f"row {number} of the family {FAMILY}: {first_line(error)}") from None
