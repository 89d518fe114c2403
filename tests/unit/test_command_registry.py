"""The commands of `farm` are declared in one place, and imported when they run."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from farm.cli.commands import COMMANDS, Entry, every_command, loaded
from support.command_tree import imported, top_level
from support.commands import NOWHERE, farm_here
from support.imports import farm_alone

SLOW_TO_IMPORT = frozenset(
    {"alembic", "celery", "fastapi", "httpx", "kombu", "matplotlib", "mlflow", "numpy", "pandas", "psycopg", "pyarrow",
     "pydantic", "redis", "scipy", "sklearn", "sqlalchemy", "yaml"}
)  # fmt: skip


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_summary_of_a_command_is_the_first_paragraph_of_its_help(entry: Entry) -> None:
    assert " ".join(loaded(entry).help.split("\n\n")[0].split()) == entry.summary


def test_a_command_is_declared_once_and_the_commands_of_a_panel_stand_together() -> None:
    assert [name for name, count in Counter(entry.name for entry in COMMANDS).items() if count > 1] == []
    panels = [entry.panel for entry in COMMANDS]
    assert [*dict.fromkeys(panels)] == [panel for i, panel in enumerate(panels) if i == 0 or panels[i - 1] != panel]


def test_the_help_of_the_top_level_has_every_command_in_its_panel(tmp_path: Path) -> None:
    shown = farm_here(tmp_path, NOWHERE)("--help", COLUMNS="200").stdout
    assert "<bool>" not in shown, "a flag takes no value"
    panel, seen = "", {}
    for line in shown.splitlines():
        if title := re.match(r"╭─ (.+?) ─", line):
            panel = title[1]
        elif command := re.match(r"│ ([a-z]+) +(\S.*?) *│$", line):
            seen[command[1]] = (panel, command[2])
    assert seen == {entry.name: (entry.panel, entry.summary) for entry in COMMANDS}


def test_the_stand_in_of_a_command_parses_as_the_command() -> None:
    context = top_level().commands["results"].make_context("results", ["--limit", "7"])
    assert context.params["limit"] == 7
    assert context.command.name == "results"


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("no-such-command",)], ids=" ".join)
def test_the_top_level_imports_no_command_and_nothing_that_is_slow_to_import(arguments: tuple[str, ...]) -> None:
    ran = farm_alone(*arguments)
    assert ran.packages & SLOW_TO_IMPORT == set()
    modules = {f"farm.cli.{entry.target.partition(':')[0]}" for entry in COMMANDS}
    assert ran.modules & modules == set()


# --- examples ----------------------------------------------------------------------------------------

EVERY_COMMAND = [((), top_level()), *every_command()]


def parsed(words: list[str]) -> Any:
    """What the command line makes of those words: the context of the command that they name. Raises a usage error."""
    command, path = top_level(), ["farm"]
    while words and hasattr(command, "commands") and words[0] in command.commands:
        path.append(words.pop(0))
        command = imported(command.commands[path[-1]])
    return command.make_context(" ".join(path), words)


@pytest.mark.parametrize(("words", "command"), EVERY_COMMAND, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_every_command_has_examples_that_it_takes(words: tuple[str, ...], command: Any) -> None:
    assert command.examples, f"add a section Examples: to the docstring of farm {' '.join(words)}"
    for example in command.examples:
        assert example.startswith(" ".join(["farm", *words]))
        assert len(example) <= 78, "longer than a line of a terminal of 80 columns"
        assert parsed(shlex.split(example)[1:]).command is not top_level()


@pytest.mark.parametrize(
    "wrong", ["farm results --no-such-option", "farm results --limit many", "farm pause", "farm models promote one"]
)
def test_an_example_that_its_command_does_not_take_is_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|not a valid|valid integer|missing") as caught:
        parsed(shlex.split(wrong)[1:])
    assert type(caught.value).__name__ in ("NoSuchOption", "BadParameter", "MissingParameter")


def test_a_paragraph_of_help_is_as_wide_as_the_terminal(tmp_path: Path) -> None:
    shown = [line.strip() for line in farm_here(tmp_path, NOWHERE)("serve", "--help", COLUMNS="80").stdout.splitlines()]
    first = next(at for at, line in enumerate(shown) if line.startswith("By default"))
    paragraph = shown[first : shown.index("", first)]
    assert len(paragraph) > 3
    assert all(len(line) > 60 for line in paragraph[:-1])


def test_help_ends_with_the_examples_word_for_word_at_80_columns(tmp_path: Path) -> None:
    shown = farm_here(tmp_path, NOWHERE)("predict", "--help", COLUMNS="80").stdout
    _, _, end = shown.partition("Examples")
    assert [line.strip() for line in end.splitlines() if line.strip()] == loaded(
        next(entry for entry in COMMANDS if entry.name == "predict")
    ).examples
    assert "Examples:" not in shown
