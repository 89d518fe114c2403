"""Rows of a fleet as columns, and the latest row of each device and configuration (pure)."""

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

    device: Ints  # number of the member
    cell: Ints  # number of a configuration under given operands, clock policy, source, L2 state and protocol
    clocks: Ints  # number of the clock policy
    environment: Ints  # number of the environment
    when: Floats  # seconds since 1970
    runtime_ms: Floats
    power_w: Floats
    runtime_settled_ms: Floats
    temperature_c: Floats
    power_limit_w: Floats
    reasons: Ints  # bits of `ClockEvent`; -1 where it is not known
    power_limited: Ints  # 1 where the power limiter makes the GEMM slower, 0 where not; -1 where it is not known

    def __len__(self) -> int:
        return len(self.device)

    def taken(self, which: Bools | Ints) -> FleetRows:
        """The chosen rows."""
        return FleetRows(**{name: getattr(self, name)[which] for name in self.__dataclass_fields__})

    @property
    def energy_mj(self) -> Floats:
        """As `farm.measurement.energy_mj`."""
        sustained = self.runtime_settled_ms
        return np.asarray(self.power_w * np.where(np.isfinite(sustained), sustained, self.runtime_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Rows of a fleet, and the values that their numbers stand for."""

    rows: FleetRows
    # Rows of a fixed GEMM, which all devices of a type measure from time to time.
    sentinels: FleetRows
    # By cell: the number of its shape (m, n, k); 0 without rows in the window.
    shapes: Ints
    # By cell: the number of its configuration.
    configurations: Ints
    environments: Sequence[Mapping[str, Any]]
    clocks: Sequence[str | None]

    def since(self, when: float) -> FleetRows:
        return self.rows.taken(self.rows.when >= when)


def latest(rows: FleetRows) -> FleetRows:
    """The latest row of each cell and device, in the order of cells and devices."""
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
"""A lookup table with up to that many slots per row is faster than sorting."""


def positions(keys: Ints, wanted: Ints) -> Ints:
    """The position of each wanted key in the sorted, unique `keys`: [wanted], -1 where it is missing."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1)
    size = int(max(keys[-1], wanted.max())) + 1
    if size <= TABLE_SLOTS_PER_ROW * (len(keys) + len(wanted)):
        place = np.full(size, -1)
        place[keys] = np.arange(len(keys))
        return place[wanted]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


def stable_order(numbers: Ints) -> Ints:
    """A stable sorting order; small numbers use a radix sort."""
    small = numbers.astype(np.uint16) if numbers.max(initial=0) < 2**16 else numbers
    return small.argsort(kind="stable")
