"""The figures of a plan, which commands print and the API returns. `summary` computes them."""

from __future__ import annotations

from dataclasses import dataclass

from farm.both_times import protocol_text
from farm.formatting import scalars_text
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS, added_columns
from farm.groups import NONE
from farm.protocols import ProtocolName
from farm.scale import Scale
from farm.sparsity import Sparsity

MAX_REASONS = 10

SAMPLE_PROBLEMS = 8
"""Problems of a domain that a plan shows."""


@dataclass(frozen=True, slots=True)
class PlanCount:
    """The number of jobs of one kernel family for one pool, and how many of them are known to be invalid."""

    family: str
    pool: str
    jobs: int
    invalid: int


@dataclass(frozen=True, slots=True)
class InvalidGroup:
    """Invalid jobs whose reasons differ in numbers alone."""

    # With … in place of the numbers that differ.
    reason: str
    count: int
    # The canonical form of the first such configuration, and the reason in its own words.
    example: str
    example_reason: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Configurations that make no job for a target, because their family runs on another kind of device."""

    family: str
    target: str
    configurations: int


@dataclass(frozen=True, slots=True)
class RoundCount:
    """The maximum number of jobs in one round of a search, and an upper estimate of their device time in seconds."""

    round: int
    jobs: int
    # Whether its rules cost less than those of the campaign.
    short: bool
    estimated_seconds: float


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The minimum, median and maximum of some numbers. For an even count, the median is the lower of the two middle ones."""

    min: int
    median: int
    max: int


@dataclass(frozen=True, slots=True)
class DrawnTypes:
    """The problems of one combination of element types that were drawn from a domain."""

    # inputs:output:accumulator
    types: str
    problems: int
    # What is measured of them: different kernels of each problem.
    configurations: int
    # None without a problem: the constraints exclude all, or no kernel runs any.
    m: Quantiles | None
    n: Quantiles | None
    k: Quantiles | None
    flops: Quantiles | None
    batch: Quantiles | None = None
    # The values that some problem has.
    scale: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    sparsity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnProblem:
    """A problem that was drawn from a domain, and the kernels that were drawn for it."""

    shape: str
    types: str
    layout: str
    alpha: float
    beta: float
    kernels: tuple[str, ...]
    batch: int = 1
    scale: str = Scale.NONE.value
    fused: str = Fusion.NONE.value
    sparsity: str = Sparsity.NONE.value
    # A domain has none.
    groups: str = NONE

    @property
    def problem(self) -> str:
        """The shape, and what is not as usual."""
        return self.shape + scalars_text(self.alpha, self.beta, **added_columns(self))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn from the domain of a campaign."""

    # Fewer than requested if the domain has no more that run.
    problems: int
    requested: int
    configurations: int
    by_types: tuple[DrawnTypes, ...]
    # The first `SAMPLE_PROBLEMS`.
    sample: tuple[DrawnProblem, ...]

    @property
    def added(self) -> tuple[str, ...]:
        """The `ADDED_COLUMNS` in which a problem is not as usual."""
        unusual = {
            name
            for name in ("scale", "fused", "sparsity")
            if {value for of in self.by_types for value in getattr(of, name)} - {ADDED_COLUMNS[name]}
        }
        if any(of.batch is not None and of.batch.max > 1 for of in self.by_types):
            unusual.add("batch")
        return tuple(name for name in ADDED_COLUMNS if name in unusual)


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The figures of a plan. A configuration that two blocks share counts twice here, and is measured once.

    Of a campaign with a domain, `configurations` counts every kernel that the constraints leave for the problems that were
    drawn, and `excluded_by_constraints` the others. `jobs` and `drawn` count what is measured.
    """

    configurations: int
    excluded_by_constraints: int
    jobs: int
    counts: tuple[PlanCount, ...]
    # The most frequent first; at most `MAX_REASONS`, and the number of jobs with other reasons.
    invalid: tuple[InvalidGroup, ...]
    invalid_for_other_reasons: int
    not_applicable: tuple[NotApplicable, ...]
    # Different kernels that are built ahead of time.
    binaries: int
    # Upper estimates of device time by pool, in seconds; the devices of a pool share it.
    estimated_seconds: dict[str, float]
    # Of a search; the other figures are of its first round, but for the estimates, which are of all.
    rounds: tuple[RoundCount, ...] = ()
    # None for a campaign without a domain.
    drawn: Drawn | None = None
    # The rules by which times are taken.
    protocol: ProtocolName = ProtocolName.FARM

    @property
    def protocol_text(self) -> str | None:
        """The protocol and its meaning; None for the usual one."""
        return None if self.protocol is ProtocolName.FARM else protocol_text(self.protocol)
