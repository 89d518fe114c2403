"""The command line as a tree of parsers, for tests that look into it."""

from __future__ import annotations

from functools import cache
from typing import Any

import typer

from farm.cli.app import app
from farm.cli.commands import LazyCommand


@cache
def top_level() -> Any:
    """The parser of `farm`. Its commands are stand-ins until they are used."""
    return typer.main.get_command(app)


def imported(command: Any) -> Any:
    """The command that a stand-in of the top level stands for; any other command as it is."""
    return command.load() if isinstance(command, LazyCommand) else command
