"""The two times of a GEMM, burst and settled: which of them a row has, and when both are worth showing (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.protocols import PROTOCOLS, Time

TIMES: tuple[Time, ...] = ("settled", "burst")
"""The one that is preferred where both would do comes first."""

APART = 0.02
"""Both times are shown where they differ by more than this share of the settled time."""


def time_of(protocol: str) -> Time | None:
    """Which of both times `runtime_ms` is under a protocol; None: neither, or unknown."""
    known = PROTOCOLS.get(protocol)
    return None if known is None else known.time


def time_in(row: Mapping[str, Any], time: Time) -> float | None:
    """A row's burst or settled time, ms; None where it was not measured."""
    own: float | None = row["runtime_burst_ms"] if time == "burst" else row["runtime_settled_ms"]
    return row["runtime_ms"] if own is None and time_of(row["protocol"]) == time else own


def protocol_text(name: str) -> str:
    """`do-bench: the mean of single launches, each …`, or the name alone of a protocol that is not known here."""
    known = PROTOCOLS.get(name)
    return name if known is None else f"{name}: {known.meaning}"


def burst_apart(burst_ms: float | None, other_ms: float | None) -> float | None:
    """The burst time where it differs from the other one by more than `APART`, so that both are shown; otherwise None."""
    apart = burst_ms is not None and other_ms is not None and abs(burst_ms / other_ms - 1) > APART
    return burst_ms if apart else None
