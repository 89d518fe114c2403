"""What a measurement holds, and the rules under which it is taken."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from farm.operands import OperandRules
from farm.protocols import PROTOCOLS, UNKNOWN_PROTOCOL, ProtocolName
from farm.schema.column import Column, Group

ALL_FAMILIES = "all"
"""In errors by kernel family: those over every row."""


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimingRules(_Rules):
    """When the timing of one configuration stops."""

    target_rse: float = Field(default=0.005, gt=0, lt=1, description="stop at this relative standard error of the mean")
    min_samples: int = Field(default=10, ge=2, le=100_000, description="minimum number of samples")
    max_samples: int = Field(default=1000, ge=2, le=1_000_000, description="maximum number of samples")
    max_seconds: float = Field(
        default=0.5, gt=0, le=600, description="time budget of the samples of one configuration, in seconds"
    )
    warmup_seconds: float = Field(default=0.02, ge=0, le=60, description="warm-up before the first sample, in seconds")
    warm_l2: bool = Field(
        default=False, description="`true`: measure the time with operands in the cache as well, as `runtime_warm_ms`"
    )


PowerWish = Literal["none", "fraction", "all"]


class MeasuringRules(_Rules):
    """The `measure` section of a campaign file."""

    protocol: ProtocolName = Field(
        default=ProtocolName.FARM,
        description="the rules by which times are taken: `farm`, `fixed-power`, `fixed-frequency`, `do-bench`, `nvbench`,"
        " `aiconfigurator` or `server`; see [measuring](measuring.md#protocols)",
    )
    timing: TimingRules = Field(default=TimingRules(), description="when timing stops, see below")
    operands: OperandRules = Field(default=OperandRules(), description="what A, B and C are filled with, see below")
    determinism: bool = Field(
        default=False,
        description="`true`: launch three times more to see whether the result has the same bits (`deterministic`), and"
        " compute it with fewer rows to see whether the first rows keep theirs (`batch_invariant`)",
    )
    power: PowerWish = Field(
        default="none", description="measure the power of no configuration, of a fraction, or of all"
    )
    power_fraction: float = Field(
        default=0.1, gt=0, le=1, description="the share of configurations, for `fraction`: 0.1 is a tenth"
    )
    power_rse: float = Field(default=0.02, gt=0, lt=1, description="stop at this relative standard error of the power")
    power_seconds: float = Field(
        default=1.0, ge=0.3, le=60, description="maximum length of the power window, in seconds"
    )
    job_seconds: float = Field(
        default=120.0, gt=0, le=3600, description="a job that takes longer, in seconds, is ended as hung"
    )
    max_attempts: int = Field(default=3, ge=1, le=20, description="attempts before a failing job is dead")

    @model_validator(mode="after")
    def _power_needs_a_load(self) -> Self:
        if self.power != "none" and PROTOCOLS[self.protocol].time is None:
            raise ValueError(
                f"the protocol {self.protocol} has gaps between launches, so no power can be read: use power: none"
            )
        return self

    @property
    def operands_used(self) -> OperandRules:
        """What A, B and C are filled with under the protocol."""
        return (
            OperandRules(distribution="zeros", seed=self.operands.seed)
            if PROTOCOLS[self.protocol].zeros
            else self.operands
        )

    def wants_power(self, configuration_id: uuid.UUID) -> bool:
        """Whether a configuration's power is to be measured. A fraction is the same on every device and every time."""
        if self.power == "fraction":
            return configuration_id.int >> 64 < self.power_fraction * 2**64
        return self.power == "all"


class Source(StrEnum):
    """Where a row's numbers come from. Only `measured` rows train a model by default."""

    MEASURED = "measured"
    RECORDED = "recorded"
    IMPORTED = "imported"
    SENTINEL = "sentinel"  # a fixed configuration between the jobs of a batch, to notice drift


TEST_ROW = {"purpose": "test"}
"""What the details of a row of a test set hold in exports and recordings: no model learns from its problem."""


