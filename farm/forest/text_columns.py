"""Columns of few different texts."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from .numeric import Array, Bools, Floats


@dataclass(frozen=True)
class Text:
    """A column of few different texts: `values[codes[row]]`."""

    codes: Array
    values: tuple[str, ...]

    def map(self, of: Callable[[str], float]) -> Floats:
        """A number for each row, by its text."""
        return np.array([of(value) for value in self.values], "float64")[self.codes]

    def is_in(self, wanted: Container[str]) -> Bools:
        return np.array([value in wanted for value in self.values], bool)[self.codes]

    def position(self, among: Sequence[str]) -> Array:
        """The position of each row's text among these, 0 where it is none of them."""
        return np.array([among.index(value) if value in among else 0 for value in self.values], "intp")[self.codes]

    def part(self, rows: slice) -> Text:
        return Text(self.codes[rows], self.values)

    @classmethod
    def joined(cls, columns: Sequence[Text], write: Callable[..., str]) -> Text:
        """One text for each row, which `write` makes of those in the columns."""
        if len(columns[0].codes) == 1:
            return single(write(*(column.values[column.codes[0]] for column in columns)))
        widths = tuple(max(1, len(column.values)) for column in columns)
        import pandas as pd

        codes, found = pd.factorize(np.ravel_multi_index(tuple(column.codes for column in columns), widths))
        parts = (
            [column.values[index] for index in picked.tolist()]
            for column, picked in zip(columns, np.unravel_index(found, widths), strict=True)
        )
        return cls(codes, tuple(write(*each) for each in zip(*parts, strict=True)))


_FIRST: Array = np.zeros(1, "intp")


def single(value: str) -> Text:
    """A column of one row."""
    return Text(_FIRST, (value,))


def constant(value: str, rows: int) -> Text:
    """A column with one value."""
    return Text(np.zeros(rows, "intp"), (value,))
