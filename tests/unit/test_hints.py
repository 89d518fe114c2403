"""Commands that are printed can be pasted: they reach the farm that printed them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from farm.cli import hints, output
from farm.cli.app import app
from farm.cli.tables import Column, Table
from farm.settings import environment
from support.screens import printed


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process in one folder whose farm is in another, with a space and brackets in its path."""
    here, there = tmp_path / "here", tmp_path / "a farm [b]"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with environment(FARM_HOME=str(there / ".farm"), FARM_DEVICES="recorded:x.parquet"):
        yield there / ".farm"


def test_a_command_carries_the_home_that_it_is_about(elsewhere: Path) -> None:
    first, *rest = shlex.split(hints.command("status small"))
    assert first == f"FARM_HOME={elsewhere}"
    assert rest[-2:] == ["status", "small"]
    assert "FARM_DEVICES" not in hints.command("status")
    assert "FARM_DEVICES=recorded:x.parquet" in shlex.split(hints.command("up"))


def test_a_command_of_the_home_that_it_would_find_anyway_carries_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".farm").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with environment(FARM_HOME=str(tmp_path / ".farm"), FARM_DEVICES=None):
        assert "FARM_" not in hints.command("status") + hints.pasteable("`farm status` lists them")


def test_every_mention_of_a_command_in_a_message_carries_the_home(elsewhere: Path) -> None:
    said = hints.pasteable(
        "`farm status` lists them, and farm up starts the farm; ./farm run, gemm-farm status and farm x not."
    )
    home = f"FARM_HOME={shlex.quote(str(elsewhere))} "
    assert said.count(home) == 2
    assert f"`{home}farm status`" in said
    assert f"and {home}farm up" in said


@pytest.mark.parametrize("name", ["console", "remarks"])
def test_whatever_a_command_says_goes_through_it(
    elsewhere: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printer: Console = getattr(output, name)
    monkeypatch.setattr(printer, "_width", 1000)
    printer.print("[bold]farm doctor[/] looks for what is wrong.")
    out, err = capsys.readouterr()
    assert f"FARM_HOME={shlex.quote(str(elsewhere))} farm doctor looks" in out + err


@pytest.mark.parametrize(
    "message",
    [
        Text("see farm status", style="red"),
        Padding("[red]see[/] farm status", (0, 0, 0, 4)),
        Padding(Text("see farm status"), 2),
    ],
    ids=["text", "padded markup", "padded text"],
)
def test_text_with_a_style_and_padded_text_go_through_it(elsewhere: Path, message: object) -> None:
    home = f"FARM_HOME={shlex.quote(str(elsewhere))} "
    assert f"see {home}farm status" in "\n".join(printed(lambda: output.console.print(message), None))


CELLS = Table("cells with commands", Column("what", folds=True), Column("fix", folds=True))


@pytest.mark.parametrize("width", [None, 2000, 300, 30], ids=["a pipe", "one line", "folded", "blocks"])
def test_the_cells_of_a_table_go_through_it_once(elsewhere: Path, width: int | None) -> None:
    filler = "it is a long sentence " * 20
    rows = [(filler, "farm up starts it"), (Text("farm doctor looks", style="red"), hints.command("status"))]
    shown = " ".join(" ".join(printed(lambda: CELLS.print(rows), width)).split())
    home = f"FARM_HOME={shlex.quote(str(elsewhere))} "
    assert shown.count(home) == 3 or width in (300, 30)  # the path is folded there
    assert len(re.findall("FARM_HOME", shown)) == 3


@pytest.mark.parametrize("program", ["farm", "python -m farm"])
def test_a_command_that_carries_its_home_already_stays_as_it_is(
    elsewhere: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_program", lambda: program)
    with environment(FARM_HOME=str(elsewhere)):
        for words in ("status small", "up"):
            line = hints.command(words)
            assert hints.pasteable(line) == line
            assert hints.pasteable_text(Text(line)).plain == line


def test_every_command_of_the_program_is_known_to_the_hints() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if not hints._MENTION.search(f"see farm {name}")] == []


def test_no_module_of_the_command_line_prints_past_it() -> None:
    """A console of its own, or print, would leave the home out."""
    folder = Path(hints.__file__).parent
    own = {p.name for p in folder.glob("*.py") if re.search(r"\bConsole\((?!stderr=True\)\.status)", p.read_text())}
    assert own <= {"hints.py"}
