"""FleetRows of a fleet as columns, and the one row of each device and configuration that says how it is now (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.compare.statistics import Floats, Ints

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRows:
    """Measurements of a fleet: [rows] each, in no order; NaN where a row has no such figure."""

    device: Ints  # which member of the fleet
    cell: Ints  # which configuration under which conditions: operands, clock policy, source, L2
    clocks: Ints  # which clock policy
    environment: Ints  # which of the environments
    when: Floats  # seconds since 1970
    runtime_ms: Floats
    power_w: Floats
    runtime_sustained_ms: Floats
    temperature_c: Floats
    power_limit_w: Floats
    reasons: Ints  # bits of `ClockEvent`; -1 where it is not known

    def __len__(self) -> int:
        return len(self.device)

    def taken(self, which: Bools | Ints) -> FleetRows:
        """Those rows alone."""
        return FleetRows(**{name: getattr(self, name)[which] for name in self.__dataclass_fields__})

    @property
    def energy_mj(self) -> Floats:
        """As `farm.measurement.energy_mj`."""
        sustained = self.runtime_sustained_ms
        return np.asarray(self.power_w * np.where(np.isfinite(sustained), sustained, self.runtime_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """FleetRows, and what their numbers mean."""

    rows: FleetRows
    # FleetRows of a fixed GEMM, measured now and then: their cells are the same on all devices of a type.
    sentinels: FleetRows
    # By cell: a number for its shape (m, n, k); 0 where no row of the window is of it, so that nobody asks.
    shapes: Ints
    # By cell: which configuration it is.
    configurations: Ints
    environments: Sequence[Mapping[str, Any]]
    clocks: Sequence[str | None]

    def since(self, when: float) -> FleetRows:
        return self.rows.taken(self.rows.when >= when)


def latest(rows: FleetRows) -> FleetRows:
    """Of each cell and device the row that was measured last, in the order of cells and devices."""
    if not len(rows):
        return rows
    in_time = rows.when.argsort(kind="stable")
    devices = int(rows.device.max()) + 1
    key = (rows.cell * devices + rows.device)[in_time]
    size = int(key.max()) + 1
    if size <= TABLE_SLOTS_PER_ROW * len(rows):
        last = np.full(size, -1)
        last[key] = in_time  # of several the last one stays
        return rows.taken(last[last >= 0])
    order = key.argsort(kind="stable")
    key = key[order]
    return rows.taken(in_time[order[np.append(key[1:] != key[:-1], True)]])


TABLE_SLOTS_PER_ROW = 8
"""A table of that many positions for each row is faster than sorting."""


def positions(keys: Ints, asked: Ints) -> Ints:
    """Where each asked key is among the `keys`, which are sorted and each there once: [asked], -1 where it is not."""
    if not len(keys) or not len(asked):
        return np.full(len(asked), -1)
    size = int(max(keys[-1], asked.max())) + 1
    if size <= TABLE_SLOTS_PER_ROW * (len(keys) + len(asked)):
        place = np.full(size, -1)
        place[keys] = np.arange(len(keys))
        return place[asked]
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, at, -1)


def stable_order(numbers: Ints) -> Ints:
    """The order by numbers, which keeps that of equal ones: by radix where they are small."""
    small = numbers.astype(np.uint16) if numbers.max(initial=0) < 2**16 else numbers
    return small.argsort(kind="stable")
