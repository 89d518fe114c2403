"""The parameters of every command, read from a file, so that shell completion imports no command.

Importing a command takes up to half a second, and a completion must take a tenth. The file is generated from the commands;
a test compares the two. After a change to a command's parameters, write it again:

    python -m farm.cli.write_parameters
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from typer import core
from typer._coercion import bool_flag_type_descriptor

FILE = Path(__file__).with_name("parameters.json")

ABSENT: dict[str, Any] = {
    "secondary_opts": [],
    "help": None,
    "hidden": False,
    "is_flag": False,
    "multiple": False,
    "nargs": 1,
}
"""Properties that the file omits if they have these values."""


class _Known:
    """A parameter from the file. Its values stay text, because no command runs with them."""

    choices: list[str] | None = None

    def process_value(self, ctx: Any, value: Any) -> Any:
        return value

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        typer_core: Any = core  # it imports the class without exporting it
        return [typer_core.CompletionItem(one) for one in self.choices or () if one.startswith(incomplete)]


class _Argument(_Known, core.TyperArgument):
    pass


class _Option(_Known, core.TyperOption):
    pass


class Quick(core.TyperCommand):
    """A command whose own `--help` option needs no pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_flags(super().get_params(ctx))


class QuickGroup(core.TyperGroup):
    """A group whose own `--help` option needs no pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_flags(super().get_params(ctx))


def with_plain_flags(options: Iterable[Any]) -> list[Any]:
    """The options, with False as the default of flags without a default.

    Typer gives --help and its completion options the default None, and imports pydantic to check it: half the time of a
    completion.
    """
    kept = list(options)
    for option in kept:
        if option.default is None and getattr(option, "is_flag", False):
            option.default = False
    return kept


def command_of(name: str) -> Any:
    """A command or group of the top level with what completion needs. It cannot run."""
    return _command(name, _all()[name])


@cache
def _all() -> Mapping[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def _command(name: str, known: Mapping[str, Any]) -> Any:
    params = [_parameter(each) for each in known["parameters"]]
    if "commands" not in known:
        return Quick(name, help=known["help"], params=params)
    below = {each: _command(each, value) for each, value in known["commands"].items()}
    return QuickGroup(name=name, help=known["help"], params=params, commands=below, invoke_without_command=True)


def _parameter(known: Mapping[str, Any]) -> Any:
    has = {**ABSENT, **known}
    made: Any
    if "opts" not in has:
        made = _Argument(
            param_decls=[has["name"]], type_descriptor=bool_flag_type_descriptor(), nargs=has["nargs"], help=has["help"]
        )
    else:
        made = _Option(
            param_decls=[has["name"], *has["opts"]], type_descriptor=bool_flag_type_descriptor(), is_flag=has["is_flag"],
            multiple=has["multiple"], nargs=has["nargs"], help=has["help"], default=False if has["is_flag"] else None,
        )  # fmt: skip
        made.secondary_opts = has["secondary_opts"]
    made.hidden = has["hidden"]
    made.choices = has.get("choices")
    return made
