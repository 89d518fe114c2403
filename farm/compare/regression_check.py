"""Checks whether a group is slower than the baseline by more than allowed: over all pairs, and for each element type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine

from farm.compare import breakdowns, row_query
from farm.compare.comparison import Comparison
from farm.compare.findings import Pairs
from farm.compare.statistics import Floats, Ints, ratio_of
from farm.compare.summaries import Ratio, Regression
from farm.errors import TooFewToCheck

ALPHA = 0.05
"""Probability of a false alarm over all groups and element types together."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The pairs of a group, or those of one element type."""

    side: str
    of: str
    log_ratios: Floats
    shapes: Ints

    def regression(self, time: Ratio, confidence: float) -> Regression:
        what = self.side if self.of == "all" else f"{self.side} in {self.of}"
        text = f"{what} by {time.ratio:.4f} ({time.low:.4f}–{time.high:.4f}) on {time.shapes} shapes"
        return Regression(side=self.side, of=self.of, time=time, confidence=confidence, text=text)


def regressions(engine: Engine, comparison: Comparison, *, by: float) -> list[Regression]:
    """Groups, and element types of groups, whose lower bound of the time ratio exceeds 1 + `by`.

    Element types are checked separately because a median over all of them can hide a slow one. The confidence of each bound
    is corrected for the number of checks (Bonferroni). Raises `TooFewToCheck` where no group has enough shapes.
    """
    parts = [part for name, pairs in comparison.measured_pairs.items() for part in _parts(engine, name, pairs)]
    confidence = 1 - 2 * ALPHA / max(1, len(parts))
    ratios = [(part, ratio_of(part.log_ratios, part.shapes, confidence)) for part in parts]
    checked = [(part, ratio, ratio.low) for part, ratio in ratios if ratio is not None and ratio.low is not None]
    if not checked:
        shapes = max((ratio.shapes for _, ratio in ratios if ratio is not None), default=0)
        raise TooFewToCheck(shapes=shapes, least=int(np.ceil(-np.log2((1 - confidence) / 2))))
    return [part.regression(ratio, confidence) for part, ratio, low in checked if low > 1 + by]


def _parts(engine: Engine, name: str, pairs: Pairs) -> Iterator[_Part]:
    problems, log_ratios = row_query.problems(engine, pairs.ids), np.log(pairs.time_ratio)
    shapes = breakdowns.shapes_of(problems)
    yield _Part(name, "all", log_ratios, shapes)
    types = breakdowns.by_type(problems)
    if len(types.labels) > 1:
        for number, label in enumerate(types.labels):
            inside = types.which == number
            if inside.any():
                yield _Part(name, label, log_ratios[inside], shapes[inside])
