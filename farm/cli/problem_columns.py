"""The columns of a table that few problems need: `ADDED_COLUMNS`. A table prints those in which a row is not as usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.cli.tables import Column
from farm.formatting import added_text
from farm.gemm import ADDED_COLUMNS

ADDED = tuple(
    Column(name, number=isinstance(usual, int), folds=isinstance(usual, str), priority=1)
    for name, usual in ADDED_COLUMNS.items()
)


def added_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a row in these columns."""
    return tuple(added_text(name, row[name]) for name in ADDED_COLUMNS)


def usual_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which every row is as usual. Tables leave them out."""
    return [name for name, usual in ADDED_COLUMNS.items() if all(row[name] == usual for row in rows)]
