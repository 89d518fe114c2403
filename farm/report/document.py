"""A report as data: sections of sentences, charts and tables (pure). `page` makes HTML of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from farm.charts.chart import Figure, number

LONG_TEXT = 24
"""A column is wide if a cell has more letters."""


_NUMBER = re.compile(r"[-+−]?\d[\d\s.,–()e+-]*")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, what the column is sorted by, and the text where the pointer rests."""

    text: str
    by: float | str | None = None
    title: str = ""

    @classmethod
    def of(cls, value: Any) -> Cell:
        """Numbers have four significant digits, and None is a dash."""
        if isinstance(value, Cell):
            return value
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return cls("–")
        if isinstance(value, bool):
            return cls("yes" if value else "no")
        if isinstance(value, int):
            return cls(f"{value:,}", value)
        if isinstance(value, float):
            return cls(number(value, 4), value)
        if isinstance(value, datetime):
            return cls(f"{value:%Y-%m-%d %H:%M} UTC", value.timestamp())
        return cls(str(value))


@dataclass(frozen=True, kw_only=True)
class Table:
    caption: str
    columns: Sequence[str]
    # [rows][columns], values that `Cell.of` takes.
    rows: Sequence[Sequence[Any]]

    @cached_property
    def cells(self) -> list[list[Cell]]:
        return [[Cell.of(value) for value in row] for row in self.rows]

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Columns of numbers, intervals and dashes."""
        texts = {column: {row[at].text for row in self.cells} - {"–"} for at, column in enumerate(self.columns)}
        return frozenset(column for column, own in texts.items() if own and all(map(_NUMBER.fullmatch, own)))

    @property
    def wide(self) -> frozenset[str]:
        """Columns of long texts."""
        return frozenset(
            column
            for at, column in enumerate(self.columns)
            if column not in self.numbers and any(len(row[at].text) > LONG_TEXT for row in self.cells)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Text in the format of its source, such as a file or commands."""

    caption: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    title: str
    # How to read it.
    about: str = ""
    sentences: Sequence[str] = ()
    charts: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    listings: Sequence[Listing] = ()
    # Why there is nothing to show.
    why_empty: str | None = None
    # Its part of `--json`.
    data: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    campaign: str
    digest: str
    description: str
    made_at: datetime
    # Important facts: that rows are recorded, or that the campaign is not finished.
    warnings: Sequence[str]
    sections: Sequence[Section]
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def charts(self) -> list[Figure]:
        return [chart for section in self.sections for chart in section.charts]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.head,
            "made_at": self.made_at,
            "warnings": list(self.warnings),
            **{section.name: section.data for section in self.sections if section.data is not None},
            "nothing": {one.name: one.why_empty for one in self.sections if one.why_empty is not None},
            "pictures": [{"name": one.name, "title": one.title, "message": one.message} for one in self.charts],
        }
