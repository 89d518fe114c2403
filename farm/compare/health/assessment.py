"""The result of a health check: verdicts of devices, findings, and the estimates behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from farm.corruption import Corruption

ALPHA = 0.05
"""Probability of any alarm in a healthy fleet of any size."""

TOLERANCE = 0.03
"""A smaller difference in time is no alarm. Four equal H200s of one host differed by up to 0.3%, and cards of one type in a large
fleet by some percent (Sinha et al., Not All GPUs Are Created Equal, SC 2022)."""


class HealthVerdict(StrEnum):
    """The condition of a device, worst first; a possible cause of another condition comes before it."""

    QUARANTINED = "quarantined"
    GONE = "gone"  # its host no longer shows it
    SILENT = "silent"  # its worker disconnected without deregistering
    CORRUPTING = "corrupting"  # its results change, or have other bits than those of its peers
    FAILING = "failing"
    THROTTLED = "throttled"
    HOT = "hot"
    POWER_CAPPED = "power-capped"
    SLOW = "slow"
    DRIFTING = "drifting"
    REGRESSED = "regressed"  # slower since its driver, CUDA or another library changed
    DIFFERS = "differs"  # from its peers, without evidence of which one is wrong, or whether it matters
    UNKNOWN = "unknown"
    HEALTHY = "healthy"

    @property
    def alarms(self) -> bool:
        return self not in (HealthVerdict.UNKNOWN, HealthVerdict.HEALTHY)


_ORDER = {verdict: number for number, verdict in enumerate(HealthVerdict)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """The start of a condition: after `after` (None: present from the first row) and no later than `at`."""

    at: datetime
    after: datetime | None = None
    # Confidence that there was a change at all; None for an observed change.
    confidence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median over shapes with its interval: a factor, or a difference in °C."""

    value: float
    # None where there are too few shapes for the confidence.
    low: float | None
    high: float | None
    confidence: float
    shapes: int
    rows: int
    # The reference: `3 peers`, `its own past`.
    against: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault of a device, or a possible one with the verdict `unknown`."""

    verdict: HealthVerdict
    evidence: str
    advice: str
    since: Since | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    uuid: str
    type: str
    host: str
    verdict: HealthVerdict
    # Worst first. For a healthy or unknown device, the reason.
    findings: tuple[Finding, ...]
    # Estimates, also of healthy devices; None without comparable rows.
    time: Estimate | None = None
    energy: Estimate | None = None
    temperature: Estimate | None = None
    past: Estimate | None = None
    rows: int = 0  # in the window
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """The health of a fleet in a window of time."""

    since: datetime
    until: datetime
    tolerance: float
    alpha: float
    tests: int
    devices: tuple[DeviceHealth, ...]
    notes: tuple[str, ...] = ()

    @property
    def unwell(self) -> int:
        """Number of devices with an alarm."""
        return sum(device.verdict.alarms for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthQuery:
    """A request for a health check: the devices, and the limits for an alarm."""

    device_type: str | None = None
    host: str | None = None
    device: str | None = None
    # The window reaches from here to now. Earlier rows are the past.
    since: datetime | None = None
    tolerance: float = TOLERANCE
    alpha: float = ALPHA
    any_source: bool = False
    silent_after_s: float = 20.0


WINDOW = timedelta(days=7)
"""Default window: the last nights of a campaign that is measured every night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device of the fleet and what the farm knows of it without measurements."""

    id: int
    uuid: str
    type: str
    host: str
    state: str = "active"
    state_reason: str | None = None
    state_changed_at: datetime | None = None
    vanished_at: datetime | None = None
    last_seen_at: datetime | None = None
    silent: bool = False
    stopped: bool = False
    # Imported or recorded: it cannot measure.
    foreign: bool = False
    # From the driver, if known: the slowdown temperature and the default power limit.
    slowdown_c: float | None = None
    default_limit_w: float | None = None
    # In the window: measured jobs, and failed jobs that another device then measured.
    done: int = 0
    refuted: int = 0
    last_failure: str | None = None
    corruption: Corruption | None = None


def verdict_of(findings: Sequence[Finding]) -> HealthVerdict:
    """The worst verdict."""
    return min((finding.verdict for finding in findings), key=_ORDER.__getitem__)


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.verdict]))
