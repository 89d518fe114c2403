"""Recordings: files of earlier measurements that a `recorded` device answers from.

A recording is a Parquet file, or a CSV file with a sidecar of the same name and `.json` added. Each row is a
configuration (the columns of `farm.schema.results.CONFIGURATION`; `parameters` is a JSON object) and what was measured: `runtime_ms`
must be there, any other column of `farm.measurement.Measurement` may be. The provenance of the rows is in the
Parquet metadata under the key `gemm-farm`, or in the sidecar: a JSON object of the fields of `Provenance`. The Parquet
that `farm results` exports for one device type is a recording.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from farm.atomic_write import replacing, write_text
from farm.errors import BadRecording, FarmError
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY, Provenance
from farm.recording import check_columns, provenance_in, readable, readable_in_steps
from farm.schema.arrow import ARROW_TYPES
from farm.schema.results import COLUMNS, CONFIGURATION, RESULTS

ID_COLUMN = "configuration_id"
"""Optional: the 16 bytes of the configuration's id, which spares a reader hashing every row."""

RESULT_COLUMNS = tuple(name for name in RESULTS if name not in ("source", "details"))
"""The measurement columns that a recording may hold."""

JSON_COLUMNS = ("details", "environment")
"""Columns of JSON objects that a recording may hold, as every export of `farm results` does."""

DEVICE_COLUMN = "device_uuid"
"""Optional: which device was measured, where a recording holds rows of several."""

BATCH_ROWS = 65_536


_TYPES = {
    name: ARROW_TYPES[COLUMNS[name].type] for name in (*CONFIGURATION, *RESULT_COLUMNS, *JSON_COLUMNS, DEVICE_COLUMN)
}


def provenance_of(path: Path) -> Provenance:
    """The provenance of a recording. Raises `BadRecording`."""
    return provenance_in(path, _metadata(path))


def is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def sidecar_of(path: Path) -> Path:
    """The file that holds the provenance of a CSV recording."""
    return path.with_name(path.name + ".json")


def _metadata(path: Path) -> bytes:
    if is_csv(path):
        try:
            return sidecar_of(path).read_bytes()
        except OSError:
            raise BadRecording(path=path, why=f"its provenance, {sidecar_of(path).name}, cannot be read") from None
    with readable(path):
        found = (pq.read_schema(path).metadata or {}).get(METADATA_KEY)
    if found is None:
        raise BadRecording(path=path, why="its metadata has no key gemm-farm, so it does not say where it comes from")
    return bytes(found)


def content_id(path: Path) -> uuid.UUID:
    """The first 128 bits of the SHA-256 of the file (and of a CSV's sidecar): the same copy is the same recording."""
    digest = hashlib.sha256()
    with readable(path):
        for file in (path, sidecar_of(path)) if is_csv(path) else (path,):
            with file.open("rb") as stream:
                while block := stream.read(2**20):
                    digest.update(block)
    return uuid.UUID(bytes=digest.digest()[:16])


def columns_of(path: Path) -> list[str]:
    """The columns of a recording, checked. Raises `BadRecording`, `MissingColumns`."""
    with readable(path):
        if is_csv(path):
            with pa_csv.open_csv(path) as reader:
                found = list(reader.schema.names)
        else:
            found = list(pq.read_schema(path).names)
    check_columns(path, found)
    return found


def devices_in(path: Path) -> dict[str, int]:
    """The rows of each device that a recording names; empty where it names none. Raises `BadRecording`."""
    if DEVICE_COLUMN not in columns_of(path):
        return {}
    found: Counter[str] = Counter()
    for batch in batches(path, [DEVICE_COLUMN]):
        for counted in batch.column(0).value_counts().to_pylist():
            if counted["values"] is not None:
                found[counted["values"]] += counted["counts"]
    return dict(found)


def row_count(path: Path) -> int | None:
    """Rows, where that can be said without reading them (Parquet)."""
    if is_csv(path):
        return None
    with readable(path):
        return int(pq.read_metadata(path).num_rows)


@readable_in_steps
def batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows, some ten thousand at a time: a recording may have a million."""
    if not is_csv(path):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS, columns=columns)
        return
    types = {name: _TYPES[name] for name in columns if name != ID_COLUMN}
    options = pa_csv.ConvertOptions(column_types=types, include_columns=columns, strings_can_be_null=True)
    with pa_csv.open_csv(path, convert_options=options) as reader:
        yield from reader


def configuration_of(row: Mapping[str, Any]) -> Configuration:
    """The configuration of a row, whose `parameters` are JSON text. Raises `FarmError`, `ValueError`, `TypeError`."""
    return Configuration.from_columns({**row, "parameters": json.loads(row["parameters"])})


def write_recording(path: Path, rows: Iterable[Mapping[str, Any]], provenance: Provenance) -> int:
    """Writes a recording, Parquet or by its suffix CSV, and returns the number of rows.

    A row holds `configuration` (a `Configuration`), `runtime_ms`, and any other of `RESULT_COLUMNS`. Rows are taken as
    they come and written in groups, so that a million of them need little memory.
    """
    metadata = json.dumps(provenance.to_json(), indent=2)
    ids = [] if is_csv(path) else [(ID_COLUMN, pa.binary(16))]
    fields = [
        *((name, _TYPES[name]) for name in CONFIGURATION),
        *ids,
        *((name, _TYPES[name]) for name in RESULT_COLUMNS),
    ]
    schema = pa.schema(fields, metadata=None if is_csv(path) else {METADATA_KEY: metadata.encode()})
    count, waiting = 0, list[dict[str, Any]]()
    with replacing(path) as draft:
        opened = (
            pa_csv.CSVWriter(draft, schema) if is_csv(path) else pq.ParquetWriter(draft, schema, compression="zstd")
        )
        with opened as writer:
            for row in rows:
                waiting.append(_as_columns(row))
                count += 1
                if len(waiting) == BATCH_ROWS:
                    writer.write_table(pa.Table.from_pylist(waiting, schema))
                    waiting.clear()
            if waiting:
                writer.write_table(pa.Table.from_pylist(waiting, schema))
    if is_csv(path):
        write_text(sidecar_of(path), metadata + "\n")
    return count


def _as_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    configuration = row["configuration"]
    if not isinstance(configuration, Configuration):
        raise TypeError(f"a row's configuration is a Configuration, not {type(configuration).__name__}")
    unknown = set(row) - {"configuration", *RESULT_COLUMNS}
    if unknown:
        raise FarmError(detail=f"a recording has no columns {', '.join(sorted(unknown))}")
    columns = configuration.columns()
    return {
        **columns,
        "parameters": json.dumps(columns["parameters"]),
        ID_COLUMN: configuration.id.bytes,
        **{name: row.get(name) for name in RESULT_COLUMNS},
    }
