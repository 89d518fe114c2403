"""Printing: data on stdout, progress and remarks on stderr, JSON on request. `tables` prints tables."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import ConsoleDimensions
from rich.text import Text

from farm.cli.hints import Hinting, command
from farm.formatting import configuration_text, kernel_text, types_text

__all__ = [
    "JsonOption",
    "configuration_text",
    "console",
    "emit_json",
    "kernel_text",
    "print_next",
    "remarks",
    "types_text",
]

UNLIMITED = 1_000_000
"""The width of pipes and files, in which nothing is folded or cut."""


class _Output(Hinting):
    """The current standard output: as wide as the terminal, or unlimited without one."""

    @property
    def size(self) -> ConsoleDimensions:
        wide = sys.stdout is not None and sys.stdout.isatty()
        width, height = shutil.get_terminal_size()  # COLUMNS goes before what the terminal says
        return ConsoleDimensions(width if wide else UNLIMITED, height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        raise NotImplementedError("the terminal has its own size")

    @property
    def is_piped(self) -> bool:
        """Whether the output goes to a pipe or a file, without colours."""
        return self.width == UNLIMITED and not self.is_terminal


console = _Output(highlight=False)
remarks = Hinting(stderr=True, highlight=False, soft_wrap=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def emit_json(data: Any) -> None:
    """Prints data as one JSON document: models and dataclasses as objects, times in ISO 8601, other values as text."""
    sys.stdout.write(json.dumps(data, indent=2, default=plain) + "\n")


def plain(value: Any) -> Any:
    """A value that JSON does not have, as `emit_json` prints it."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_next(steps: Sequence[tuple[str, str]]) -> None:
    """Prints what to do next: commands without their program, and what each does."""
    lines = [(command(words), meaning) for words, meaning in steps]
    width = max(len(line) for line, _ in lines)
    for line, meaning in lines:
        console.print(Text(f"  {line.ljust(width)}   {meaning}"), soft_wrap=True)
