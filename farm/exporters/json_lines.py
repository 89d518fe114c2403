"""JSON Lines: an object with every column of an export on each line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO

from farm.api.results import Results
from farm.exporters.exporter import RowExporter


class JsonLines(RowExporter):
    format = "jsonl"
    meaning = "a JSON object on each line"

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        for page in pages:
            file.write("".join(f"{json.dumps(row, default=str)}\n" for row in page.rows).encode())
