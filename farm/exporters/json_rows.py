"""JSON: a list of rows with every column of an export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from farm.api.results import Results
from farm.exporters.exporter import RowExporter


class JsonRows(RowExporter):
    format = "json"

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        for text in json_list((page.rows for page in pages), indent=1, default=str):
            file.write(text.encode())


def json_list(
    pages: Iterable[Sequence[Mapping[str, Any]]], *, indent: int, default: Callable[[Any], Any]
) -> Iterator[str]:
    """The parts of what `json.dumps` returns for the rows of all pages, a page at a time."""
    before = ""
    for rows in pages:
        if rows:
            text = json.dumps(rows, indent=indent, default=default)
            yield before + text.removeprefix("[" if before else "").removesuffix("\n]")
            before = ","
    yield "\n]" if before else "[]"
