"""Every table of the command line at every width: nothing is cut, no number is folded, no word is taken apart."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

import farm.cli
from farm.cli.output import console
from farm.cli.tables import TABLES, Column, Table, unique_beginnings
from support.screens import WIDTHS, printed

for module in pkgutil.iter_modules(farm.cli.__path__):
    importlib.import_module(f"farm.cli.{module.name}")

NUMBERS = ("0.01234", "1,234,567", "0.98765–1.23456", None, "12 min 05 s", "0.1234 ± 12 %")
UUIDS = ("GPU-f168d49b-9bbd-4b2c-8a1d-0c2f7d9e1a55", "GPU-00112233-4455-6677-8899-aabbccddeeff", "cpu-here")
NAMES = (
    "GPU-f168d49b-9bbd-4b2c-8a1d-0c2f7d9e1a55",
    "cutlass3x(cluster=2x1x1,stages=auto,tile=128x256x64,schedule=pingpong)",
    "nvidia-a100-sxm4-80gb",
    "512x512x4096 f16:f16:f32 nt alpha=1 beta=0.5",
    None,
    "its process was killed by SIGKILL after 1,234.5 s on 2026-11-22",
)
WORDS = ("quarantined", "2026-11-22 21:59", "f16:f16:f32", None)
FIELDS = {
    "pairs": "predicted",
    "baseline": "A",
    "compared": "time",
    "side": "B",
    "first": "12",
    "second": "13",
    "recorded": "device time",
    "time": "settled",
    "other": "burst",
}


def rows_of(table: Table, count: int = 6) -> list[list[str | None]]:
    """Rows of which each column has the values of its kind, beginning with another one each."""
    kinds = [
        NUMBERS if column.number else UUIDS if column.short else NAMES if column.folds else WORDS
        for column in table.columns
    ]
    return [[kind[(row + place) % len(kind)] for place, kind in enumerate(kinds)] for row in range(count)]


def on_screen(table: Table, width: int | None) -> list[str]:
    return printed(lambda: table.print(rows_of(table), title="a title", names=FIELDS), width)


def heading(column: Column) -> str:
    return column.heading.format(**FIELDS)


def left_out(table: Table, lines: list[str]) -> list[Column]:
    text = " ".join(" ".join(lines).split())
    note = re.search(r"Not shown here: (.*)\. A wider terminal, a pipe or --json shows all\.", text)
    if note is None:
        return []
    named, found = note[1], list[Column]()
    for column in table.columns:
        if named == heading(column) or named.startswith(f"{heading(column)}, "):
            named = named.removeprefix(heading(column)).removeprefix(", ")
            found.append(column)
    assert not named, f"the note names what is no column: {named}"
    return found


def pieces(text: str) -> list[str]:
    """The parts of a text that belong together: its words, their parts between marks, and numbers as 1,234.5 and 2026-11-22."""
    return [piece for piece in re.split(r"[\s;:/_=()|]+|(?<!\d)[,-]+|[,-]+(?!\d)", text) if piece]


@pytest.mark.parametrize("key", TABLES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.sampled(4)
def test_a_table_fits_the_terminal_and_shows_whole_numbers_and_words(key: str, width: int) -> None:
    table, lines = TABLES[key], on_screen(TABLES[key], width)
    assert [line for line in lines if cell_len(line) > width] == []
    missing = left_out(table, lines)
    for row in rows_of(table):
        for column, value in zip(table.columns, row, strict=True):
            if value is None or column in missing:
                continue
            if column.number:
                assert any(value in line for line in lines), f"{column.name}: {value}"
            for piece in [value[:12]] if column.short else pieces(value):
                assert any(piece in line for line in lines), f"{column.name}: {piece} of {value}"


class Rich:
    """A table that rich lays out: `print` of it, into a pipe too."""

    def __init__(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.monkeypatch = table, monkeypatch

    def print(self, rows: list[list[Any]], **more: Any) -> None:
        with self.monkeypatch.context() as patched:
            patched.setattr(type(console), "is_piped", False)
            self.table.print(rows, **more)


ODD = ("two\nlines", Text("styled", style="red"), "幅の広い字", "a\tb\x1b[31m", 1_234_567, 0.000012345, True, None, "")


@pytest.mark.parametrize("key", TABLES)
def test_a_pipe_gets_what_rich_would_lay_out(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES[key]
    odd = [[ODD[(row + place) % len(ODD)] for place, _ in enumerate(table.columns)] for row in range(len(ODD))]
    for rows in (rows_of(table), odd):
        ours, its = (
            printed(lambda t=t, r=rows: t.print(r, title="a title", names=FIELDS), None)  # type: ignore[misc]
            for t in (table, Rich(table, monkeypatch))
        )
        assert ours == its


def test_a_row_in_a_pipe_makes_no_object_of_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a row of a pipe was laid out by rich")

    monkeypatch.setattr("farm.cli.tables.Text.__init__", refused)
    table = TABLES["results"]
    assert len(printed(lambda: table.print([["a"] * len(table.columns)] * 100), None)) == 102


@pytest.mark.parametrize("key", TABLES)
def test_a_pipe_gets_every_column_whole_and_a_line_for_each_row(key: str) -> None:
    table, lines = TABLES[key], on_screen(TABLES[key], None)
    title, headings, _, *records = lines
    assert title == "a title"
    assert all(heading(column) in headings for column in table.columns)
    assert not left_out(table, lines)
    for line, row in zip(records, rows_of(table), strict=False):
        assert all(value in line for value in row if value is not None)
    assert records[len(rows_of(table)) :] == [""]


@pytest.mark.parametrize("key", TABLES)
@pytest.mark.sampled(4)
def test_columns_are_left_out_in_the_declared_order(key: str) -> None:
    table, before = TABLES[key], set[str]()
    for width in range(190, 40, -25):
        lines = on_screen(table, width)
        if not any(line.startswith("──") for line in lines):  # blocks from here on, with every column
            assert width <= 100
            return
        missing = {heading(column) for column in left_out(table, lines)}
        assert before <= missing, "a narrower terminal shows no more"
        kept = [column.priority for column in table.columns if heading(column) not in missing]
        gone = [column.priority for column in table.columns if heading(column) in missing]
        assert not gone or max(kept) <= min(gone)
        before = missing


def test_a_table_at_three_widths() -> None:
    table = Table(
        "an example",
        Column("device", short=unique_beginnings),
        Column("kernel", folds=True),
        Column("runtime", "ms", number=True),
        Column("power", "W", number=True, priority=1),
        Column("host", priority=2),
    )
    try:
        rows: list[list[Any]] = [
            ["GPU-f168d49b-9bbd-4b2c-8a1d-0c2f7d9e1a55", "tiled(tile=16)", 0.51234, 412.0, "gpu01.example.org"],
            ["GPU-00112233-4455-6677-8899-aabbccddeeff", "cublaslt", 12_345.6, None, Text("gpu02")],
        ]

        def at(width: int | None) -> list[str]:
            return printed(lambda: table.print(rows), width)

        assert at(None) == at(120) == [
            "device                                    kernel          runtime ms  power W  host",
            "────────────────────────────────────────────────────────────────────────────────────────────────",
            "GPU-f168d49b-9bbd-4b2c-8a1d-0c2f7d9e1a55  tiled(tile=16)      0.5123      412  gpu01.example.org",
            "GPU-00112233-4455-6677-8899-aabbccddeeff  cublaslt            12,346        –  gpu02",
        ]  # fmt: skip
        assert at(80) == [
            "device        kernel          runtime ms  power W  host",
            "────────────────────────────────────────────────────────────────────",
            "GPU-f168d49b  tiled(tile=16)      0.5123      412  gpu01.example.org",
            "GPU-00112233  cublaslt            12,346        –  gpu02",
        ]
        rows[0][1] = "cutlass(cluster=1,stages=4,tile=128x128x32)"
        assert at(60) == [
            "                                              runtime  power",
            "device        kernel                               ms      W",
            "────────────────────────────────────────────────────────────",
            "GPU-f168d49b  cutlass(cluster=1,stages=4,      0.5123    412",
            "              tile=128x128x32)",
            "GPU-00112233  cublaslt                         12,346      –",
            "Not shown here: host. A wider terminal, a pipe or --json",
            "shows all.",
        ]
        rows[0][1] = "tiled(tile=16)"
        assert at(30) == [
            "device:",
            "  GPU-f168d49b-9bbd-4b2c-8a1d-",
            "  0c2f7d9e1a55",
            "kernel: tiled(tile=16)",
            "runtime ms: 0.5123",
            "power W: 412",
            "host: gpu01.example.org",
            "",
            "device:",
            "  GPU-00112233-4455-6677-8899-",
            "  aabbccddeeff",
            "kernel: cublaslt",
            "runtime ms: 12,346",
            "power W: –",
            "host: gpu02",
        ]
    finally:
        del TABLES["an example"]


def test_a_table_without_rows_has_its_headings_alone() -> None:
    for table, width in itertools.product(TABLES.values(), (*WIDTHS, None)):
        lines = printed(lambda t=table, w=width: t.print([], names=FIELDS), width)  # type: ignore[misc]
        assert all(cell_len(line) <= (width or 10_000) for line in lines)


def test_markup_and_control_characters_of_a_value_are_printed_as_text() -> None:
    table = TABLES["tokens"]
    (row,) = printed(lambda: table.print([["[bold]x[/]", "a\x1b[31mb", "", None, None, None, None, "é"]]), None)[2:]
    assert "[bold]x[/]" in row
    assert "\x1b" not in row


def test_every_table_of_the_command_line_is_declared() -> None:
    folder = Path(farm.cli.__file__).parent
    others = [file.name for file in folder.glob("*.py") if re.search(r"rich(\.| import )table", file.read_text())]
    assert others == ["tables.py"]
