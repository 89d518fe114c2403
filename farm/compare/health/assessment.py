"""What the health of a fleet is said with: a verdict for each device, its findings, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

ALPHA = 0.05
"""How often a fleet with nothing wrong may raise an alarm at all, however many devices it has."""

TOLERANCE = 0.03
"""A smaller difference in time is no alarm: four equal H200s of a host were within 0.3% of each other, cards of a large fleet
of one type within some percent (Sinha et al., Not All GPUs Are Created Equal, SC 2022)."""


class HealthVerdict(StrEnum):
    """What is said of a device; the worst first, and what may be the cause of others before these."""

    QUARANTINED = "quarantined"
    GONE = "gone"  # its host no longer shows it
    SILENT = "silent"  # its worker disconnected without deregistering
    FAILING = "failing"
    THROTTLED = "throttled"
    HOT = "hot"
    POWER_CAPPED = "power-capped"
    SLOW = "slow"
    DRIFTING = "drifting"
    REGRESSED = "regressed"  # slower since its driver, CUDA or another library changed
    DIFFERS = "differs"  # from its peers, and nobody can say which of them is wrong, or whether it matters
    UNKNOWN = "unknown"
    HEALTHY = "healthy"

    @property
    def alarms(self) -> bool:
        return self not in (HealthVerdict.UNKNOWN, HealthVerdict.HEALTHY)


_ORDER = {verdict: number for number, verdict in enumerate(HealthVerdict)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """When something began: after `after` (None: it was so from the first row on), by `at`."""

    at: datetime
    after: datetime | None = None
    # That there was a change at all, and not always the same; None where it was seen and not estimated.
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
    # What it is beside: `3 peers`, `its own past`.
    against: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a device, or, with the verdict `unknown`, may be."""

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
    # The worst first; of a device that is healthy or unknown, why.
    findings: tuple[Finding, ...]
    # What was estimated, whatever came out; None where there was nothing to go by.
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
    def unwell(self) -> tuple[DeviceHealth, ...]:
        return tuple(device for device in self.devices if device.verdict.alarms)

    def to_json(self) -> dict[str, Any]:
        """The whole document; times are datetimes."""
        return {"unwell": len(self.unwell), **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthQuery:
    """Whose health, and from what on something is worth an alarm."""

    device_type: str | None = None
    host: str | None = None
    device: str | None = None
    # The window that is looked at reaches from here to now; what is before it is the past.
    since: datetime | None = None
    tolerance: float = TOLERANCE
    alpha: float = ALPHA
    any_source: bool = False
    silent_after_s: float = 20.0


WINDOW = timedelta(days=7)
"""What counts as now, unless said otherwise: the last nights of a campaign that is measured every night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device of the fleet, as the farm knows it."""

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
    # Imported or recorded: nobody measures on it.
    foreign: bool = False
    # Where the driver says so: the temperature from which on the card slows down, and the limit that it comes with.
    slowdown_c: float | None = None
    default_limit_w: float | None = None
    # In the window: jobs that it measured, and jobs that failed on it and that another device then measured.
    done: int = 0
    refuted: int = 0
    last_failure: str | None = None


def verdict_of(findings: Sequence[Finding]) -> HealthVerdict:
    """The worst of them."""
    return min((finding.verdict for finding in findings), key=_ORDER.__getitem__)


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.verdict]))
