"""Drawing problems from domains: stratified by block and element type (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from farm.campaign.domain import COORDINATES, Points, item_at, random_points, sobol_points
from farm.campaign.problem_blocks import DomainBlock
from farm.errors import BadGate, OddExtent
from farm.gemm import ElementTypes, Problem

MAX_REFUSED = 10_000
"""After this many problems in a row that are repeated, that a constraint excludes, or that have an odd extent where it must be even, a
stratum counts as exhausted."""

MAX_WITHOUT_KERNEL = 1_000
"""After this many problems in a row that no kernel runs, a stratum counts as exhausted; after fewer with many kernels."""

MAX_REFUSED_KERNELS = 2_000_000
"""Kernels whose rules are applied to problems in a row that none of them runs: 4 to 60 seconds for each stratum."""

MIN_WITHOUT_KERNEL = 10

_SHAPE = 1 + COORDINATES
"""Coordinates of a point that choose a source and its shape."""

_STREAM = 2**32
"""Between the seeds of two streams of one campaign; a seed is smaller."""


def max_without_kernel(kernels: int) -> int:
    """Problems in a row that none of so many kernels runs, after which a stratum counts as exhausted.

    >>> max_without_kernel(57), max_without_kernel(20_000), max_without_kernel(10**6)
    (1000, 100, 10)
    """
    return min(MAX_WITHOUT_KERNEL, max(MIN_WITHOUT_KERNEL, MAX_REFUSED_KERNELS // max(1, kernels)))


class _Stratum:
    """An element type of a block, with a sequence of points of its own."""

    def __init__(self, block: DomainBlock, types: ElementTypes, points: Points, seed: int) -> None:
        self.weight = block.weight / len(block.types)
        self.turn = 0.0
        self._block = block
        self._types = types
        # Of what problems did not have before, only several values have a coordinate: older campaigns draw the same problems.
        self._points = points(_SHAPE + 3 + sum(len(values) > 1 for values in block.added), seed)
        self._seen: set[Problem] = set()

    def next(
        self, keeps: Callable[[Problem], bool], runs: Callable[[Problem], bool], max_without_kernel: int
    ) -> Problem | None:
        """Another problem that is kept and runs; None if the stratum seems to be exhausted."""
        block, without_kernel, refused = self._block, 0, 0
        while refused < MAX_REFUSED and without_kernel < max_without_kernel:
            point = next(self._points)
            layout = item_at(block.layouts, point[_SHAPE])
            alpha, beta = item_at(block.alpha, point[_SHAPE + 1]), item_at(block.beta, point[_SHAPE + 2])
            rest = iter(point[_SHAPE + 3 :])
            added = [item_at(values, next(rest)) if len(values) > 1 else values[0] for values in block.added]
            try:
                problem = Problem(block.shape_at(point[:_SHAPE]), self._types, layout, alpha, beta, *added)
            except (BadGate, OddExtent):
                refused += 1
                continue
            if problem in self._seen or not keeps(problem):
                refused += 1
                continue
            self._seen.add(problem)
            if runs(problem):
                return problem
            without_kernel += 1
        return None


def draw(
    blocks: Sequence[DomainBlock],
    points: Points,
    *,
    seed: int,
    keeps: Callable[[Problem], bool],
    runs: Callable[[Problem], bool] = lambda _problem: True,
    max_without_kernel: int = MAX_WITHOUT_KERNEL,
) -> Iterator[Problem]:
    """Draws different problems, endlessly if the domains are large enough.

    Each element type of each block is a stratum. They take turns by their weights, so that every beginning of the sequence
    has its share of each (as load balancers choose servers: "smooth weighted round-robin"). A problem that is refused is
    replaced by another one of its stratum. A stratum is left out once it seems to be exhausted.

    Args:
        points: Where in the domains to look. See `farm.campaign.domain.Points`.
        seed: Of the points.
        keeps: Whether the constraints keep a problem. It is called for each point, so it should be fast.
        runs: Whether a kernel runs a problem that is kept.
        max_without_kernel: Problems in a row that no kernel runs, after which a stratum counts as exhausted.
    """
    strata = [_Stratum(block, types, points, 1000 * seed + i) for i, (block, types) in enumerate(_typed(blocks))]
    while strata:
        for stratum in strata:
            stratum.turn += stratum.weight
        chosen = max(strata, key=lambda stratum: stratum.turn)
        chosen.turn -= sum(stratum.weight for stratum in strata)
        problem = chosen.next(keeps, runs, max_without_kernel)
        if problem is None:
            strata.remove(chosen)
        else:
            yield problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSource:
    """The domain of a campaign, to draw problems from: without end, or until each element type has no further one.

    The fields are those of `draw`.
    """

    blocks: Sequence[DomainBlock]
    keeps: Callable[[Problem], bool]
    runs: Callable[[Problem], bool]
    max_without_kernel: int

    def random(self, seed: int, *, stream: int = 0) -> Iterator[Problem]:
        """Independent problems; each `stream` of a seed draws others."""
        return self._draw(random_points, seed + stream * _STREAM, self.keeps)

    def even(self, seed: int, *, without: Set[Problem]) -> Iterator[Problem]:
        """Problems that fill the domain evenly, except those of `without`."""
        return self._draw(sobol_points, seed, lambda problem: problem not in without and self.keeps(problem))

    def _draw(self, points: Points, seed: int, keeps: Callable[[Problem], bool]) -> Iterator[Problem]:
        bound = self.max_without_kernel
        return draw(self.blocks, points, seed=seed, keeps=keeps, runs=self.runs, max_without_kernel=bound)


def _typed(blocks: Sequence[DomainBlock]) -> Iterator[tuple[DomainBlock, ElementTypes]]:
    return ((block, types) for block in blocks for types in block.types)
