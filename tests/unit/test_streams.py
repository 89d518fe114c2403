"""Whatever standard output is, no command ends with a traceback: closed, full, a reader that leaves, or an old encoding."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from farm.cli.streams import REPLACE, in_ascii
from support.commands import NOWHERE

LINES = 4_000
PROGRAM = f"""
import sys, typer
from farm.cli import app as farm_app, main
from farm.cli.files import write_export
from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.errors import NotFound
from farm.exporters.exporter import Export, StreamedFile

rows = [("é – × ±5 %", number) for number in range({LINES})]
table = Table("a long one", Column("name"), Column("number", number=True))

@farm_app.app.command()
def long(as_json: JsonOption = False, fail: bool = False) -> None:
    emit_json(rows) if as_json else table.print(rows)
    if fail:
        raise NotFound(detail="nothing there")

@farm_app.app.command()
def much() -> None:
    def lines(file, done):
        for _ in range(20_000):
            file.write(b"a row" * 1000)
        raise NotFound(detail="it went on without a reader")

    write_export(Export([StreamedFile("rows.csv", lines, "rows")]), None, folder=False, force=False)

@farm_app.app.command()
def short(fail: bool = False) -> None:
    table.print(rows[:1])
    if fail:
        raise NotFound(detail="nothing there")

main()
"""

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs a line of bash in which `$FARM` is `farm` with two more commands, one of which prints much."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FARM_", "PYTHON", "LC_"))}
        here = {"FARM_HOME": str(tmp_path / ".farm"), "FARM_DATABASE_URL": NOWHERE, "LANG": "C.UTF-8"}
        environment = {**kept, **here, "FARM": f"{sys.executable} {tmp_path / 'program.py'}", **more}
        command = ["bash", "-o", "pipefail", "-c", line]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, encoding="latin-1", timeout=300, check=False
        )

    return run


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_reader_that_leaves_does_not_change_the_exit_code(shell: Shell, options: str) -> None:
    done = shell(f"$FARM long {options} | head -1; $FARM long --fail {options} | head -1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "4"
    assert done.stderr.strip() == "error: nothing there"
    done = shell(f"$FARM long {options} | head -1")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_export_ends_when_its_reader_leaves(shell: Shell) -> None:
    done = shell("$FARM much | head -c 5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a row", "")


def test_a_closed_standard_output_is_none(shell: Shell) -> None:
    done = shell("$FARM short >&-; $FARM long --json >&- 2>&-; $FARM short <&- >&- && $FARM --help >&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["short", "long", "long --json", "--help", "--version"])
def test_a_full_disk_is_one_message(shell: Shell, command: str) -> None:
    done = shell(f"$FARM {command} > /dev/full")
    assert done.returncode == 2
    (message,) = " ".join(done.stderr.split()).split("error: ")[1:]
    assert message.startswith("Standard output cannot be written: No space left on device.")
    assert "Traceback" not in done.stderr


def test_a_full_standard_error_changes_nothing(shell: Shell) -> None:
    assert shell("$FARM short --fail 2> /dev/full").returncode == 4


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "e - x +-5 %"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "e - x +-5 %"),
        ({"PYTHONIOENCODING": "latin-1"}, "é - × ±5 %"),
    ],
    ids=["ascii", "C", "latin-1"],
)
def test_an_encoding_without_a_character_gets_another_one(
    shell: Shell, environment: dict[str, str], shown: str
) -> None:
    done = shell("$FARM short && $FARM --help", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    heading, rule, row = done.stdout.splitlines()[:3]
    assert row == f"{shown}       0"
    assert set(rule) == {"-"}
    assert len(heading.rstrip()) == len(row)


@pytest.mark.parametrize("character", "–—…×±°─│┌╭█µéあ\udcff")
def test_every_character_has_an_ascii_form(character: str) -> None:
    assert in_ascii(character).isascii()
    assert f"a{character}".encode("ascii", REPLACE).startswith(b"a")


def test_commands_without_a_descriptor_still_flush() -> None:
    from farm.cli.streams import flushed

    with patch("sys.stdout", io.StringIO()) as out, flushed():
        out.write("x")
    assert out.getvalue() == "x"
