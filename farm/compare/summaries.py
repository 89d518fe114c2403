"""The result of a comparison as plain data: what the API sends and the command line prints. It imports no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from farm.campaign.figures import InvalidGroup
from farm.registry.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median over shapes of the median ratio of a shape's pairs. The interval is None where there are too few shapes."""

    ratio: float
    low: float | None
    high: float | None
    shapes: int
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSummary:
    """Ratios of a group's figures to those of the baseline, over some of the configurations that both have."""

    configurations: int
    shapes: int
    time: Ratio
    tflops: Ratio
    power: Ratio | None
    energy: Ratio | None
    burst: Annotated[
        Ratio | None,
        Field(
            description="of the burst times, over the pairs that have them; null where they differ from the compared times by "
            "2% or less in all of these pairs"
        ),
    ]
    # Configurations by the verdict on their times.
    faster: int
    ties: int
    slower: int
    unsure: int
    baseline_roofline: Annotated[
        float | None,
        Field(description="median share of the roofline that the baseline reaches; null without card data"),
    ]
    roofline: Annotated[float | None, Field(description="the same of the group")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of 1e15 operations, as a mix of every shared configuration once; the interval is a bootstrap over shapes."""

    baseline: float | None
    side: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    configurations: int


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Ratios over all pairs and by element type, size and bound, and the costs. Empty where there is no pair."""

    overall: RatioSummary | None = None
    by_type: Mapping[str, RatioSummary] = field(default_factory=dict)
    by_size: Mapping[str, RatioSummary] = field(default_factory=dict)
    by_bound: Mapping[str, RatioSummary] = field(default_factory=dict)
    money_per_pflop: Cost | None = None
    co2_g_per_pflop: Cost | None = None
    top: Annotated[
        tuple[Mapping[str, Any], ...], Field(description="the pairs that differ most in time, if requested")
    ] = ()


@dataclass(frozen=True, kw_only=True)
class PredictedFindings(Findings):
    """Findings on pairs with one measured and one predicted figure."""

    baseline_predicted: Annotated[int, Field(description="pairs whose baseline figure is predicted")]
    side_predicted: Annotated[int, Field(description="pairs whose other figure is predicted")]


@dataclass(frozen=True, slots=True)
class ComparedDevice:
    """A device whose rows are compared."""

    id: int
    uuid: str
    type: str
    host: str
    # What the file of an imported or recorded device says about itself.
    provenance: Annotated[str | None, Field(exclude=True)] = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSummary:
    """What a model predicted for the configurations that a group lacks."""

    model: str
    version: str
    device_type: str
    sources: Annotated[str | None, Field(description="origin of the model's training rows; null if unknown")]
    conditions: Annotated[
        Conditions | None,
        Field(description="where the training rows come from and how they were measured; null if unknown"),
    ] = None
    standing: Annotated[str, Field(description="champion, or challenger where the device type has no champion")]
    predicted: Annotated[int, Field(description="configurations with a prediction")]
    not_learned: Annotated[int, Field(description="configurations of a family, type or layout unknown to the model")]
    outside: Annotated[int, Field(description="configurations outside the measured range, which are left out")]
    error_pct: Annotated[
        float | None, Field(description="median distance from a predicted time to its upper bound, in %")
    ]


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """Rows, devices and coverage of one comparison group."""

    name: str
    rows: int
    configurations: int
    missing: Annotated[int, Field(description="configurations that another group has and this one lacks")]
    protocols: Annotated[Mapping[str, int], Field(description="rows by the protocol that they were measured by")]
    devices: tuple[ComparedDevice, ...]
    gpu: Annotated[str | None, Field(description="the card's name, where all devices are of one known card")]
    forecast: ForecastSummary | None = None


@dataclass(frozen=True, kw_only=True)
class GroupComparison(GroupSummary, Findings):
    """A group compared with the baseline: measured pairs, and separately pairs with a predicted figure."""

    predicted: PredictedFindings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A group, or its configurations of one element type, that is slower than the baseline by more than allowed."""

    side: str
    of: Annotated[str, Field(description="all, or an element type")]
    time: Ratio
    confidence: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FillSummary:
    """A campaign that measures what a group lacks, or the reason why there is none."""

    side: str
    missing: int
    why_not: str | None = None
    cannot_run: int = 0
    left_out: tuple[InvalidGroup, ...] = ()
    # By the name of another campaign, how many of the missing configurations it is going to measure.
    underway: Mapping[str, int] = field(default_factory=dict)
    campaign: str | None = None
    digest: str | None = None
    targets: tuple[Any, ...] = ()
    configurations: int = 0
    jobs: int = 0
    estimated_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # Whether the campaign was stored as a new one, and how many of its jobs are new.
    new: bool = False
    new_jobs: int = 0
