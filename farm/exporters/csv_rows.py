"""CSV: every column of an export, with JSON in the columns that hold objects."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import IO, Any

from farm.api.results import Results
from farm.csv_cells import cell
from farm.exporters.exporter import RowExporter
from farm.schema.results import EXPORTED


class CsvRows(RowExporter):
    format = "csv"

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        for number, page in enumerate(pages):
            file.write(csv_text(page.rows, header=number == 0).encode())


def csv_text(rows: Iterable[Mapping[str, Any]], *, header: bool) -> str:
    """Lines of CSV. A cell is empty where a row has no value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=EXPORTED, lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        values = ((name, row[name]) for name in EXPORTED)
        writer.writerow(
            {name: json.dumps(value) if isinstance(value, dict | list) else cell(value) for name, value in values}
        )
    return text.getvalue()