def is_test_row(details: Mapping[str, Any]) -> bool:
    """Whether the details of an imported or recorded row label it as a row of a test set."""
    return TEST_ROW.items() <= details.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of results. None means: could not be measured here, never: zero.

    Energy per GEMM (see `energy_mj`) and TFLOP/s are derived where rows are read and are not stored. Each field declares
    its column; `farm.schema.results` has all columns of a row.
    """

    runtime_ms: Annotated[float, Column("median time of one GEMM", "ms", Group.TIME, label="median ms", positive=True)]
    runtime_q1_ms: Annotated[
        float,
        Column("first quartile of the time of one GEMM", "ms", Group.TIME, label="first quartile ms"),
    ]
    runtime_q3_ms: Annotated[
        float,
        Column("third quartile of the time of one GEMM", "ms", Group.TIME, label="third quartile ms"),
    ]
    runtime_min_ms: Annotated[float, Column("shortest time of one GEMM", "ms", Group.TIME, label="fastest ms")]
    runtime_rse: Annotated[
        float,
        Column(
            "relative standard error of the mean time (0.005 is 0.5%)",
            "",
            Group.TIME,
            label="standard error %",
            percent=True,
            unstated=0.0,
        ),
    ]
    samples: Annotated[int, Column("timed samples", "", Group.TIME, label="samples", positive=True, unstated=1)]
    stop_reason: Annotated[
        str,
        Column(
            "why timing stopped: `converged`, `settled`, `budget`, `max_samples` or `recorded`",
            "",
            Group.TIME,
            label="stopped because",
            unstated="recorded",
        ),
    ]
    # Cold: operands rotate over at least twice the size of the last-level cache.
    l2: Annotated[
        str,
        Column(
            "`cold`, `warm` or `unknown`: whether operands were in the last-level cache",
            "",
            Group.OPERANDS,
            label="cache",
            unstated="unknown",
        ),
    ]
    # Where the rules ask for it.
    runtime_warm_ms: Annotated[
        float | None,
        Column("median time with the operands in the cache", "ms", Group.TIME, label="median ms, warm cache"),
    ] = None
    # Both times: see docs/measuring.md. None where the protocol does not measure it.
    runtime_burst_ms: Annotated[
        float | None,
        Column(
            "median time of one GEMM in the first milliseconds after a rest, before a power limiter answers",
            "ms",
            Group.TIME,
            label="burst ms",
            positive=True,
        ),
    ] = None
    runtime_burst_rse: Annotated[
        float | None,
        Column(
            "relative standard error of `runtime_burst_ms`",
            "",
            Group.TIME,
            label="burst's standard error %",
            percent=True,
        ),
    ] = None
    burst_samples: Annotated[
        int | None, Column("timed samples of `runtime_burst_ms`", "", Group.TIME, label="burst's samples")
    ] = None
    runtime_settled_ms: Annotated[
        float | None,
        Column(
            "time of one GEMM under continued load, at the clocks that the card holds",
            "ms",
            Group.TIME,
            label="settled ms",
            positive=True,
        ),
    ] = None
    runtime_settled_rse: Annotated[
        float | None,
        Column(
            "relative standard error of `runtime_settled_ms`",
            "",
            Group.TIME,
            label="settled's standard error %",
            percent=True,
        ),
    ] = None
    settled_samples: Annotated[
        int | None, Column("timed samples of `runtime_settled_ms`", "", Group.TIME, label="settled's samples")
    ] = None
    # Mean over a window in which nothing but this kernel ran.
    power_w: Annotated[
        float | None,
        Column("mean power while nothing but this kernel ran", "W", Group.POWER, label="power W", positive=True),
    ] = None
    power_rse: Annotated[
        float | None,
        Column("relative standard error of the power", "", Group.POWER, label="power's error %", percent=True),
    ] = None
    power_source: Annotated[str | None, Column("what the power was read from", "", Group.POWER, label="power from")] = (
        None
    )
    power_disagrees: Annotated[
        bool | None,
        Column(
            "whether two sources of power are further apart than their noise and 5%",
            "",
            Group.POWER,
            label="sources disagree",
        ),
    ] = None
    idle_power_w: Annotated[float | None, Column("power at rest", "W", Group.POWER, label="idle power W")] = None
    power_limit_w: Annotated[float | None, Column("power limit", "W", Group.POWER, label="power limit W")] = None
    sm_clock_mhz: Annotated[
        int | None, Column("SM clock while the kernel ran", "MHz", Group.CLOCKS, label="SM clock MHz")
    ] = None
    memory_clock_mhz: Annotated[
        int | None,
        Column("memory clock while the kernel ran", "MHz", Group.CLOCKS, label="memory clock MHz"),
    ] = None
    temperature_before_c: Annotated[
        int | None,
        Column("temperature before the measurement", "°C", Group.CLOCKS, label="temperature before °C"),
    ] = None
    temperature_c: Annotated[
        int | None,
        Column("temperature after the measurement", "°C", Group.CLOCKS, label="temperature after °C"),
    ] = None
    throttle_reasons: Annotated[
        str | None, Column("what held the clocks down, with commas; `none`", "", Group.CLOCKS, label="throttled by")
    ] = None
    power_limited: Annotated[
        bool | None,
        Column(
            "whether the power limiter makes this GEMM slower: told from its power, clocks and times",
            "",
            Group.TIME,
            label="power-limited",
        ),
    ] = None
    # None where the source cannot say.
    verify_error: Annotated[
        float | None,
        Column(
            "the largest error as a share of its bound's scale", "", Group.VERIFICATION, label="largest error, relative"
        ),
    ] = None
    result_digest: Annotated[
        str | None,
        Column(
            "digest of D's bits, 16 hexadecimal digits: equal for the same kernel, library, operands and type of device",
            "",
            Group.VERIFICATION,
            label="digest of D",
        ),
    ] = None
    # Where the rules ask for them.
    deterministic: Annotated[
        bool | None,
        Column("whether repeated launches gave the same bits", "", Group.VERIFICATION, label="deterministic"),
    ] = None
    batch_invariant: Annotated[
        bool | None,
        Column(
            "whether a row of D has the same bits where m is smaller", "", Group.VERIFICATION, label="batch-invariant"
        ),
    ] = None
    distribution: Annotated[
        str,
        Column(
            "what the operands were filled with: `uniform`, or where they differ `a=normal*0.02 b=file:4f2a91c0 c=zeros`",
            "",
            Group.OPERANDS,
            label="distribution",
            unstated="unknown",
        ),
    ] = "uniform"
    seed: Annotated[int, Column("seed of the operands", "", Group.OPERANDS, label="seed")] = 0
    protocol: Annotated[
        str,
        Column(
            "the rules by which times were taken, see docs/measuring.md: `farm`, `do-bench` …; `unknown` in some imports",
            "",
            Group.TIME,
            label="protocol",
            unstated=UNKNOWN_PROTOCOL,
            server_default=f"'{ProtocolName.FARM}'",
        ),
    ] = ProtocolName.FARM.value
    source: Annotated[Source, Column("`measured` here, `recorded` (replayed from a file) or `imported`")] = (
        Source.MEASURED
    )
    clock_policy: Annotated[
        str | None,
        Column(
            "`default`, or how clocks were locked, as in `locked:1500` (MHz)", "", Group.CLOCKS, label="clock policy"
        ),
    ] = None
    kernel_hash: Annotated[str | None, Column("hash that names the built kernel", "", Group.KERNEL, label="hash")] = (
        None
    )
    cost_s: Annotated[
        float,
        Column("device time that the row cost, everything included", "s", Group.TIME, label="s that it took in all"),
    ] = 0.0
    window_s: Annotated[
        float,
        Column(
            "the part of `cost_s` in which the kernel ran to be timed or to have its power read",
            "s",
            Group.TIME,
            label="s in which the GEMM ran",
            server_default="0",
        ),
    ] = 0.0
    # Equal for many rows, and stored once.
    environment: Annotated[dict[str, Any], Column("versions of drivers and libraries")] = field(default_factory=dict)
    details: Annotated[
        dict[str, Any], Column("what only some kernel families or devices have, as registers and occupancy")
    ] = field(default_factory=dict)


def energy_mj(power_w: float | None, runtime_ms: float, runtime_settled_ms: float | None) -> float | None:
    """Energy of one GEMM, mJ = W x ms: its power times its settled time, or times its runtime where that is not known.

    As the views derive it. None without power.
    """
    if power_w is None:
        return None
    return power_w * (runtime_ms if runtime_settled_ms is None else runtime_settled_ms)
