"""Tables: on a wide terminal, on a narrow one, and in a pipe.

Every table of the command line is a `Table` that is declared once, with its columns in the order of printing:

- A pipe or a file gets every column at its full width (`farm.cli.piped`).
- On a terminal, text folds between words; numbers never fold. Columns that have a short form take it. Then columns are left
  out, the highest `priority` first, and a line below the table names them.
- Where even the columns of priority 0 do not fit, and where any does not fit on a terminal of less than `NARROW` columns,
  each record is printed as a block of `name: value` lines, with all its values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.text import Text

from farm.cli.hints import pasteable
from farm.cli.output import console
from farm.cli.piped import PipedColumn, table_lines
from farm.cli.streams import printable

__all__ = ["ESSENTIAL", "TABLES", "Column", "Table", "unique_beginnings"]

ESSENTIAL = 0
"""The priority of a column that is never left out."""

NARROW = 60
"""The width below which a table that does not fit becomes blocks, because too few columns would remain."""

FOLDED_WIDTH = 20
"""Characters below which a column of text is not folded further."""

_GAP = 2
"""Spaces between two columns."""

_INDENT = "  "

# SIMPLE_HEAD, which rich would replace by a grid on a terminal that takes ASCII only. `farm.cli.streams` replaces the line.
_HEADED = box.Box("    \n    \n ── \n    \n    \n    \n    \n    \n", ascii=True)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        name: The heading, without its unit. May have `{fields}`, which `Table.print` fills in.
        unit: The unit of its numbers; printed after the name.
        number: Whether it holds numbers, which are aligned to the right and never folded.
        folds: Whether its text may be folded between words, and inside long words after punctuation.
        priority: `ESSENTIAL`, or the rank at which it is left out: the highest first; of equal ones the rightmost first.
        short: Makes short forms of all its values, where the table is too wide otherwise.
    """

    name: str
    unit: str = ""
    number: bool = False
    folds: bool = False
    priority: int = ESSENTIAL
    short: Callable[[Sequence[str]], Sequence[str]] | None = None

    @property
    def heading(self) -> str:
        return f"{self.name} {self.unit}" if self.unit else self.name


TABLES: dict[str, Table] = {}
"""Every table of the command line, by its key. Tests print each at every width."""


