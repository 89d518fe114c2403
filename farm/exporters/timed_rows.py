"""The rows of each kernel, for files that name one kernel for each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from farm.both_times import time_in
from farm.gemm import Problem
from farm.kernels import Configuration
from farm.protocols import Time

TimedRow = tuple[Mapping[str, Any], float]
"""Columns of a row, and its time in ms."""


def timed_rows(
    rows: Iterable[Mapping[str, Any]],
    time: Time,
    why_not: Callable[[Configuration], str | None],
    *,
    columns: Collection[str] = (),
) -> tuple[dict[Problem, dict[Configuration, list[TimedRow]]], list[str]]:
    """Rows by problem and kernel, and remarks on those that are left out.

    Args:
        time: Rows without this time are left out.
        why_not: Why a file cannot name a kernel for a problem, as the end of a sentence; None where it can.
        columns: What is kept of each row.
    """
    left = Counter[str]()
    found = dict[Problem, dict[Configuration, list[TimedRow]]]()
    for row in rows:
        configuration = Configuration.from_columns(row)
        ms, why = time_in(row, time), why_not(configuration)
        if why is not None:
            left[why] += 1
        elif ms is None:
            left[f"have no {time} time"] += 1
        else:
            found.setdefault(configuration.problem, {}).setdefault(configuration, []).append(
                ({name: row[name] for name in columns}, ms)
            )
    return found, [f"{count:,} rows {why}, and are left out." for why, count in sorted(left.items())]
