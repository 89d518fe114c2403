"""The groups of rows of products that have a matrix B for each group, from texts such as `16*8,3,0`: how many tiles cover them.

A table has many rows with the same text, so each text is read once, and each different size of a text is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .numeric import Array, Bools, Floats

MAX_GROUPS = 4096
"""As in problems of the farm."""

_KEPT = 1024
"""Texts that are kept as numbers, which take at most 64 MiB."""


@dataclass(frozen=True)
class GroupSizes:
    """The groups of each row. A row without groups has a text without sizes."""

    # The text of each row, by its number.
    codes: Array
    texts: int
    # Of all texts: a different number of rows, how many groups have that many, and the number of the text.
    sizes: Floats
    counts: Floats
    owners: Array

    @classmethod
    def of(
        cls, codes: Array, texts: Sequence[str], none: str, refuse: Callable[[Bools, str], None]
    ) -> GroupSizes | None:
        """The groups of such a column; None where no row has any.

        Args:
            texts: different texts, and `codes` which of them each row has.
            none: the text of rows without groups.
            refuse: raises an error where a row is bad [rows], saying what it must be.
        """
        if all(text == none for text in texts):
            return None
        read = [_NOTHING if text == none else _sizes(text) for text in texts]
        refuse(np.array([each is None for each in read])[codes], "numbers of rows, as in 16*8,3,0")
        known = [each for each in read if each is not None]
        sizes, counts = np.concatenate(known, axis=1)
        found = cls(
            codes, len(texts), sizes, counts, np.repeat(np.arange(len(known)), [len(each[0]) for each in known])
        )
        refuse(found.number > MAX_GROUPS, f"at most {MAX_GROUPS:,} groups")
        return found

    @property
    def grouped(self) -> Bools:
        """Which rows have groups."""
        found: Bools = self.number > 0
        return found

    @property
    def number(self) -> Floats:
        """The number of groups of each row; 0 where it has none."""
        return self._sum(self.counts)

    @property
    def active(self) -> Floats:
        """The number of groups with rows."""
        return self._sum(self.counts * (self.sizes > 0))

    @property
    def rows(self) -> Floats:
        """The rows of all groups."""
        return self._sum(self.counts * self.sizes)

    @property
    def largest(self) -> Floats:
        """The rows of the largest group."""
        found = np.zeros(self.texts)
        np.maximum.at(found, self.owners, self.sizes)
        return found[self.codes]

    def tiles(self, edges: Floats) -> Floats:
        """How many tiles of so many rows cover the groups of each row, [..., rows] as broadcast; NaN for an edge that is not known. A
        tile has rows of one group."""
        found = np.full(np.broadcast_shapes(edges.shape, self.codes.shape), np.nan)
        for edge in np.unique(edges[np.isfinite(edges)]).tolist():
            np.copyto(found, self._sum(self.counts * np.ceil(self.sizes / edge)), where=edges == edge)
        return found

    def part(self, rows: slice) -> GroupSizes:
        """Of these rows, with their texts alone."""
        which, codes = np.unique(self.codes[rows], return_inverse=True)
        own = np.isin(self.owners, which)
        owners = np.searchsorted(which, self.owners[own])
        return GroupSizes(codes.reshape(-1), len(which), self.sizes[own], self.counts[own], owners)

    def _sum(self, values: Floats) -> Floats:
        """The sum over the sizes of each row's text."""
        sums: Floats = np.bincount(self.owners, values, minlength=self.texts).astype("float64", copy=False)
        return sums[self.codes]


_NOTHING = np.empty((2, 0))


@lru_cache(_KEPT)
def _sizes(text: str) -> Floats | None:
    """The different sizes in a text, and how many groups have each: [2, sizes]. None for a text that is not of groups."""
    counts: dict[int, int] = {}
    for run in text.split(","):
        size, times, count = run.strip().partition("*")
        if not _is_number(size) or (times and not _is_number(count)):
            return None
        counts[int(size)] = counts.get(int(size), 0) + int(count or 1)
    found = np.array([[*counts], [*counts.values()]], "float64")
    found.flags.writeable = False
    return found


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 10 and text.isascii() and text.isdigit()
