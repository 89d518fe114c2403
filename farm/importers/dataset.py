"""The farm's own recordings, imported: Parquet that `farm results` exported for one device type, here or elsewhere."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from farm.db import imports
from farm.db.imports import ImportedDevice, ImportedRow
from farm.errors import BadRecording
from farm.formatting import shortened
from farm.fusion import Fusion
from farm.gemm import INPUT_TYPES, OUTPUT_TYPES, Layout
from farm.importers import files
from farm.importers.formats import Importer
from farm.importers.landing import Reader, Row, Table, check_name, imported_device, measurement_of, sha256_of
from farm.kernels import Configuration
from farm.kernels.families import family_named
from farm.measurement import is_test_row
from farm.provenance import METADATA_KEY, Provenance
from farm.recording import NEEDED_COLUMNS, UNSTATED_IN_RECORDINGS, check_columns, provenance_in
from farm.scale import Scale
from farm.schema.column import ColumnType
from farm.schema.results import COLUMNS, CONFIGURATION, RESULTS
from farm.sparsity import Sparsity
from farm.vendors import vendor_of_kind


@dataclass(frozen=True, kw_only=True)
class Dataset(Table):
    """A recording of the farm's."""

    provenance: Provenance

    @property
    def device_type(self) -> str:
        return self.provenance.device_type

    def reader(self) -> DatasetReader:
        return DatasetReader(self)


