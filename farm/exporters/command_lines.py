"""Commands: a line for each row that measures it again."""

from __future__ import annotations

from farm.api.results import Results
from farm.exporters.exporter import RowExporter


class Commands(RowExporter):
    format = "commands"
    meaning = "a line for each row that measures it again, alone"
    with_commands = True

    def content(self, results: Results) -> bytes:
        return "".join(f"{line}\n" for line in results.commands or ()).encode()
