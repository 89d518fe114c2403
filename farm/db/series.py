"""Measurements over time: throughput, duty, power, clocks and temperature of devices, in equal steps. Read-only.

Postgres aggregates the rows of the range, so that the answer has a bounded size. The cost follows the rows of the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from farm.db.duty import REPLAYING
from farm.devices import IMPORTED_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a device measured in one step of the range. None: no row of the step has it."""

    device_uuid: str
    device_type: str
    host: str
    step: int
    rows: int
    window_s: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None


# The first statement reads the range once; the second one keeps the devices with most rows.
_STEPS = """
WITH steps AS MATERIALIZED (
    SELECT r.device_id,
        least(floor(extract(epoch FROM r.measured_at - CAST(:since AS timestamptz)) / :step_s), :steps - 1)::int AS step,
        count(*) AS rows, sum(r.window_s)::float8 AS window_s, avg(r.power_w)::float8 AS power_w,
        avg(r.sm_clock_mhz)::float8 AS sm_clock_mhz, max(r.temperature_c)::float8 AS temperature_c
    FROM measurements r
    WHERE r.measured_at >= :since AND r.measured_at < :until{condition}
    GROUP BY 1, 2
), kept AS (
    SELECT d.id, d.uuid, d.type, d.backend, h.name AS host, count(*) OVER () AS devices
    FROM (SELECT device_id, sum(rows) AS rows FROM steps GROUP BY device_id) s
    JOIN devices d ON d.id = s.device_id AND NOT starts_with(d.uuid, :imported) JOIN hosts h ON h.id = d.host_id
    ORDER BY s.rows DESC, d.uuid LIMIT :most
)
SELECT k.devices, k.uuid AS device_uuid, k.type AS device_type, k.host, s.step, s.rows,
    CASE WHEN k.backend <> ALL(:replaying) THEN s.window_s END AS window_s,
    s.power_w, s.sm_clock_mhz, s.temperature_c
FROM kept k JOIN steps s ON s.device_id = k.id ORDER BY k.host, k.uuid, s.step
"""


def steps(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    count: int,
    max_devices: int,
    campaign_id: int | None = None,
    device_ids: Sequence[int] | None = None,
) -> tuple[list[Step], int]:
    """The steps that have rows, by host, device and time, and the number of devices that have any.

    Args:
        connection: to the database.
        since: the first moment of the range.
        until: the end of the range.
        count: the number of steps.
        max_devices: the number of devices to return: those with most rows.
        campaign_id: only rows of this campaign.
        device_ids: only rows of these devices.
    """
    condition = "" if campaign_id is None else " AND r.campaign_id = :campaign_id"
    condition += "" if device_ids is None else " AND r.device_id = ANY(:device_ids)"
    parameters: dict[str, Any] = {
        "since": since,
        "until": until,
        "steps": count,
        "step_s": (until - since).total_seconds() / count,
        "most": max_devices,
        "campaign_id": campaign_id,
        "device_ids": None if device_ids is None else list(device_ids),
        "imported": IMPORTED_PREFIX,
        "replaying": REPLAYING,
    }
    used = {name: value for name, value in parameters.items() if f":{name}" in _STEPS or f":{name}" in condition}
    found = [dict(row) for row in connection.execute(text(_STEPS.format(condition=condition)), used).mappings()]
    devices = max((row.pop("devices") for row in found), default=0)
    return [Step(**row) for row in found], devices
