"""Writing what a command made: to a file, or to stdout."""

from __future__ import annotations

import sys
from pathlib import Path

from farm.atomic_write import write_text


def write(text: str, output: Path | None) -> None:
    """To the file, whole or not at all, or to stdout where there is none. Raises `BadInput`."""
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)
