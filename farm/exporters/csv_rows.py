"""CSV: every column of an export, with JSON in the columns that hold objects."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from farm.api.results import Results
from farm.csv_cells import cell
from farm.exporters.exporter import RowExporter
from farm.schema.column import ColumnType
from farm.schema.results import COLUMNS, EXPORTED


class CsvRows(RowExporter):
    format = "csv"

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        for number, page in enumerate(pages):
            file.write(csv_text(page.rows, header=number == 0).encode())


def csv_text(rows: Iterable[Mapping[str, Any]], *, header: bool) -> str:
    """Lines of CSV. A cell is empty where a row has no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(EXPORTED)
    writer.writerows([row[name] if read is None else read(row[name]) for name, read in _CELLS] for row in rows)
    return text.getvalue()


def _object(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else cell(value)


_READ: Mapping[ColumnType, Callable[[Any], Any]] = {ColumnType.TEXT: cell, ColumnType.JSONB: _object}
_CELLS = [(name, _READ.get(COLUMNS[name].type)) for name in EXPORTED]
"""Each column, and what makes a cell of its value. Numbers and times are written unchanged."""
