"""Parquet: every column of an export. The rows of one device type are a recording, which says where they come from."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from farm import __version__
from farm.api.results import Identity, Results, traits_of
from farm.exporters.exporter import RowExporter
from farm.provenance import METADATA_KEY, Provenance


class ParquetRows(RowExporter):
    format = "parquet"
    binary = True

    def content(self, results: Results) -> bytes:
        import pyarrow.parquet as pq

        from farm.schema.arrow import arrow_table

        table = arrow_table(results.rows)
        if results.identity is not None:
            provenance = provenance_of(results.rows, results.identity)
            table = table.replace_schema_metadata({METADATA_KEY: json.dumps(provenance.to_json())})
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd")
        return file.getvalue()


def provenance_of(rows: Sequence[dict[str, Any]], identity: Identity) -> Provenance:
    """What makes an export of one device type a recording, which a `recorded` device answers from."""
    of = {name: ", ".join(sorted({str(row[name]) for row in rows})) for name in ("campaign", "host", "source")}
    first, last = (f"{pick(row['measured_at'] for row in rows):%Y-%m-%d}" for pick in (min, max))
    when = first if first == last else f"{first} to {last}"
    return Provenance(
        device_type=identity.type,
        device_name=identity.name,
        traits=traits_of(identity),
        provenance=f"{of['source']} by gemm-farm {__version__} on {of['host']}, {when}, campaign {of['campaign']}",
    )
