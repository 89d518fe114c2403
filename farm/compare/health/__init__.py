"""The health of a fleet: devices beside their peers and beside their own past, and what condition they are in.

`asking` reads and judges; all else but `reading` is pure. What is said, and asked, loads no numpy.
"""

from __future__ import annotations

from farm.compare.health.assessment import (
    ALPHA,
    TOLERANCE,
    WINDOW,
    DeviceHealth,
    Estimate,
    Finding,
    FleetReport,
    HealthQuery,
    HealthVerdict,
    Since,
)

__all__ = [
    "ALPHA",
    "TOLERANCE",
    "WINDOW",
    "DeviceHealth",
    "Estimate",
    "Finding",
    "FleetReport",
    "HealthQuery",
    "HealthVerdict",
    "Since",
]
