"""The table by which a kernel finds the rows and the matrix B of each tile of a product in groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farm.groups import Groups


def group_tiles(groups: Groups, rows: int) -> NDArray[np.int64]:
    """[tiles, 4]: of the group of each tile of so many rows its first tile, its first row, where its rows end, and its number.

    A tile has rows of one group, and the tiles of a group follow each other.
    """
    found = np.array([(of.start, of.stop, number) for number, of in groups.with_rows()], np.int64)
    counts = -(-(found[:, 1] - found[:, 0]) // rows)
    first = np.cumsum(counts) - counts
    return np.column_stack((first, found)).repeat(counts, axis=0)
