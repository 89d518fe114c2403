"""Commands that a user can paste: with the program and the environment that this process was started with.

A hint that leaves out FARM_HOME sends its reader to another farm. Variables that may hold passwords (FARM_DATABASE_URL and
the like) are never printed; whoever sets them exports them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from farm.cli.commands import COMMANDS
from farm.errors import BadSettings
from farm.names import default_home
from farm.settings import settings

WORKING = ("run", "up")
"""Commands that start workers, which FARM_DEVICES is about."""

_MENTION = re.compile(rf"(?<![\w./-])farm (?=(?:{'|'.join(entry.name for entry in COMMANDS)})\b)")


def command(words: str) -> str:
    """The command line of `farm` with these words, to be pasted into a shell."""
    return f"{_environment(words.split(maxsplit=1)[0])}{_program()} {words}"


def pasteable(message: str, *, markup: bool = False) -> str:
    """A message whose mentions of commands carry the home of this process, where it is not the one they would find.

    With `markup`, the message is rich's markup, and a bracket in a path is none of it.
    """
    try:
        if not _MENTION.search(message) or not (home := _environment("")):
            return message
    except BadSettings:  # the settings are what the message is about
        return message
    before = escape(home) if markup else home
    return _MENTION.sub(lambda found: before + found.group(), message)


class Hinting(Console):
    """A console whose messages name commands that can be pasted."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints like `Console.print`, with strings passed through `pasteable`. Tables and other renderables do not change."""
        said = (pasteable(one, markup=options.get("markup", True)) if isinstance(one, str) else one for one in objects)
        super().print(*said, **options)


def print_next(steps: Sequence[tuple[str, str]]) -> None:
    """Prints what to do next: commands without their program, and what each does."""
    from farm.cli.output import console

    lines = [(command(words), meaning) for words, meaning in steps]
    width = max(len(line) for line, _ in lines)
    for line, meaning in lines:
        console.print(Text(f"  {line.ljust(width)}   {meaning}"), soft_wrap=True)


def _environment(name: str) -> str:
    """What goes before the program: the variables without which the command would do another thing."""
    variables = {}
    if (home := settings().home.resolve()) != default_home().resolve():
        variables["FARM_HOME"] = str(home)
    if name in WORKING and settings().devices != "auto":
        variables["FARM_DEVICES"] = settings().devices
    return "".join(f"{variable}={shlex.quote(value)} " for variable, value in variables.items())


@cache
def _program() -> str:
    """How this user reaches the command line: by name, or by the path of the environment it was started from."""
    beside = Path(sys.executable).with_name("farm")
    if not beside.exists():
        return "python -m farm"
    found = shutil.which("farm")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "farm"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)
