"""The farm's own recordings, imported: Parquet that `farm results` exported for one device type, here or elsewhere.

A file is imported whole or not at all, and once: the SHA-256 of its bytes names it. Rows become `imported` rows of devices
that belong to this import alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from sqlalchemy import Engine

from farm.db import imports
from farm.db.imports import ImportedDevice, ImportedRow
from farm.devices import Backend, DeviceIdentity, DeviceKind
from farm.errors import BadRecording, FarmError, RowNotImported, first_line
from farm.kernels import Configuration
from farm.measurement import Measurement, Source
from farm.provenance import METADATA_KEY, Provenance
from farm.recording import CONFIGURATION_COLUMNS, NEEDED_COLUMNS, check_columns, provenance_in, readable

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
"""Rows in memory at a time: some 50 MB with every column."""

LONGEST_NAME = 200
"""Characters of a device's UUID or host in a file."""

Progress = Callable[[int], None]
"""Told how many rows have been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a file says before its rows are read."""

    path: Path
    content: str  # SHA-256 of its bytes, in hex
    provenance: Provenance
    rows: int
    columns: tuple[str, ...]


class Outcome(StrEnum):
    IMPORTED = "imported"
    IMPORTABLE = "importable"  # a dry run found nothing against it
    KNOWN = "known"  # imported before


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What became of one file. A file that was imported before has neither counts of configurations nor devices' rows."""

    dataset: Dataset
    outcome: Outcome
    configurations: int = 0
    new_configurations: int = 0
    devices: tuple[ImportedDevice, ...] = ()
    # UUIDs of the devices: those of the earlier import, where it was imported before.
    uuids: tuple[str, ...] = ()


