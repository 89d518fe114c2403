"""JSON: a list of rows with every column of an export."""

from __future__ import annotations

import json

from farm.api.results import Results
from farm.exporters.exporter import RowExporter


class JsonRows(RowExporter):
    format = "json"

    def content(self, results: Results) -> bytes:
        return json.dumps(results.rows, indent=1, default=str).encode()
