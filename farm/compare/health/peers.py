"""Compares a device with its peers, the devices of its type, on shared configurations (pure).

A deviation is the distance of a device's figure from the median of the others' figures of the same configuration and
conditions. With fewer than three others that median is no majority, and the device is compared with each of them: of two cards
that differ either may be wrong, of three the one that differs from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from farm.compare.health.fleet_rows import Bools, stable_order
from farm.compare.statistics import Floats, Ints, medians_by

MAJORITY = 3
"""Number of others from which on a single wrong one hardly moves the median."""

MAX_PEERS = 8
"""Limit for separate comparisons with others: those that share most configurations."""


def medians_of_others(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    """The median of the others of each value's group, NaN without others, and their number: [values] each."""
    if (groups[1:] < groups[:-1]).any():
        order = groups.argsort(kind="stable")
        medians, others = np.empty(len(values)), np.empty(len(values), np.int64)
        medians[order], others[order] = medians_of_others(values[order], groups[order])
        return medians, others
    begins = np.append(True, groups[1:] != groups[:-1]) if len(groups) else np.zeros(0, bool)
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(groups)))
    found = np.full(len(values), np.nan)
    for size in np.unique(counts[counts > 1]).tolist():
        # Groups of one size are a matrix, which sorts fast.
        at = starts[counts == size][:, None] + np.arange(size)
        alike = values[at]
        ordered = np.sort(alike, axis=1)

        def other(place: int, alike: Floats = alike, ordered: Floats = ordered) -> Floats:
            """The value at that place among the others: one further where the value itself comes before it."""
            return np.where(alike > ordered[:, [place]], ordered[:, [place]], ordered[:, [place + 1]])

        found[at] = (other((size - 2) // 2) + other((size - 1) // 2)) / 2
    return found, np.repeat(counts - 1, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Figures without NaN, at most one per device and cell: [figures] each."""

    device: Ints
    cell: Ints
    shape: Ints
    kind: Ints  # of the device: its type
    value: Floats

    def taken(self, which: Bools | Ints) -> Shared:
        return Shared(**{name: getattr(self, name)[which] for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Deviations of one device from others: a median for each shape."""

    device: int
    by_shape: Floats
    rows: int
    peers: int
    # The other device of a separate comparison; None for the median of a majority.
    other: int | None = None


def deviations(shared: Shared, *, min_shapes: int) -> Iterator[list[Deviation]]:
    """Deviations of each device from the majority, where at least `min_shapes` shapes, or all, have one.

    Otherwise its deviations from single others, those with most shared shapes first. Logarithms give logarithms of ratios.
    """
    group = shared.cell * (int(shared.kind.max(initial=0)) + 1) + shared.kind
    reference, others = medians_of_others(shared.value, group)
    at = np.flatnonzero(others > 0)
    if not len(at):
        return
    shared, group, reference, others = shared.taken(at), group[at], reference[at], others[at]
    order = stable_order(shared.device)
    bounds = np.append(np.flatnonzero(np.append(True, np.diff(shared.device[order]) > 0)), len(order))
    groups: _Groups | None = None
    for start, end in pairwise(bounds.tolist()):
        own = order[start:end]
        most = own[others[own] >= MAJORITY]
        by_shape = medians_by(shared.value[most] - reference[most], shared.shape[most])
        device = int(shared.device[own[0]])
        if len(by_shape) >= min_shapes or len(by_shape) == len(np.unique(shared.shape[own])):
            yield [Deviation(device=device, by_shape=by_shape, rows=len(most), peers=int(np.median(others[most])))]
            continue
        groups = groups or _Groups.of(group)
        yield list(_from_each(shared, own, groups.members_of(own)))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of figures of the same configuration and type."""

    order: Ints
    start: Ints  # [figures]: where the figure's group begins in `order`
    size: Ints  # [figures]

    @classmethod
    def of(cls, group: Ints) -> _Groups:
        _, which, counts = np.unique(group, return_inverse=True, return_counts=True)
        return cls(np.argsort(which, kind="stable"), (np.cumsum(counts) - counts)[which], counts[which])

    def members_of(self, figures: Ints) -> tuple[Ints, Ints]:
        """(figure, member of its group) for each figure and each member, including the figure itself."""
        size = self.size[figures]
        mine = np.repeat(figures, size)
        within = np.arange(len(mine)) - np.repeat(np.cumsum(size) - size, size)
        return mine, self.order[self.start[mine] + within]


def _from_each(shared: Shared, own: Ints, pairs: tuple[Ints, Ints]) -> Iterator[Deviation]:
    mine, theirs = pairs
    other = shared.device[theirs]
    device = int(shared.device[own[0]])
    found = list[Deviation]()
    for peer in np.unique(other).tolist():
        if peer == device:
            continue
        of = other == peer
        apart = shared.value[mine[of]] - shared.value[theirs[of]]
        by_shape = medians_by(apart, shared.shape[mine[of]])
        found.append(Deviation(device=device, by_shape=by_shape, rows=int(of.sum()), peers=1, other=peer))
    yield from sorted(found, key=lambda one: -len(one.by_shape))[:MAX_PEERS]