def look(path: Path) -> Dataset:
    """Reads the head of a file and hashes it. Raises `BadRecording`, `MissingColumns`."""
    import pyarrow.parquet as pq

    content = _sha256(path)
    with readable(path):
        schema, rows = pq.read_schema(path), pq.read_metadata(path).num_rows
    check_columns(path, schema.names)
    metadata = (schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        raise BadRecording(
            path=path, why="its metadata has no key gemm-farm, so it does not say what device was measured"
        )
    if not rows:
        raise BadRecording(path=path, why="it has no rows")
    provenance = provenance_in(path, metadata)
    return Dataset(path=path, content=content, provenance=provenance, rows=rows, columns=tuple(schema.names))


def _sha256(path: Path) -> str:
    with readable(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def import_dataset(engine: Engine, dataset: Dataset, *, dry_run: bool, progress: Progress) -> Import:
    """Imports a file in one transaction. A dry run reads and checks every row, and stores none.

    Raises `BadRecording`, `RowNotImported`, `ImportNotAllowed`.
    """
    with engine.begin() as connection:
        known = imports.claim(connection, dataset.content)
        if known:
            return Import(dataset=dataset, outcome=Outcome.KNOWN, uuids=tuple(known))
        reader = Reader(dataset)
        imports.stage(connection, reader.rows(progress), path=dataset.path)
        if _sha256(dataset.path) != dataset.content:
            raise BadRecording(path=dataset.path, why="it was changed while it was read")
        configurations, new = imports.staged_configurations(connection)
        devices = reader.devices()
        if not dry_run:
            imports.land(connection, devices, reason=f"imported from {dataset.path.name}; nothing runs on it")
    return Import(
        dataset=dataset,
        outcome=Outcome.IMPORTABLE if dry_run else Outcome.IMPORTED,
        configurations=configurations,
        new_configurations=new,
        devices=tuple(devices),
        uuids=tuple(device.identity.uuid for device in devices),
    )


# --- rows --------------------------------------------------------------------------------------------


_NO_RESULTS = ("source", "details", "environment")
_RESULTS = {
    name: next(kind for kind in (*get_args(hint), hint) if kind is not NoneType)
    for name, hint in get_type_hints(Measurement).items()
    if name not in _NO_RESULTS
}
"""The measurement columns that are plain values, with their Python types."""

_CONFIGURATIONS: Mapping[str, type] = {
    **dict.fromkeys(CONFIGURATION_COLUMNS, str),
    **dict.fromkeys(("m", "n", "k"), int),
    **dict.fromkeys(("alpha", "beta"), float),
}
_ORIGINS: Mapping[str, type] = dict.fromkeys(
    ("device_type", "device_uuid", "host", "campaign", "source", "details", "environment"), str
)
_TIME = "measured_at"

# What a row counts as where its file does not say: as for a `recorded` device.
_DEFAULTS: Mapping[str, Any] = {
    **{"runtime_rse": 0.0, "samples": 1, "stop_reason": "recorded", "l2": "cold", "distribution": "uniform", "seed": 0}
}
_QUARTILES = ("runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms")


@dataclass(slots=True)
class _Seen:
    """A device of the file: how it names it, and what its rows say of where they come from."""

    uuid: str | None
    host: str | None
    rows: int = 0
    campaigns: set[str] = field(default_factory=set)
    sources: Counter[str] = field(default_factory=Counter)


class Reader:
    """Reads a file's rows once, and afterwards knows its devices."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._seen: dict[str, _Seen] = {}

    def rows(self, progress: Progress) -> Iterator[ImportedRow]:
        """The rows in their order, `BATCH_ROWS` in memory. Raises `BadRecording`, `RowNotImported`."""
        number = 0
        for batch in self._batches():
            for row in self._plain(batch, number):
                number += 1
                try:
                    found = self._row(row)
                except (FarmError, TypeError, ValueError) as error:
                    raise RowNotImported(path=self._dataset.path, row=number, why=first_line(error)) from None
                yield found
            progress(number)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        path = self._dataset.path
        wanted = {*_RESULTS, *_CONFIGURATIONS, *_ORIGINS, _TIME}
        columns = [name for name in self._dataset.columns if name in wanted]
        with readable(path), pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS, columns=columns)

    def _plain(self, batch: pa.RecordBatch, before: int) -> list[dict[str, Any]]:
        """The rows of a batch as Python values of the farm's types; NaN is no value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
        kinds = {name: arrow[kind] for name, kind in {**_RESULTS, **_CONFIGURATIONS, **_ORIGINS}.items()}
        kinds[_TIME] = pa.timestamp("us", "UTC")
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                numbers = pa.types.is_floating(column.type)
                values = pc.if_else(pc.is_nan(column), None, column) if numbers else column
                columns[name] = pc.cast(values, kinds[name], safe=name != _TIME)
            except pa.ArrowException as error:
                among = f"rows {before + 1:,} to {before + batch.num_rows:,}"
                why = f"its column {name} holds what is no {kinds[name]}, among {among}: {first_line(error)}"
                raise BadRecording(path=self._dataset.path, why=why) from None
        found: list[dict[str, Any]] = pa.RecordBatch.from_pydict(columns).to_pylist()
        return found

    def _row(self, row: dict[str, Any]) -> ImportedRow:
        missing = [name for name in NEEDED_COLUMNS if row[name] is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
        given = {name: row[name] for name in _RESULTS if row.get(name) is not None}
        endless = [name for name, value in given.items() if isinstance(value, float) and math.isinf(value)]
        if endless:
            raise ValueError(f"{', '.join(endless)} is infinite")
        measurement = Measurement(
            **{**_DEFAULTS, **dict.fromkeys(_QUARTILES, row["runtime_ms"]), **given},
            source=Source.IMPORTED,
            environment=_object(row, "environment"),
            details=_object(row, "details"),
        )
        configuration = Configuration.from_columns({**row, "parameters": _object(row, "parameters")})
        return ImportedRow(
            device=self._device(row),
            measured_at=row.get(_TIME),
            configuration=configuration,
            measurement=measurement,
        )

    def _device(self, row: dict[str, Any]) -> str:
        """What tells the row's device apart: its UUID, or its host, or nothing but its type."""
        kind = self._dataset.provenance.device_type
        if row.get("device_type") not in (None, kind):
            raise ValueError(f"it is of {row['device_type']}, and the file of {kind}")
        key: str = row.get("device_uuid") or row.get("host") or kind
        if key not in self._seen:
            for name in (key, row.get("host") or kind):
                if len(name) > LONGEST_NAME or not name.isprintable():
                    raise ValueError(f"{name[:40]!r} is no name of a device or host")
            self._seen[key] = _Seen(row.get("device_uuid"), row.get("host"))
        seen = self._seen[key]
        seen.rows += 1
        seen.sources[row.get("source") or "unknown"] += 1
        if row.get("campaign"):
            seen.campaigns.add(row["campaign"])
        return key

    def devices(self) -> list[ImportedDevice]:
        """The devices of the rows that were read, in the order in which they came."""
        return [self._stored(key, seen) for key, seen in self._seen.items()]

    def _stored(self, key: str, seen: _Seen) -> ImportedDevice:
        dataset, origin = self._dataset, self._dataset.provenance
        identity = DeviceIdentity(
            uuid=imports.uuid_of(dataset.content, key),
            type=origin.device_type,
            name=origin.device_name,
            backend=Backend.CPU if origin.traits.kind is DeviceKind.CPU else Backend.CUDA,
            traits=origin.traits,
            facts={
                "imported_from": dataset.path.name,
                "sha256": dataset.content,
                "provenance": origin.provenance,
                "device_uuid": seen.uuid,
                "host": seen.host,
                "campaigns": sorted(seen.campaigns),
                "sources": dict(seen.sources),
            },
        )
        return ImportedDevice(key=key, identity=identity, host=f"imported:{seen.host or 'unknown'}", rows=seen.rows)


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A column of JSON objects; without a value, an empty one."""
    text = row.get(name)
    try:
        found = {} if text is None else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no JSON object")  # noqa: TRY004
    return found
