"""The groups of a grouped product: rows of A that are multiplied with a matrix B of their own, as tokens with their expert's weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from farm.errors import BadGroups

MAX_GROUPS = 4096
"""Mixtures of experts have up to 2,048 experts in a layer (Switch-C)."""

MAX_SHOWN = 24
"""Tables show longer texts of groups by their numbers."""

NONE = "none"
"""What the column has for a product without groups."""

_RUN = re.compile(r"(\d{1,10})(?:\*(\d{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of each group, in the order in which they lie in A. A group may be empty.

    As text, sizes are separated by commas, and `16*8` are 8 groups of 16 rows.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.sizes) <= MAX_GROUPS:
            raise BadGroups(
                value=shortened(str(self)), why=f"there are 1 to {MAX_GROUPS:,} groups, not {len(self.sizes):,}"
            )

    @property
    def active(self) -> int:
        """How many groups have rows: B of the others is not read."""
        return sum(size > 0 for size in self.sizes)

    @property
    def rows(self) -> int:
        """The rows of all groups."""
        return sum(self.sizes)

    @property
    def largest(self) -> int:
        """The rows of the largest group."""
        return max(self.sizes)

    def with_rows(self) -> Iterator[tuple[int, slice]]:
        """The number and the rows of each group that is not empty."""
        end = 0
        for number, size in enumerate(self.sizes):
            end += size
            if size:
                yield number, slice(end - size, end)

    def tiles(self, rows: int) -> int:
        """How many tiles of that many rows cover the groups; a tile has rows of one group."""
        return sum(-(-size // rows) for size in self.sizes)

    def useful_share(self, rows: int) -> float:
        """The share of the rows of these tiles that groups have."""
        return self.rows / (rows * self.tiles(rows))

    @property
    def summary(self) -> str:
        """For people: the text of sizes where it is short, else how many there are, and the rows of the smallest, the largest and the
        median of those with rows, `128 (97 with rows, 1 to 35, median 16)`."""
        text = str(self)
        if len(text) <= MAX_SHOWN:
            return text
        sizes = sorted(size for size in self.sizes if size) or [0]
        rows = f"{sizes[0]:,} to {sizes[-1]:,}, median {sizes[len(sizes) // 2]:,}"
        return f"{len(self.sizes):,} ({self.active:,} with rows, {rows})"

    def __str__(self) -> str:
        return _text(self.sizes)

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Groups:
        return cls(tuple(sizes))

    @classmethod
    def parse(cls, text: object) -> Groups | None:
        """None for `none`. Raises `BadGroups`."""
        if text == NONE:
            return None
        sizes: list[int] = []
        for run in str(text).split(","):
            found = _RUN.fullmatch(run.strip())
            if found is None:
                why = f"{shortened(run)!r} is not a number of rows; write for example 16*8,3,0"
                raise BadGroups(value=shortened(str(text)), why=why)
            count = int(found[2] or 1)
            if len(sizes) + count > MAX_GROUPS:
                raise BadGroups(value=shortened(str(text)), why=f"there are 1 to {MAX_GROUPS:,} groups")
            sizes += [int(found[1])] * count
        return cls(tuple(sizes))


@lru_cache(maxsize=1024)
def _text(sizes: tuple[int, ...]) -> str:
    """Kept, because every configuration of a problem has it in its line."""
    runs = ((size, len(list(run))) for size, run in groupby(sizes))
    return ",".join(f"{size}*{count}" if count > 1 else str(size) for size, count in runs)


@lru_cache(maxsize=1024)
def groups_text(text: str) -> str:
    """The text of a column for people. See `Groups.summary`."""
    groups = None if len(text) <= MAX_SHOWN else Groups.parse(text)
    return text if groups is None else groups.summary


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
