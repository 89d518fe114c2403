"""What a measurement holds, and the rules under which it is taken."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ALL_FAMILIES = "all"
"""In errors by kernel family: those over every row."""


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimingRules(_Rules):
    """When the timing of one configuration stops."""

    target_rse: float = Field(default=0.005, gt=0, lt=1, description="stop at this relative standard error of the mean")
    min_samples: int = Field(default=10, ge=2, le=100_000, description="never fewer samples than this")
    max_samples: int = Field(default=1000, ge=2, le=1_000_000, description="never more samples than this")
    max_seconds: float = Field(default=0.5, gt=0, le=600, description="time budget of the samples of one configuration")
    warmup_seconds: float = Field(default=0.02, ge=0, le=60, description="time spent running before the first sample")
    warm_l2: bool = Field(default=False, description="true: measure the time with operands in the L2 as well")


Distribution = Literal["uniform", "normal", "zeros", "ones", "sparse"]


class OperandRules(_Rules):
    """What A, B and C are filled with. The distribution changes the power that a card draws, so it is part of a row."""

    distribution: Distribution = Field(
        default="uniform",
        description="uniform: on [-1, 1]; normal: mean 0, deviation 1; zeros; ones; sparse: uniform, but half are 0",
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the operands")


PowerWish = Literal["none", "fraction", "all"]


class MeasuringRules(_Rules):
    """The `measure` section of a campaign file."""

    timing: TimingRules = TimingRules()
    operands: OperandRules = OperandRules()
    power: PowerWish = Field(default="none", description="measure power of all, of a fraction, or of none")
    power_fraction: float = Field(default=0.1, gt=0, le=1, description="the share of configurations, for fraction")
    power_rse: float = Field(default=0.02, gt=0, lt=1, description="stop at this relative standard error of the power")
    power_seconds: float = Field(default=1.0, ge=0.3, le=60, description="the longest power window")
    job_seconds: float = Field(default=120.0, gt=0, le=3600, description="a job that takes longer is ended as hung")
    max_attempts: int = Field(default=3, ge=1, le=20, description="attempts before a failing job is dead")

    def wants_power(self, configuration_id: uuid.UUID) -> bool:
        """Whether a configuration's power is to be measured. A fraction is the same on every device and every time."""
        if self.power == "fraction":
            return configuration_id.int >> 64 < self.power_fraction * 2**64
        return self.power == "all"


class Source(StrEnum):
    """Where a row's numbers come from. Only `measured` rows train a model unless asked otherwise."""

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

    Energy per GEMM (see `energy_mj`) and TFLOP/s are derived where rows are read and are not stored.
    """

    source: Source = Source.MEASURED
    # Timing: the distribution of single-GEMM times.
    runtime_ms: float  # median
    runtime_q1_ms: float
    runtime_q3_ms: float
    runtime_min_ms: float
    runtime_rse: float  # relative standard error of the mean
    samples: int
    stop_reason: str  # converged | settled | budget | max_samples | recorded
    l2: str  # cold: operands rotated over at least twice the last-level cache; warm; unknown
    runtime_warm_ms: float | None = None  # median with the operands of one set in the cache, where that was asked for
    # Mean of one GEMM while its power was read, at the clocks that the card had settled at; None without power, or
    # where the device cannot tell.
    runtime_sustained_ms: float | None = None
    # Power: mean over a window in which nothing but this kernel ran.
    power_w: float | None = None
    power_source: str | None = None
    power_rse: float | None = None  # relative standard error
    power_disagrees: bool | None = None  # two sources are further apart than their noise and 5%
    # Telemetry around the window.
    idle_power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_before_c: int | None = None
    temperature_c: int | None = None  # after
    throttle_reasons: str | None = None
    # Verification: the largest error as a share of its bound's scale; None where the source cannot say.
    verify_error: float | None = None
    # Operands.
    distribution: str = "uniform"
    seed: int = 0
    # Provenance.
    clock_policy: str | None = None  # default | locked:<MHz>
    kernel_hash: str | None = None
    # Seconds of device time that taking this row cost, everything included.
    cost_s: float = 0.0
    # Of these, the seconds in which the device ran the configuration to be timed or to have its power read.
    window_s: float = 0.0
    # Versions of what computed and measured; equal for many rows, stored once.
    environment: dict[str, Any] = field(default_factory=dict)
    # What only some families have: registers, occupancy, waves …
    details: dict[str, Any] = field(default_factory=dict)


MEASUREMENT_COLUMNS = tuple(f.name for f in fields(Measurement) if f.name != "environment")
"""The fields of a measurement that are columns of the table `measurements`, in order."""


def energy_mj(power_w: float | None, runtime_ms: float, runtime_sustained_ms: float | None) -> float | None:
    """Energy of one GEMM, mJ = W x ms: its power, times what it took while that was read, or else its runtime.

    As the views derive it. None without power.
    """
    if power_w is None:
        return None
    return power_w * (runtime_ms if runtime_sustained_ms is None else runtime_sustained_ms)
