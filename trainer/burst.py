"""Learning the ratio of burst and settled time from rows that have both: see `farm.forest.burst`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farm.forest.burst import Bursts
from farm.forest.numeric import Floats
from farm.forest.text_columns import Text
from farm.forest.trees import Trees

_Array = np.ndarray[Any, np.dtype[Any]]


def fit_bursts(
    x: _Array, kinds: Text, runtime_ms: Floats, burst_ms: Floats, grow: Callable[[_Array, _Array], Trees]
) -> Bursts:
    """A forest for the rows with a burst time (NaN: without one).

    Args:
        x: what it looks at: `farm.forest.burst.inputs` [rows, features].
        runtime_ms: settled times [rows].
        grow: makes trees for a target [rows] from what they look at [rows, features].
    """
    both = np.isfinite(burst_ms)
    trees = grow(x[both], np.log(burst_ms[both] / runtime_ms[both]))
    return Bursts(trees, tuple(sorted(kinds.values[code] for code in np.unique(kinds.codes[both]))))
