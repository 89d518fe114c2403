"""Writing what a command made: to a file, or to stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farm.errors import BadInput


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turns what the operating system raises while it is written into `BadInput`."""
    try:
        yield
    except OSError as error:
        raise BadInput(detail=f"{path} cannot be written: {error.strerror}") from None


def write(text: str, output: Path | None) -> None:
    """To the file, or to stdout where there is none. Raises `BadInput`."""
    if output is None:
        sys.stdout.write(text)
        return
    with writable(output):
        output.write_text(text, encoding="utf-8")
