"""Commands that a user can paste, with the program and the environment that started this process.

Without FARM_HOME, a pasted command would use another farm. Variables that may hold passwords (FARM_DATABASE_URL and others) are
never printed; users export them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from farm.cli.commands import COMMANDS
from farm.completion_names import default_home
from farm.control_characters import neutralised
from farm.errors import BadSettings
from farm.settings import settings

WORKING = ("run", "up")
"""Commands that start workers and so read FARM_DEVICES."""

_MENTION = re.compile(rf"(?<![\w./-])farm (?=(?:{'|'.join(entry.name for entry in COMMANDS)})\b)")

_CARRIED = re.compile(r"FARM_HOME=(?:'[^']*'|\S)+ (?:\w+=(?:'[^']*'|\S)+ )*(?:python -m )?$")
"""What precedes a mention that has the home already."""


def command(words: str) -> str:
    """A command line of `farm` that a user can paste into a shell."""
    return f"{_environment(words.split(maxsplit=1)[0])}{_program()} {words}"


def pasteable(message: str, *, markup: bool = False) -> str:
    """A message in which mentions of commands have the home of this process, if it is not the default one.

    With `markup`, the message is rich markup, and brackets in paths are escaped. A mention that has the home already does
    not change.
    """
    places, home = _mentions(message)
    before = escape(home) if markup else home
    for place in reversed(places):
        message = message[:place] + before + message[place:]
    return message


def pasteable_text(message: Text) -> Text:
    """The same for text with styles."""
    places, home = _mentions(message.plain)
    for place in reversed(places):
        message = message[:place] + Text(home) + message[place:]
    return message


def _mentions(message: str) -> tuple[list[int], str]:
    """The places where a message mentions commands without a needed home, and the home; no places if none is needed."""
    if "farm " not in message:
        return [], ""
    places = [found.start() for found in _MENTION.finditer(message) if not _CARRIED.search(message[: found.start()])]
    try:
        return (places, home) if places and (home := _environment("")) else ([], "")
    except BadSettings:  # the settings are what the message is about
        return [], ""


class Hinting(Console):
    """A console that makes mentions of commands pasteable."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Renders without control characters and links."""
        for text, style, control in super().render(renderable, options):
            if control is None:
                yield Segment(neutralised(text), style.update_link(None) if style and style.link else style)
            else:
                yield Segment(text, style, control)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints like `Console.print`, and makes texts and padded texts pasteable."""
        super().print(*(self._pasteable(one, markup=options.get("markup", True)) for one in objects), **options)

    def print_laid_out(self, *objects: Any, **options: Any) -> None:
        """Prints lines that are pasteable already and folded."""
        super().print(*objects, **options)

    def _pasteable(self, one: Any, *, markup: bool) -> Any:
        if isinstance(one, str):
            return pasteable(one, markup=markup)
        if isinstance(one, Text):
            return pasteable_text(one)
        if isinstance(one, Padding):
            one.renderable = self._pasteable(one.renderable, markup=markup)
        return one


def _environment(name: str) -> str:
    """The variables before the program, without which the command would behave differently."""
    variables = {}
    if (home := settings().home.resolve()) != default_home().resolve():
        variables["FARM_HOME"] = str(home)
    if name in WORKING and settings().devices != "auto":
        variables["FARM_DEVICES"] = settings().devices
    return "".join(f"{variable}={shlex.quote(value)} " for variable, value in variables.items())


@cache
def _program() -> str:
    """How this user calls the program: by name, or by its path."""
    beside = Path(sys.executable).with_name("farm")
    if not beside.exists():
        return "python -m farm"
    found = shutil.which("farm")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "farm"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)
