"""Write the output of a command to a file or to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from farm.atomic_write import write_text
from farm.control_characters import neutralised

ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing files.", show_default=False)]


def write(text: str, output: Path | None, *, force: bool) -> None:
    """Writes a file completely or not at all, or writes to stdout. Raises `BadInput` and, without `force`, `FileThere`."""
    if output is None:
        sys.stdout.write(neutralised(text) if sys.stdout.isatty() else text)
    else:
        write_text(output, text, force=force)
