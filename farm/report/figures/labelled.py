"""What pictures of a campaign's points share: which points, how groups of them look, and what a point is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from farm.charts.description import PointTexts, Series
from farm.compare.statistics import Floats, Ints
from farm.report.figures.shades import Shading, shading
from farm.report.results import Results, problem_text, short_names

MAX_POINTS = 30_000
"""Of one chart: more make a page that no browser likes, and none is seen."""


@dataclass(frozen=True)
class LabelledResults:
    """The points of a campaign, with the names of their kernels and problems, and groups that look alike everywhere."""

    results: Results

    @cached_property
    def kernel_names(self) -> list[str]:
        return short_names(self.results.kernels)

    @cached_property
    def problem_names(self) -> list[str]:
        return [problem_text(problem) for problem in self.results.problems]

    @cached_property
    def families(self) -> list[str]:
        return sorted({kernel.family for kernel in self.results.kernels})

    @cached_property
    def family(self) -> Ints:
        """Of each point, which of `families`."""
        of = np.array([self.families.index(kernel.family) for kernel in self.results.kernels], np.int64)
        return of[self.results.kernel]

    @cached_property
    def element_types(self) -> list[str]:
        return sorted(set(self.results.element_types))

    @cached_property
    def element_type(self) -> Ints:
        """Of each point, which of `element_types`."""
        of = np.array([self.element_types.index(name) for name in self.results.element_types], np.int64)
        return of[self.results.problem]

    def texts(self, points: Ints) -> PointTexts:
        return PointTexts(
            (self.kernel_names, self.problem_names), (self.results.kernel[points], self.results.problem[points])
        )

    @cached_property
    def _group(self) -> Ints:
        """Of each point a number for its family and element types."""
        return self.family * len(self.element_types) + self.element_type

    def groups(self, points: Ints, *, by_type: bool = True) -> Iterator[tuple[str, int, Ints]]:
        """Family and element types, or the family alone, the look of such points, and which of `points` they are.

        Where all of the campaign have the same family or types, the other alone names them.
        """
        if not by_type:
            for family in np.unique(self.family[points]):
                yield self.families[family], int(family), points[self.family[points] == family]
            return
        every = np.unique(self._group)
        for group in np.unique(self._group[points]):
            family, kind = divmod(int(group), len(self.element_types))
            words = [self.families[family]] if len(self.families) > 1 or len(self.element_types) == 1 else []
            words += [self.element_types[kind]] if len(self.element_types) > 1 else []
            yield " ".join(words), int(np.searchsorted(every, group)), points[self._group[points] == group]

    def series(
        self, points: Ints, x: Floats, y: Floats, *, by_type: bool = True, best: tuple[str, Ints] | None = None
    ) -> tuple[Series, ...]:
        """Points of x and y, which have a value for each point of the campaign, a series for each group.

        `best` are points to be shown before the others, and what they are; where there are several groups, none is. One group
        that is shown by a parameter (see `shading`) has a series for each of its values.
        """
        if (shown_by := self.shading(points, by_type=by_type)) is not None:
            return (*self._shaded(shown_by, points, x, y), *self._rings(best, points, x, y))
        found = tuple(
            Series(
                name=f"{name} ({len(of):,})",
                x=x[of],
                y=y[of],
                look=look,
                faint=len(points) > 500,
                texts=self.texts(of),
            )
            for name, look, of in self.groups(points, by_type=by_type)
        )
        if best is None or len(found) != 1 or 2 * len(best[1]) > len(points):
            return found
        of = best[1]
        shown = Series(name=f"{best[0]} ({len(of):,})", x=x[of], y=y[of], look=found[0].look + 1, texts=self.texts(of))
        return (*found, shown)

    def shading(self, points: Ints, *, by_type: bool = True) -> Shading | None:
        """The parameter that colours show; None where they show families or element types, or no parameter varies."""
        return shading(self.results, points) if len(list(self.groups(points, by_type=by_type))) == 1 else None

    def _shaded(self, found: Shading, points: Ints, x: Floats, y: Floats) -> Iterator[Series]:
        for number, one in enumerate(found.shades):
            yield Series(
                name=f"{one.label} ({len(one.points):,})",
                x=x[one.points],
                y=y[one.points],
                look=number,
                shade=one.position,
                faint=len(points) > 500,
                texts=self.texts(one.points),
            )

    def _rings(self, best: tuple[str, Ints] | None, points: Ints, x: Floats, y: Floats) -> Iterator[Series]:
        if best is None or 2 * len(best[1]) > len(points):
            return
        name, of = best
        yield Series(name=f"{name} ({len(of):,})", x=x[of], y=y[of], reference=True, ring=True, texts=self.texts(of))


def thinned(points: Ints, always: Ints | None = None) -> tuple[Ints, str]:
    """At most about `MAX_POINTS` of the points, those of `always` among them, and a remark where some are left out."""
    if len(points) <= MAX_POINTS:
        return points, ""
    kept = np.random.default_rng(0).choice(points, MAX_POINTS, replace=False)
    if always is not None:
        kept = np.union1d(kept, np.intersect1d(points, always))
    return np.sort(kept), f" {len(kept):,} of {len(points):,} points are drawn, chosen at random."


def counted(count: int, thing: str) -> str:
    """`1 row`, `2,400 rows`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def percent(share: float, digits: int = 3) -> str:
    """`68.1%`."""
    return f"{100 * share:.{digits}g}%"
