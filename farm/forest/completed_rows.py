"""Rows of configurations whose gaps are filled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .columns import EXTENTS, GATE
from .group_sizes import GroupSizes
from .numeric import Array, Bools, Floats, whole_keys
from .text_columns import Text

_MAX_ALIGNMENT = 256
"""Wider than any vector load or tile edge that a kernel can profit from."""


@dataclass(frozen=True)
class Configurations:
    """Completed rows: numbers as float64 [rows], NaN where a family has no such parameter; texts without gaps."""

    # By column, and those of `OF_KIND`, `BLOCKS`, `BIAS`, `GATE`, `OF_GROUPS`, `IS_SPARSE` and `BYTES_OF_B`.
    numbers: Mapping[str, Floats]
    texts: Mapping[str, Text]
    # Family, types as `types_text` writes them, and layout of each row: "family:ab:cd:acc:layout".
    kinds: Text
    # Positions of the family, the type of A and B, the scale factors and the fused operations among those of the vocabulary.
    families: Array
    types: Array
    scales: Array
    fusions: Array
    # [parameters, rows]: those of the families that were trained, in the order of `Vocabulary.trained`.
    parameters: Floats
    # [`OF_KIND`, rows].
    of_kind: Floats
    # None where no row has groups.
    sizes: GroupSizes | None = None

    def __len__(self) -> int:
        return len(self.numbers["m"])

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def parameter(self, name: str) -> Floats:
        """A kernel parameter, all NaN where no row can have it."""
        return self.numbers[name] if name in self.numbers else np.full(len(self), np.nan)

    @property
    def columns_of_d(self) -> Floats:
        """n, or half of it where there is a gate."""
        return self.numbers["n"] / (1.0 + self.numbers[GATE])

    @property
    def grouped(self) -> Bools:
        """Which rows have groups."""
        return np.zeros(len(self), bool) if self.sizes is None else self.sizes.grouped

    def row_tiles(self, edges: Floats | float) -> Floats:
        """How many tiles of so many rows cover A and D, [..., rows] as broadcast. With groups, a tile has rows of one group."""
        found: Floats = np.ceil(self.numbers["m"] / edges)
        return found if self.sizes is None else np.where(self.grouped, self.sizes.tiles(np.asarray(edges)), found)

    @cached_property
    def kernels(self) -> Array:
        """A number for the parameters of each row, uint64: see `whole_keys`."""
        return whole_keys(np.zeros(len(self), "uint64"), self.parameters)

    @cached_property
    def alignments(self) -> Floats:
        """The largest power of two, at most `_MAX_ALIGNMENT`, that divides the leading dimension of A, B and C: [3, rows].

        A leading dimension is how far rows (or columns, of a transposed operand) lie apart in memory, in elements: it decides
        how wide loads can be, which m alone does not unless A is transposed.
        """
        m, n, k = (self.numbers[name] for name in EXTENTS)
        a = np.where(self.numbers["a_transposed"] > 0, m, k)
        b = np.where(self.numbers["b_transposed"] > 0, k, n)
        whole = np.array([a, b, self.columns_of_d], "int64") | _MAX_ALIGNMENT
        return (whole & -whole).astype("float64")

    def parts(self, rows: int) -> Iterator[Configurations]:
        """These in pieces of at most so many rows; no rows are one piece."""
        if len(self) <= rows:
            yield self
            return
        for start in range(0, len(self), rows):
            some = slice(start, start + rows)
            yield Configurations(
                {name: values[some] for name, values in self.numbers.items()},
                {name: text.part(some) for name, text in self.texts.items()},
                self.kinds.part(some),
                self.families[some],
                self.types[some],
                self.scales[some],
                self.fusions[some],
                self.parameters[:, some],
                self.of_kind[:, some],
                None if self.sizes is None else self.sizes.part(some),
            )
