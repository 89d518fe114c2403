"""Which of both times a comparison is of: rows of different protocols are compared in a time that all of them have (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from farm.both_times import TIMES, time_of
from farm.compare.groups import RowKind
from farm.compare.statistics import Bools, Floats
from farm.errors import SideWithoutRows
from farm.protocols import Time

if TYPE_CHECKING:
    from farm.compare.row_query import MeasurementRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTime:
    """The time that is compared.

    Attributes:
        time: None where the rows' protocol measures neither time, and where mixed protocols have none in common.
        common: whether it is the same time in all rows, although their protocols differ.
    """

    time: Time | None
    common: bool = False

    def of(self, rows: MeasurementRows, kinds: Sequence[RowKind]) -> MeasurementRows:
        """The rows with this time as their `runtime_ms`, NaN where they lack it.

        Their burst time is complete then, and their settled time is the one that their energy is of (`farm.measurement.energy_mj`).
        """
        settled = np.where(np.isfinite(rows.runtime_settled_ms), rows.runtime_settled_ms, rows.runtime_ms)
        both = {"runtime_burst_ms": times_ms(rows, kinds, "burst"), "runtime_settled_ms": settled}
        if self.time is None:
            return replace(rows, **both)
        own = _is_own(rows, kinds, self.time)
        spread = rows.runtime_burst_rse if self.time == "burst" else rows.runtime_rse
        return replace(
            rows,
            runtime_ms=times_ms(rows, kinds, self.time),
            runtime_rse=np.where(own | ~np.isfinite(spread), rows.runtime_rse, spread),
            **both,
        )


def times_ms(rows: MeasurementRows, kinds: Sequence[RowKind], time: Time) -> Floats:
    """One of both times of each row: [rows], NaN where it has no such time."""
    other = rows.runtime_burst_ms if time == "burst" else rows.runtime_settled_ms
    return np.where(_is_own(rows, kinds, time), rows.runtime_ms, other)


def _is_own(rows: MeasurementRows, kinds: Sequence[RowKind], time: Time) -> Bools:
    """Whether `runtime_ms` is that time: [rows]."""
    of_kind = np.array([time_of(kind.protocol) == time for kind in kinds], bool)
    found: Bools = of_kind[rows.kind]
    return found


def choose(
    rows: MeasurementRows, kinds: Sequence[RowKind], by_group: Mapping[str, Sequence[tuple[RowKind, int]]], wanted: Time | None
) -> ComparedTime:  # fmt: skip
    """The time to compare.

    Rows of one protocol are compared by its own time, unless another one is wanted. Rows of several protocols are compared by
    a time that rows of each protocol have in each group.

    Args:
        by_group: The kinds of each group that has rows.

    Raises:
        SideWithoutRows: A group has no row with the wanted time.
    """
    protocols = {kind.protocol for of_group in by_group.values() for kind, _ in of_group}
    if wanted is None and len(protocols) < 2:
        return ComparedTime(time=time_of(next(iter(protocols))) if protocols else None)
    for time in TIMES if wanted is None else (wanted,):
        having = np.bincount(rows.kind[np.isfinite(times_ms(rows, kinds, time))], minlength=len(kinds))
        rows_with = {kind: int(count) for kind, count in zip(kinds, having, strict=True)}
        if wanted is not None:
            for name, of_group in by_group.items():
                if not any(rows_with[kind] for kind, _ in of_group):
                    why = f"no row has a {time} time; the protocol farm measures both, as in `farm compare --fill`"
                    raise SideWithoutRows(side=name, why=why)
        elif not all(_of_each_protocol(of_group, rows_with) for of_group in by_group.values()):
            continue
        return ComparedTime(time=time, common=len(protocols) > 1)
    return ComparedTime(time=None)


def _of_each_protocol(of_group: Sequence[tuple[RowKind, int]], rows_with: Mapping[RowKind, int]) -> bool:
    counts = Counter[str]()
    for kind, _ in of_group:
        counts[kind.protocol] += rows_with[kind]
    return all(counts.values())


def notes_on(
    chosen: ComparedTime, before: Mapping[str, Sequence[tuple[RowKind, int]]], left: Mapping[str, int]
) -> list[str]:
    """Notes on the compared time, and on the rows without it.

    Args:
        before: The kinds of each group, with the numbers of rows before those without that time were left out.
        left: The rows of each group that are left out.
    """
    notes = list[str]()
    if chosen.common:
        notes.append(f"Protocols differ, and {chosen.time} times are compared: {protocols_text(before)}.")
    notes += [
        f"{count:,} rows of {name} have no {chosen.time} time and are left out."
        for name, count in left.items()
        if count
    ]
    return notes  # fmt: skip


def protocols_of(of_group: Sequence[tuple[RowKind, int]]) -> dict[str, int]:
    """Rows by protocol."""
    counts = Counter[str]()
    for kind, rows in of_group:
        counts[kind.protocol] += rows
    return dict(sorted(counts.items()))


def protocols_text(by_group: Mapping[str, Sequence[tuple[RowKind, int]]]) -> str:
    return "; ".join(
        f"{name} has " + ", ".join(f"{protocol} ({rows:,} rows)" for protocol, rows in protocols_of(of_group).items())
        for name, of_group in by_group.items()
    )
