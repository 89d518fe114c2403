"""Commands: a line for each row that measures it again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from farm.api.results import Results
from farm.exporters.exporter import RowExporter


class Commands(RowExporter):
    format = "commands"
    meaning = "a line for each row that measures it again, alone"
    with_commands = True

    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        for page in pages:
            file.write("".join(f"{line}\n" for line in page.commands or ()).encode())
