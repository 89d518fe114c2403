"""Write the file that shell completion reads (`farm.cli.parameters`): `python -m farm.cli.write_parameters`."""

from __future__ import annotations

import json
from typing import Any

from typer import core

from farm.atomic_write import write_text
from farm.cli.commands import COMMANDS, loaded
from farm.cli.parameters import ABSENT, FILE


def described(command: Any) -> dict[str, Any]:
    """The entry of a command in the file, with the commands of a group."""
    summary = " ".join((command.help or "").split("\n\n")[0].split())
    says: dict[str, Any] = {"help": summary, "parameters": [_described(each) for each in command.params]}
    if hasattr(command, "commands"):
        says["commands"] = {name: described(each) for name, each in command.commands.items()}
    return says


def _described(parameter: Any) -> dict[str, Any]:
    descriptor = parameter.type_descriptor
    if descriptor.is_file:
        raise NotImplementedError(f"completion does not know files that are opened: {parameter.name}")
    says: dict[str, Any] = {"name": parameter.name}
    if isinstance(parameter, core.TyperOption):
        says["opts"] = parameter.opts
    says |= {
        key: getattr(parameter, key) for key, absent in ABSENT.items() if getattr(parameter, key, absent) != absent
    }
    if descriptor.is_choice:
        says["choices"] = [getattr(choice, "value", choice) for choice in descriptor.choices]
    return says


def text() -> str:
    """The file: a line for each parameter."""
    return _lines({entry.name: described(loaded(entry)) for entry in COMMANDS}) + "\n"


def _lines(value: Any, indent: str = "") -> str:
    if isinstance(value, dict) and "name" not in value and value:
        inside = ",\n".join(f"{indent} {json.dumps(key)}: {_lines(each, indent + ' ')}" for key, each in value.items())
        return f"{{\n{inside}\n{indent}}}"
    if isinstance(value, list) and value:
        inside = ",\n".join(f"{indent} {_lines(each, indent + ' ')}" for each in value)
        return f"[\n{inside}\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    write_text(FILE, text())
