"""Values with weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class Weighted(Generic[T]):
    """Values with weights. A number from [0, 1) chooses one."""

    def __init__(self, weight_of: Mapping[T, float]) -> None:
        self.weight_of = dict(weight_of)
        self._values = list(self.weight_of)
        self._ends = list(accumulate(self.weight_of.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self.weight_of == other.weight_of

    def __hash__(self) -> int:
        return hash(tuple(self.weight_of.items()))

    def choose(self, u: float) -> T:
        """The value at the share `u` of the sum of all weights."""
        place = bisect_right(self._ends, u * self._ends[-1])
        return self._values[min(place, len(self._values) - 1)]
