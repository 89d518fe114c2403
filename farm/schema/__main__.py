"""Prints the columns of results as the Markdown table of docs/sql.md."""

from __future__ import annotations

import sys

from farm.schema.column import FIRST_VERSION, Column
from farm.schema.results import COLUMNS


def markdown() -> str:
    """A table of every column of `v_measurements`, with its type, unit and meaning."""
    lines = ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{c.name}` | {c.type} | {c.unit} | {_meaning(c)} |" for c in COLUMNS.values()]
    return "\n".join(lines)


def _meaning(column: Column) -> str:
    return column.meaning + ("" if column.since == FIRST_VERSION else f" (since {column.since})")


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
