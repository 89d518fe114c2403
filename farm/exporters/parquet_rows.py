"""Parquet: every column of an export. The rows of one device type are a recording, which says where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import IO, Any

from farm import __version__
from farm.api.results import Identity, Results, TypesOfPages, traits_of
from farm.exporters.exporter import RowExporter
from farm.provenance import METADATA_KEY, Provenance

GROUP_ROWS = 50_000
"""Rows of a row group: pages are collected as Arrow tables until they have that many. Smaller groups compress less."""


class ParquetRows(RowExporter):
    format = "parquet"
    binary = True

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from farm.schema.arrow import SCHEMA, arrow_table

        types, origin, group = TypesOfPages(), Origin(), list[pa.Table]()
        # The provenance is known at the end. Readers find it in the schema only if the file has no second schema, that of Arrow.
        with pq.ParquetWriter(file, SCHEMA, compression="zstd", store_schema=False) as writer:
            for page in pages:
                types.add(page)
                origin.add(page.rows)
                group.append(arrow_table(page.rows))
                if sum(map(len, group)) >= GROUP_ROWS:
                    writer.write_table(pa.concat_tables(group).combine_chunks())
                    group.clear()
            if group:
                writer.write_table(pa.concat_tables(group).combine_chunks())
            if types.identity is not None:
                provenance = json.dumps(origin.provenance(types.identity).to_json())
                writer.add_key_value_metadata({METADATA_KEY: provenance})


class Origin:
    """Where rows come from: what makes an export of one device type a recording, which a `recorded` device answers from."""

    def __init__(self) -> None:
        self._values: Mapping[str, set[str]] = {name: set() for name in ("campaign", "host", "source")}
        self._first: datetime | None = None
        self._last: datetime | None = None

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            for name, values in self._values.items():
                values.add(str(row[name]))
            at = row["measured_at"]
            self._first = at if self._first is None else min(self._first, at)
            self._last = at if self._last is None else max(self._last, at)

    def provenance(self, identity: Identity) -> Provenance:
        """Of at least one row of that device type."""
        of = {name: ", ".join(sorted(values)) for name, values in self._values.items()}
        first, last = f"{self._first:%Y-%m-%d}", f"{self._last:%Y-%m-%d}"
        when = first if first == last else f"{first} to {last}"
        return Provenance(
            device_type=identity.type,
            device_name=identity.name,
            traits=traits_of(identity),
            provenance=f"{of['source']} by gemm-farm {__version__} on {of['host']}, {when}, campaign {of['campaign']}",
        )
