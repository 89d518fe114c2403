"""How far rows lie from what was measured: from the nearest measured problem of their family and types, and whether their kernel
was measured in these types.

The distance is Euclidean, in octaves (factors of two) over m, n, k, batch, the number of groups with rows and, at half their weight,
the rows of the largest group and the alignments of the leading dimensions of A, B and C. `benchmarks/outside.py` shows how errors grow with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .columns import EXTENTS
from .completed_rows import Configurations
from .numeric import Array, Bools, Floats, stacked, whole_keys
from .text_columns import Text
from .vocabulary import Vocabulary

FAR = 3.0
"""Octaves beyond which a row lies outside of what was measured: errors there are twice those of near rows, and more."""

MAX_PROBLEMS = 2000
"""Problems that are kept of a family and types."""

_WIDEST_ALIGNMENT = 16
"""Elements beyond which alignment makes no difference to a distance: the widest load has 16 bytes."""

_COLUMNS = (
    *EXTENTS,
    "alignment of A",
    "alignment of B",
    "alignment of C",
    "batch",
    "groups with rows",
    "largest group",
)
_WEIGHTS = np.array([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5], "float32")
"""Of the columns in a distance."""

PROBLEM_NUMBERS = len(_COLUMNS)
"""Numbers that say where a problem lies. In formats of models from before batches or groups the last ones are missing, which are 1."""

_OF_ALL = _COLUMNS.index("batch") + 1
"""Columns that products without groups differ in."""

_NAMED = 0.5
"""A column is named where it makes up at least this share of what the largest part of a distance does."""

_PRODUCTS_AT_ONCE = 2**18
"""Products that are added up at once where rows are compared with problems: their results stay in a core's caches, and NumPy's
BLAS works on them in the thread that asks."""


def problems_of(rows: Configurations) -> Array:
    """m, n, k, the alignments of the leading dimensions of A, B and C (see `Configurations.alignments`), the batch, the groups with
    rows, and the rows of the largest: int64 [rows, 9]."""
    aligned = np.minimum(rows.alignments, _WIDEST_ALIGNMENT)
    spread = (rows[name] for name in ("batch", "active_groups", "largest_group"))
    return np.array([*(rows[name] for name in EXTENTS), *aligned, *spread]).T.astype("int64")


def positions(problems: Array) -> Array:
    """Where problems lie: a difference of 1 is an octave. [problems, 9] in float32."""
    found: Array = np.log2(problems).astype("float32") * _WEIGHTS
    return found


@dataclass(frozen=True)
class Reach:
    """Where rows lie; arrays are [rows]."""

    # Octaves to the nearest measured problem.
    distance: Floats
    # Whether no kernel with these parameters was measured in these types.
    unmeasured: Bools
    # Why a row lies outside of what was measured; empty where it does not.
    outside: Sequence[str]
    # Family and types of each row, as "family:ab:cd:acc".
    kinds: Text


@dataclass(frozen=True)
class Measured:
    """What was measured, by family and types, as arrays to search in."""

    # Family, types and layout, as in `Configurations.kinds` -> position of family and types in the others.
    positions: Mapping[str, int]
    kinds: tuple[str, ...]
    # How a sentence calls the types of each.
    types: Sequence[str]
    problems: Sequence[Array]
    points: Sequence[Array]
    # [10, points]: -p, and |p|² / 2. With x and 1 they make |p|² / 2 - p·x, which is least where p is nearest to x.
    searched: Sequence[Array]
    # Keys of the kernels of a family and types, and of those of a family; sorted.
    kernels: Array
    of_families: Array

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Measured:
        at: dict[str, int] = {}
        kinds, types = list[str](), list[str]()
        kernels, families = list[Array](), list[Array]()
        for family, (name, known) in enumerate(vocabulary.families.items()):
            numbers = {
                parameter: np.array([kernel[place] for kernel in known.kernels], "float64")
                for place, parameter in enumerate(known.parameters)
            }
            missing = np.full(len(known.kernels), np.nan)
            columns = stacked([numbers.get(each, missing) for each in vocabulary.trained], len(known.kernels))
            families.append(whole_keys(np.full(len(known.kernels), family), columns))
            for measured, layouts in known.layouts.items():
                which = list(known.kernels_by_types.get(measured, ()))
                kernels.append(whole_keys(np.full(len(which), len(kinds)), columns[:, which]))
                at |= {f"{name}:{measured}:{layout}": len(kinds) for layout in layouts}
                kinds.append(f"{name}:{measured}")
                elements, *added = measured.split(" ", 1)
                ab, *usual = elements.split(":")
                short = ab if vocabulary.usual_output.get(ab) == tuple(usual) else elements
                types.append(" ".join([short, *added]))
        problems = [vocabulary.problems.get(kind, np.empty((0, PROBLEM_NUMBERS), "int64")) for kind in kinds]
        points = [positions(each) for each in problems]
        searched = [np.vstack([-each.T, np.square(each).sum(axis=1) / 2]) for each in points]
        return cls(
            at, tuple(kinds), types, problems, points, searched, _sorted(kernels), _sorted(families)
        )  # fmt: skip

    def reach(self, rows: Configurations, vocabulary: Vocabulary) -> Reach:
        """Where completed rows lie."""
        known = np.array([self.positions[kind] for kind in rows.kinds.values], "intp")
        kind = known[rows.kinds.codes]
        problems = problems_of(rows)
        distance, nearest = self._distances(kind, problems)
        unmeasured = ~_among(self.kernels, kind.astype("uint64") + rows.kernels)
        outside = [""] * len(rows)
        if unmeasured.any():
            elsewhere = _among(self.of_families, vocabulary.kernels(rows))
            for row in np.flatnonzero(unmeasured).tolist():
                outside[row] = "kernel never measured" + (f" in {self.types[kind[row]]}" if elsewhere[row] else "")
        far = np.flatnonzero(distance > FAR)
        if len(far):
            for row, reason in zip(far.tolist(), _far(distance[far], problems[far], nearest[far]), strict=True):
                outside[row] = f"{outside[row]}; {reason}" if outside[row] else reason
        return Reach(distance, unmeasured, outside, Text(kind, self.kinds))

    def _distances(self, kind: Array, problems: Array) -> tuple[Floats, Array]:
        """Octaves to the nearest measured problem, and that problem [rows, 9]."""
        if len(kind) == 1:
            return self._to_nearest(int(kind[0]), problems)
        # Tables have many kernels on one problem.
        _, first, which = np.unique(whole_keys(kind, problems.T), return_index=True, return_inverse=True)
        distance, nearest = np.empty(len(first)), np.empty((len(first), problems.shape[1]), "int64")
        for each in np.unique(kind).tolist():
            own = np.flatnonzero(kind[first] == each)
            distance[own], nearest[own] = self._to_nearest(each, problems[first[own]])
        return distance[which], nearest[which]

    def _to_nearest(self, kind: int, problems: Array) -> tuple[Floats, Array]:
        points, wanted = self.points[kind], positions(problems)
        if not len(points):
            return np.full(len(problems), np.inf), problems
        with_one = np.ones((len(wanted), len(_WEIGHTS) + 1), "float32")
        with_one[:, :-1] = wanted
        searched = self.searched[kind]
        step = max(1, _PRODUCTS_AT_ONCE // searched.size)
        nearest = np.empty(len(wanted), "intp")
        for start in range(0, len(wanted), step):
            part = slice(start, start + step)
            (with_one[part] @ searched).argmin(axis=1, out=nearest[part])
        apart = np.square(wanted - points.take(nearest, axis=0))
        # Groups are added by themselves: eight numbers and more are added up in another order.
        squares = np.add.reduce(apart[:, :_OF_ALL], axis=1) + np.add.reduce(apart[:, _OF_ALL:], axis=1)
        distance: Floats = np.sqrt(squares).astype("float64")
        return distance, self.problems[kind].take(nearest, axis=0)


def _far(distance: Floats, problems: Array, nearest: Array) -> Iterator[str]:
    """How far away the nearest problem of each is, with the columns that make up most of that; arrays as in `_distances`."""
    parts = np.abs(positions(problems) - positions(nearest))
    named = (parts >= _NAMED * parts.max(axis=1, keepdims=True)).tolist()
    for octaves, wanted, there, which in zip(
        distance.tolist(), problems.tolist(), nearest.tolist(), named, strict=True
    ):
        columns = ", ".join(f"{_COLUMNS[i]} {wanted[i]} → {there[i]}" for i in range(len(_COLUMNS)) if which[i])
        yield f"nearest measured problem is {octaves:.1f} octaves away ({columns})"


def _sorted(keys: Sequence[Array]) -> Array:
    return np.sort(np.concatenate(keys)) if keys else np.empty(0, "uint64")


def _among(known: Array, keys: Array) -> Bools:
    """Which keys are among the known ones, which are sorted."""
    found: Bools = known.take(known.searchsorted(keys), mode="clip") == keys
    return found
