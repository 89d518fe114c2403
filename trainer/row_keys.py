"""Rows as small numbers: the different values of a column, and one ordered key of several columns.

Tables have millions of rows and few different values. Neither a tuple nor a text of each row is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

Ints = np.ndarray[Any, np.dtype[np.intp]]

_MAX_KEY = 2**62


def distinct(column: pd.Series) -> tuple[Ints, list[Any]]:
    """The number of each row's value [rows], and the different values by number; a gap is one of them.

    Two mappings are different values if they are different objects.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        # The code of a gap is -1: the last value.
        values = [*column.cat.categories, None]
        return np.asarray(column.cat.codes, np.intp) % len(values), values
    if column.dtype == object:
        numbers: dict[Any, int] = {}
        objects: list[Any] = []
        codes = np.empty(len(column), np.intp)
        for row, value in enumerate(column.array):
            number = numbers.setdefault(_hashed(value), len(objects))
            if number == len(objects):
                objects.append(value)
            codes[row] = number
        return codes, objects
    found, uniques = pd.factorize(column, use_na_sentinel=False)
    return np.asarray(found, np.intp), list(uniques)


def _hashed(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return (id(value),)
    return None if pd.isna(value) else value


def ranks(column: pd.Series) -> tuple[Ints, int]:
    """The place of each row's value among the sorted different values of a column [rows], gaps last; and their number."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        values = column.cat.categories
        place = np.full(len(values) + 1, len(values), np.intp)
        place[np.argsort(values)] = np.arange(len(values))
        return place[column.cat.codes], len(place)
    found, uniques = pd.factorize(column, sort=True, use_na_sentinel=False)
    return np.asarray(found, np.intp), len(uniques)


def ordered_key(columns: Iterable[tuple[Ints, int]]) -> Ints:
    """One number for each row [rows], from 0 without gaps, that orders rows as their columns do, the first column first.

    Args:
        columns: numbers [rows] from 0, and a bound above them.
    """
    key, size = None, 1
    for numbers, bound in columns:
        if key is None:
            key, size = numbers, bound
            continue
        if size * bound > _MAX_KEY:
            key, size = _without_gaps(key)
        key, size = key * bound + numbers, size * bound
    return np.zeros(0, np.intp) if key is None else _without_gaps(key)[0]


def _without_gaps(key: Ints) -> tuple[Ints, int]:
    values, numbers = np.unique(key, return_inverse=True)
    return numbers, len(values)
