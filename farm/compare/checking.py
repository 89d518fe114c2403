"""Whether a side of a comparison is slower than the baseline by more than it may be: of all, and of each element type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine

from farm.compare import groups, reading
from farm.compare.comparing import Beside, Comparison
from farm.compare.statistics import Floats, Ints, Ratio, ratio_of
from farm.errors import TooFewToCheck

ALPHA = 0.05
"""How often a comparison in which no side is slower than it may be says that one is, however many sides and types there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A side, or what it has of one element type, that is slower by more than it may be."""

    side: str
    of: str  # `all`, or an element type
    time: Ratio
    confidence: float

    def __str__(self) -> str:
        what = "" if self.of == "all" else f" in {self.of}"
        return f"{self.side}{what} by {self.time.ratio:.4f} ({self.time.low:.4f}–{self.time.high:.4f}) on {self.time.shapes} shapes"


@dataclass(frozen=True, slots=True)
class _Group:
    side: str
    of: str
    log_ratios: Floats
    shapes: Ints


def slower(engine: Engine, comparison: Comparison, *, by: float) -> list[Slower]:
    """Where the lower bound of the ratio of times is above 1 + `by`; a slow element type hides in a median over all of them.

    Each bound is wrong with at most `ALPHA` over the number of sides and types (Bonferroni), so all of them together with at
    most `ALPHA`. Raises `TooFewToCheck` where no side has shapes enough for one.
    """
    found = [group for side in comparison.sides for group in _groups(engine, side)]
    confidence = 1 - 2 * ALPHA / max(1, len(found))
    ratios = [(group, ratio_of(group.log_ratios, group.shapes, confidence)) for group in found]
    told = [(group, ratio) for group, ratio in ratios if ratio is not None and ratio.low is not None]
    if not told:
        shapes = max((ratio.shapes for _, ratio in ratios if ratio is not None), default=0)
        raise TooFewToCheck(shapes=shapes, least=int(np.ceil(-np.log2((1 - confidence) / 2))))
    return [
        Slower(side=group.side, of=group.of, time=ratio, confidence=confidence)
        for group, ratio in told
        if ratio.low is not None and ratio.low > 1 + by
    ]


def _groups(engine: Engine, side: Beside) -> Iterator[_Group]:
    pairs = side.measured.pairs
    if pairs is None:
        return
    problems, log_ratios = reading.problems(engine, pairs.ids), np.log(pairs.time_ratio)
    shapes = groups.shapes_of(problems)
    yield _Group(side.held.name, "all", log_ratios, shapes)
    types = groups.by_type(problems)
    if len(types.labels) > 1:
        for number, label in enumerate(types.labels):
            inside = types.which == number
            if inside.any():
                yield _Group(side.held.name, label, log_ratios[inside], shapes[inside])