class Table:
    """A table with its columns.

    Args:
        key: What names it among all tables.
        columns: In the order of printing. One at least is essential.
        facts: Whether it has lines of a name and a value, rather than records. As blocks, these are `name: value`.
        sparse: Whether columns without any value are left out, also in a pipe.
    """

    def __init__(self, key: str, *columns: Column, facts: bool = False, sparse: bool = False) -> None:
        if not any(column.priority == ESSENTIAL for column in columns):
            raise ValueError(f"the table {key} has no essential column")
        if key in TABLES:
            raise ValueError(f"there are two tables {key}")
        self.key, self.columns, self.facts, self.sparse = key, columns, facts, sparse
        TABLES[key] = self

    def print(
        self,
        rows: Iterable[Sequence[Any]],
        *,
        title: str | None = None,
        names: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Prints the table to standard output.

        Args:
            rows: A value for each declared column. None is printed as a dash; a rich `Text` keeps its style.
            title: A line above it.
            names: What the `{fields}` of headings stand for.
            without: Names of columns that this table does not have this time.
        """
        every = list(rows)
        if any(len(row) != len(self.columns) for row in every):
            raise ValueError(f"the table {self.key} has {len(self.columns)} columns")
        chosen = [
            (place, column, printable(column.heading.format(**names or {})))
            for place, column in enumerate(self.columns)
            if column.name not in without and not (self.sparse and all(row[place] is None for row in every))
        ]
        width = console.width
        if console.is_piped:
            self._print_piped([PipedColumn(heading, [_text(row[place]) for row in every], column.number)
                               for place, column, heading in chosen], title)  # fmt: skip
            return
        filled = [_Filled(column, heading, [_cell(row[place]) for row in every]) for place, column, heading in chosen]
        shown, widths = _fitted(filled, width)
        if title is not None:
            _print_title(title, width)
        if widths is None:
            (_print_facts if self.facts else _print_blocks)(filled, width)
        else:
            _print_columns(shown, widths)
            left_out = [column.heading for column in filled if column.declared not in [c.declared for c in shown]]
            if left_out:
                names_of = ", ".join(" ".join(heading.split()) for heading in left_out)
                console.print(
                    f"Not shown here: {names_of}. A wider terminal, a pipe or --json shows all.",
                    style="dim", markup=False,
                )  # fmt: skip
        if title is not None:
            console.print()

    def _print_piped(self, columns: Sequence[PipedColumn], title: str | None) -> None:
        if title is not None:
            console.file.write(printable(title) + "\n")
        console.file.writelines(table_lines(columns, _GAP))
        if title is not None:
            console.file.write("\n")


@dataclass(frozen=True, slots=True)
class _Filled:
    """A column with its heading and its cells."""

    declared: Column
    heading: str
    cells: list[Text]

    @property
    def natural(self) -> int:
        """The width at which no cell folds. Headings may fold between words."""
        return max(_longest_word(self.heading), *(_widest_line(cell.plain) for cell in self.cells), 1)

    @property
    def narrowest(self) -> int:
        """The smallest width to which it may be folded."""
        if not self.declared.folds:
            return self.natural
        unbroken = max((_longest_piece(cell.plain) for cell in self.cells), default=1)
        return min(self.natural, max(unbroken, _longest_word(self.heading), FOLDED_WIDTH))

    def shortened(self) -> _Filled:
        if self.declared.short is None:
            return self
        short = self.declared.short([cell.plain for cell in self.cells])
        return _Filled(
            self.declared,
            self.heading,
            [Text(text, style=cell.style) for text, cell in zip(short, self.cells, strict=True)],
        )


def _fitted(columns: Sequence[_Filled], width: int) -> tuple[list[_Filled], list[int] | None]:
    """The columns that fit and their widths. The widths are None if the table becomes blocks."""
    shown = list(columns)
    if _total([column.narrowest for column in shown]) > width:
        shown = [column.shortened() for column in shown]
    while _total([column.narrowest for column in shown]) > width:
        last = max(range(len(shown)), key=lambda place: (shown[place].declared.priority, place))
        if width < NARROW or shown[last].declared.priority == ESSENTIAL:
            return shown, None
        del shown[last]
    widths, natural = [column.narrowest for column in shown], [column.natural for column in shown]
    room = width - _total(widths)
    while room > 0 and widths != natural:  # what is folded most gets more first
        place = max(range(len(shown)), key=lambda n: natural[n] / widths[n] if widths[n] < natural[n] else 0)
        more = min(natural[place] - widths[place], max(1, room // 8))
        widths[place] += more
        room -= more
    # A heading that folds takes room that is left over.
    for place, column in enumerate(shown):
        more = min(room, max(0, cell_len(column.heading) - widths[place])) if "\n" not in column.heading else 0
        widths[place] += more
        room -= more
    return shown, widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _print_columns(columns: Sequence[_Filled], widths: Sequence[int]) -> None:
    made = rich_table.Table(box=_HEADED, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    for column, width in zip(columns, widths, strict=True):
        heading = Text("\n").join(Text(line) for line in _folded(column.heading, width))
        right = column.declared.number
        made.add_column(heading, justify="right" if right else "left", width=width, no_wrap=True, overflow="crop")
    for cells in zip(*(column.cells for column in columns), strict=True):
        made.add_row(*(_folded_text(cell, width) for cell, width in zip(cells, widths, strict=True)))
    console.print(made, crop=False)


def _print_blocks(columns: Sequence[_Filled], width: int) -> None:
    for number in range(len(columns[0].cells)):
        if number:
            console.print()
        for column in columns:
            _print_pair(" ".join(column.heading.split()), column.cells[number], width, folds=column.declared.folds)


def _print_facts(columns: Sequence[_Filled], width: int) -> None:
    for name, value in zip(columns[0].cells, columns[1].cells, strict=True):
        if value.plain:
            _print_pair(name.plain.strip(), value, width, folds=True)
        else:
            _print_lines([name], width)


def _print_pair(name: str, value: Text, width: int, *, folds: bool) -> None:
    flat = Text(" ").join(value.split("\n")) if "\n" in value.plain else value
    line = Text.assemble(f"{name}: ", flat) if name else flat
    if cell_len(line.plain) <= width or (folds and _longest_piece(flat.plain) <= width - len(_INDENT)):
        _print_lines([line], width)
    else:
        _print_lines([Text(f"{name}:")] if name else [], width)
        _print_lines([flat], width, indent=_INDENT)


def _print_lines(texts: Iterable[Text], width: int, *, indent: str = "") -> None:
    """Prints each text, folded; lines after its first are indented."""
    for text in texts:
        first, *rest = _spans(text.plain, width - len(indent), width - len(_INDENT)) or [(0, 0)]
        console.print_laid_out(Text(indent) + text[first[0] : first[1]], crop=False, overflow="ignore", no_wrap=True)
        for start, end in rest:
            console.print_laid_out(Text(_INDENT) + text[start:end], crop=False, overflow="ignore", no_wrap=True)


def _print_title(title: str, width: int) -> None:
    _print_lines([Text(printable(title), style="bold")], width)


# --- cells -------------------------------------------------------------------------------------------

_NOTHING = "–"


def _cell(value: Any) -> Text:
    return Text(_text(value), style=value.style if isinstance(value, Text) else "")


def _text(value: Any) -> str:
    if value is None:
        return printable(_NOTHING)
    return printable(pasteable(value.plain if isinstance(value, Text) else _plain(value)))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    # A newline too: a name that holds one would print a row of its own.
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def unique_beginnings(names: Sequence[str], *, shortest: int = 12) -> list[str]:
    """A unique beginning of each name, as `GPU-f168d49b` of a UUID. Commands accept it."""
    length = shortest
    while len({name[:length] for name in names}) < len(set(names)):
        length += 1
    return [name[:length] for name in names]


# --- folding -----------------------------------------------------------------------------------------

_WORD = re.compile(r"\S+")
_BREAK_AFTER = re.compile(r"[-,;:/_=)|]")


def _pieces(text: str) -> list[tuple[int, int]]:
    """The start and end of each part of a line that must not break. Long words may break after punctuation."""
    found = []
    for word in _WORD.finditer(text):
        start = word.start()
        for mark in _BREAK_AFTER.finditer(text, word.start() + 1, word.end() - 1):
            before, after = text[mark.start() - 1], text[mark.end()]
            if (before.isdigit() or before in "eE") and after.isdigit():  # a date, 1,234 or 1e-05
                continue
            if _BREAK_AFTER.match(after):
                continue
            found.append((start, mark.end()))
            start = mark.end()
        found.append((start, word.end()))
    if found:
        found[0] = (0, found[0][1])  # an indented name stays so
    return found


def _spans(text: str, width: int, rest: int | None = None) -> list[tuple[int, int]]:
    """The start and end of each line of a folded text: the first line has `width`, the others `rest`."""
    lines = list[tuple[int, int]]()
    begin: int | None = None
    end = 0
    for start, stop in _pieces(text):
        room = width if not lines or rest is None else rest
        if begin is not None and cell_len(text[begin:stop]) <= room:
            end = stop
            continue
        if begin is not None:
            lines.append((begin, end))
            room = width if rest is None else rest
        begin, end = start, stop
        while cell_len(text[begin:end]) > room:  # longer than a line: there is no better place
            cut = begin + 1
            while cut < end and cell_len(text[begin : cut + 1]) <= room:
                cut += 1
            lines.append((begin, cut))
            begin = cut
            room = width if rest is None else rest
    if begin is not None and begin < end:
        lines.append((begin, end))
    return lines


def _folded(text: str, width: int) -> list[str]:
    return [line[a:b] for line in text.split("\n") for a, b in _spans(line, width) or [(0, 0)]]


def _folded_text(text: Text, width: int) -> Text:
    if _widest_line(text.plain) <= width:
        return text
    lines = [line[a:b] for line in text.split("\n") for a, b in _spans(line.plain, width) or [(0, 0)]]
    return Text("\n").join(lines)


def _widest_line(text: str) -> int:
    return max((cell_len(line) for line in text.split("\n")), default=0)


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _longest_piece(text: str) -> int:
    return max((cell_len(line[a:b]) for line in text.split("\n") for a, b in _pieces(line)), default=0)