def look(path: Path) -> Dataset:
    """Reads the head of a file and hashes it. Raises `BadRecording`, `MissingColumns`."""
    content = sha256_of(path)
    schema, rows = files.parquet_head(path)
    check_columns(path, schema.names)
    metadata = (schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        raise BadRecording(
            path=path, why="its metadata has no key gemm-farm, so it does not say what device was measured"
        )
    provenance = provenance_in(path, metadata)
    if (character := imports.unstorable(provenance.to_json())) is not None:
        raise BadRecording(path=path, why=f"its provenance holds {character}")
    try:
        check_name(provenance.device_type, "a device type")
    except ValueError as error:
        raise BadRecording(path=path, why=f"its provenance cannot be read: {error}") from None
    return Dataset(path=path, content=content, rows=rows, provenance=provenance)


_PYTHON_TYPES: Mapping[ColumnType, type] = {
    ColumnType.BIGINT: int,
    ColumnType.DOUBLE: float,
    ColumnType.TEXT: str,
    ColumnType.BOOLEAN: bool,
    ColumnType.TIMESTAMPTZ: datetime,
    ColumnType.JSONB: str,
}
_RESULTS = tuple(name for name in RESULTS if name not in ("source", "details"))
"""The measurement columns that are plain values."""

_TIME = "measured_at"
_ORIGINS = ("device_type", "device_uuid", "host", "campaign", "source", "details", "environment", _TIME)
_KINDS = {name: _PYTHON_TYPES[COLUMNS[name].type] for name in (*_RESULTS, *CONFIGURATION, *_ORIGINS)}


@dataclass(slots=True)
class _Seen:
    """A device of the file, and the origins of its rows."""

    uuid: str | None
    host: str | None
    rows: int = 0
    campaigns: set[str] = field(default_factory=set)
    sources: Counter[str] = field(default_factory=Counter)


class DatasetReader(Reader[Dataset]):
    """Reads a recording."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        self._seen: dict[str, _Seen] = {}

    def _batches(self) -> Iterable[list[dict[str, Any]]]:
        return files.parquet_batches(self._table.path, _KINDS)

    def _row(self, number: int, row: Row) -> ImportedRow:
        missing = [name for name in NEEDED_COLUMNS if row[name] is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
        given = {name: row[name] for name in _RESULTS if row.get(name) is not None}
        endless = [name for name, value in given.items() if isinstance(value, float) and math.isinf(value)]
        if endless:
            raise ValueError(f"{', '.join(endless)} is infinite ({given[endless[0]]})")
        measurement = measurement_of(
            **{**UNSTATED_IN_RECORDINGS, **given},
            environment=_object(row, "environment"),
            details=_object(row, "details"),
        )
        configuration = _configuration(row)
        self.test_rows += is_test_row(measurement.details)
        return ImportedRow(
            number=number,
            device=self._device(row),
            measured_at=row.get(_TIME),
            configuration=configuration,
            measurement=measurement,
        )

    def _device(self, row: Row) -> str:
        """The key of the row's device: its UUID, or else its host, or else its type."""
        kind = self._table.provenance.device_type
        if row.get("device_type") not in (None, kind):
            raise ValueError(f"it is of {row['device_type']}, and the file of {kind}")
        key: str = row.get("device_uuid") or row.get("host") or kind
        if key not in self._seen:
            for name in (key, row.get("host") or kind):
                check_name(name, "a device or host")
            self._seen[key] = _Seen(row.get("device_uuid"), row.get("host"))
        seen = self._seen[key]
        seen.rows += 1
        seen.sources[row.get("source") or "unknown"] += 1
        if row.get("campaign"):
            seen.campaigns.add(row["campaign"])
        return key

    def devices(self) -> list[ImportedDevice]:
        return [self._imported(key, seen) for key, seen in self._seen.items()]

    def _imported(self, key: str, seen: _Seen) -> ImportedDevice:
        origin = self._table.provenance
        facts = {
            "provenance": origin.provenance,
            "device_uuid": seen.uuid,
            "host": seen.host,
            "campaigns": sorted(seen.campaigns),
            "sources": dict(seen.sources),
        }
        return imported_device(
            self._table, key, host=seen.host, rows=seen.rows, type=origin.device_type, name=origin.device_name,
            backend=vendor_of_kind(origin.traits.kind).backend, traits=origin.traits, facts=facts,
        )  # fmt: skip


def _configuration(row: Mapping[str, Any]) -> Configuration:
    """The configuration of a row whose columns have the right types. Raises `ValueError` or `FarmError`."""
    _one_of(row, "ab", INPUT_TYPES, "an element type of A and B")
    _one_of(row, "cd", OUTPUT_TYPES, "an element type of C and D")
    _one_of(row, "acc", OUTPUT_TYPES, "an element type of accumulators")
    _one_of(row, "layout", Layout, "a layout")
    for name, known, what in (
        ("scale", Scale, "the name of scale factors"),
        ("fused", Fusion, "the name of fused operations"),
        ("sparsity", Sparsity, "a sparsity of B"),
    ):
        if row.get(name) is not None:
            _one_of(row, name, known, what)
    parameters = _object(row, "parameters")
    space = family_named(row["family"])
    for name, value in parameters.items():
        if (why := space.parameter(name).why_bad(value)) is not None:
            raise ValueError(f"parameters has {name}={shortened(repr(value))}: {why}")
    return Configuration.from_columns({**row, "parameters": parameters})


def _one_of(row: Mapping[str, Any], name: str, known: Iterable[str], what: str) -> None:
    if row[name] not in set(known):
        raise ValueError(f"{name} is {shortened(repr(row[name]))}, which is not {what}: use one of {', '.join(known)}")


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A column of JSON objects; without a value, an empty one."""
    text = row.get(name)
    try:
        found = {} if text is None else json.loads(text)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply: {shortened(str(text))}") from None
    except ValueError as error:
        raise ValueError(f"{name} is {shortened(repr(text))}, which is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {shortened(repr(text))}, which is not a JSON object")  # noqa: TRY004
    return found


IMPORTER = Importer(
    name="dataset",
    files="Parquet that farm results exported for one device type.",
    help="""Import the farm's own recordings. Each file is imported completely or not at all. The same content again adds nothing.

    Files with other content are left out and named.

    Examples:
        farm import dataset examples/datasets/*.parquet
    """,
    look=look,
)
