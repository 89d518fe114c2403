"""The protocols of a measurement: named rules by which the time of a GEMM is taken. docs/measuring.md has their table.

Each field is one rule. A device follows a protocol by these rules alone (`workers.measure.protocols`); only `farm`, which
adapts to the kernel and to the power limiter, has code of its own (`workers.devices.cuda_tiers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class ProtocolName(StrEnum):
    """The value of `measure.protocol` in a campaign, and of the column `protocol`."""

    FARM = "farm"
    FIXED_POWER = "fixed-power"
    FIXED_FREQUENCY = "fixed-frequency"
    DO_BENCH = "do-bench"
    NVBENCH = "nvbench"
    AICONFIGURATOR = "aiconfigurator"
    SERVER = "server"


UNKNOWN_PROTOCOL = "unknown"
"""The column `protocol` of imported rows whose file does not say how they were measured."""

Time = Literal["burst", "settled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The rules of one protocol.

    Attributes:
        meaning: what `runtime_ms` is, for users.
        source: where the rules come from.
        time: which of both times `runtime_ms` is; None: neither, as launches have gaps or caches are flushed between them.
        rest_s: seconds in which the card runs nothing before the first launch.
        warm_up_s: seconds of launches that are not timed.
        warm_up_samples: samples that are not timed, after these seconds.
        launches: in a sample; None: as many as take `replay.MIN_REPLAY_MS`.
        min_samples: the least number of samples.
        min_launches: the least number of timed launches.
        seconds: of samples, at least; sampling stops there where there are enough samples and launches.
        rse: sampling goes on until the relative standard error is at most this, for `max_seconds` at most. None: it does not.
        max_seconds: the longest time of samples.
        gap_s: seconds of rest before each sample.
        flush: whether the last-level cache is overwritten before each sample; otherwise operand sets rotate.
        graphed: whether launches are captured into a graph, as far as the kernel can be.
        average: what `runtime_ms` is of the samples.
        zeros: whether operands are all 0, also where the campaign says otherwise.
        locked_clocks: whether an administrator must have locked the card's clocks.
        cool_down_s: seconds of rest after the last sample.
    """

    meaning: str
    source: str
    time: Time | None
    rest_s: float = 0.0
    warm_up_s: float = 0.0
    warm_up_samples: int = 0
    launches: int | None = None
    min_samples: int = 1
    min_launches: int = 1
    seconds: float = 0.0
    rse: float | None = None
    max_seconds: float = 30.0
    gap_s: float = 0.0
    flush: bool = False
    graphed: bool = True
    average: Literal["mean", "median"] = "mean"
    zeros: bool = False
    locked_clocks: bool = False
    cool_down_s: float = 0.0


_CUTLASS = "NVIDIA, GEMM performance measurement methodology guidelines (CUTLASS)"

PROTOCOLS: Mapping[str, Protocol] = {
    ProtocolName.FARM: Protocol(
        meaning="the settled time; the burst time is measured as well",
        source="docs/measuring.md",
        time="settled",
        rest_s=0.1,
        average="median",
    ),
    ProtocolName.FIXED_POWER: Protocol(
        meaning="the settled time after 3 s of warm-up, the mean of at least 1,000 launches",
        source=_CUTLASS,
        time="settled",
        warm_up_s=3.0,
        min_launches=1000,
        seconds=1.0,
        max_seconds=10.0,
        cool_down_s=1.0,
    ),
    ProtocolName.FIXED_FREQUENCY: Protocol(
        meaning="the time at locked clocks, with operands of zeros",
        source=_CUTLASS,
        time="settled",
        warm_up_s=0.5,
        min_launches=1000,
        seconds=0.5,
        max_seconds=10.0,
        zeros=True,
        locked_clocks=True,
        cool_down_s=1.0,
    ),
    ProtocolName.DO_BENCH: Protocol(
        meaning="the mean of single launches, each after the cache was flushed, for 0.1 s",
        source="Triton, triton.testing.do_bench",
        time=None,
        warm_up_s=0.025,
        launches=1,
        seconds=0.1,
        flush=True,
        graphed=False,
    ),
    ProtocolName.NVBENCH: Protocol(
        meaning="the mean of single launches, each after the cache was flushed, until their error is 0.5%",
        source="NVIDIA nvbench, cold measurements",
        time=None,
        warm_up_samples=1,
        launches=1,
        min_samples=10,
        seconds=0.5,
        rse=0.005,
        max_seconds=15.0,
        flush=True,
        graphed=False,
    ),
    ProtocolName.AICONFIGURATOR: Protocol(
        meaning="the burst time: the mean of 6 replays of a graph of 6 launches, after a rest",
        source="NVIDIA AIConfigurator, its collectors",
        time="burst",
        rest_s=1.0,
        warm_up_samples=3,
        launches=6,
        min_samples=6,
    ),
    ProtocolName.SERVER: Protocol(
        meaning="the median of single launches with 5 ms of rest before each, as requests of a lightly loaded server",
        source="docs/measuring.md",
        time=None,
        warm_up_samples=3,
        launches=1,
        min_samples=50,
        gap_s=0.005,
        graphed=False,
        average="median",
    ),
}
"""Protocols by the value of the column `protocol`, which may have others: unknown ones, and those of newer versions."""
