"""What a command prints on a terminal of a given width, or into a pipe."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from unittest.mock import patch

WIDTHS = (40, 80, 120)


class Terminal(io.StringIO):
    """Text that was printed on a terminal."""

    def isatty(self) -> bool:
        return True


def environment_of(width: int) -> dict[str, str]:
    """The variables of a terminal without colours, of that width."""
    return {"COLUMNS": str(width), "TERM": "dumb", "NO_COLOR": "1"}


def printed(call: Callable[[], object], width: int | None) -> list[str]:
    """The lines that it prints on a terminal of that width; into a pipe where there is none."""
    out = io.StringIO() if width is None else Terminal()
    with patch.dict(os.environ, environment_of(width or 80)), contextlib.redirect_stdout(out):
        call()
    return [line.rstrip() for line in out.getvalue().splitlines()]
