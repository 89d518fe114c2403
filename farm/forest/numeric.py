"""Arrays of numbers: their types, and what is made of several at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def stacked(columns: Sequence[Any], rows: int) -> Floats:
    """[columns, rows], to be worked on at once: for few rows, numpy's calls take longer than their work."""
    return np.array(columns, "float64").reshape(len(columns), rows)


def whole_keys(group: Array, numbers: Floats) -> Array:
    """One number for each row of a group and whole numbers, [rows] and [numbers, rows]; different for different rows."""
    with np.errstate(invalid="ignore"):
        whole = np.where(np.isnan(numbers), -1.0, numbers).astype("int64").view("uint64")
    found: Array = group.astype("uint64") + _powers(len(numbers)) @ whole
    return found


@cache
def _powers(count: int) -> Array:
    """Of `_KEY`, to the power of 1 and more."""
    return np.array([pow(_KEY, power, 1 << 64) for power in range(1, count + 1)], "uint64")


_KEY = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""
