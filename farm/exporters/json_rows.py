"""JSON: a list of rows with every column of an export."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO

from farm.api.results import Results
from farm.exporters.exporter import RowExporter


class JsonRows(RowExporter):
    format = "json"

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        before, end = "[", "]"
        for page in pages:
            if page.rows:
                text = json.dumps(page.rows, indent=1, default=str)
                file.write((before + text.removeprefix("[").removesuffix("\n]")).encode())
                before, end = ",", "\n]"
        file.write((end if before == "," else "[]").encode())
