"""The two times of a GEMM, burst and settled: which of them a row has, and when both are worth showing (pure)."""

from __future__ import annotations

from farm.protocols import PROTOCOLS, ProtocolName, Time

TIMES: tuple[Time, ...] = ("settled", "burst")
"""The one that is preferred where both would do comes first."""

APART = 0.02
"""Both times are shown where they differ by more than this share of the settled time."""


def time_of(protocol: str) -> Time | None:
    """Which of both times `runtime_ms` is under a protocol; None: neither, or unknown."""
    known = protocol in {name.value for name in ProtocolName}
    return PROTOCOLS[ProtocolName(protocol)].time if known else None


def protocols_of(time: Time) -> tuple[str, ...]:
    """The protocols whose `runtime_ms` is that time."""
    return tuple(name.value for name, protocol in PROTOCOLS.items() if protocol.time == time)


def are_apart(burst_ms: float | None, settled_ms: float | None) -> bool:
    """Whether both times are known and differ by more than `APART`."""
    return burst_ms is not None and settled_ms is not None and abs(burst_ms / settled_ms - 1) > APART
