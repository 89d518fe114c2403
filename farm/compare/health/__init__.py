"""Fleet health: compares devices with their peers and with their own past.

`fleet_query` reads the rows; all other modules are pure. Importing this package loads no numpy.
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
