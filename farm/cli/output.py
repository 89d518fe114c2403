"""One way to say things: data on stdout, progress and remarks on stderr, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from farm.texts import configuration_text, kernel_text, types_text

__all__ = ["JsonOption", "configuration_text", "console", "emit_json", "kernel_text", "remarks", "table", "types_text"]

# Piped into a file or a program, tables are as wide as they need: nothing is folded to a terminal that is not there.
console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
remarks = Console(stderr=True, highlight=False, soft_wrap=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def emit_json(data: Any) -> None:
    """Prints data as one JSON document; documents and dataclasses as objects, times in ISO 8601, all else as text."""
    sys.stdout.write(json.dumps(data, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Iterable[str] = (),
    whole: Iterable[str] = (),
) -> Table:
    """A table whose `right` columns hold numbers, and whose `whole` columns are never folded.

    Units belong in the column names. A cell that is a rich `Text` keeps its style.
    """
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    numbers, unbroken = set(right), set(whole)
    for column in columns:
        justify: Literal["right", "left"] = "right" if column in numbers else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in unbroken)
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: Any) -> str | Text:
    if value is None:
        return "–"
    if isinstance(value, Text):
        return value
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))
