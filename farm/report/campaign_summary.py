"""The short report of a campaign: rows by device, and the best and worst configurations."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from farm.db import campaigns, measurements

_ON = text("""
SELECT device_type, device_name, host, source, count(*) AS rows,
    count(DISTINCT (m, n, k)) AS shapes, count(power_w) AS rows_with_power,
    sum(cost_s) AS device_s, percentile_cont(0.5) WITHIN GROUP (ORDER BY runtime_rse) * 100 AS median_rse_pct,
    max(verify_error) AS largest_verify_error
FROM v_measurements WHERE campaign_id = :campaign_id
GROUP BY device_type, device_name, host, source ORDER BY device_type, host
""")


_ROUNDS = text("SELECT count(DISTINCT round) FROM lanes WHERE campaign_id = :campaign_id")


def summarise(connection: Connection, campaign_id: int, *, best: int = 3) -> dict[str, Any]:
    """Counts by state, rounds, measurements by device, and the `best` and worst configurations per device type by TFLOP/s.

    The measurements are those under the campaign's own rules: of a search, those of its last round.
    """
    devices = [dict(row) for row in connection.execute(_ON, {"campaign_id": campaign_id}).mappings()]
    ranked = {}
    for device_type in sorted({device["device_type"] for device in devices}):
        rows = {
            end: measurements.read(
                connection, campaign_id=campaign_id, device_type=device_type, order_by=order, limit=best
            )
            for end, order in (("best", "-tflops"), ("worst", "tflops"))
        }
        ranked[device_type] = rows
    rounds: int = connection.execute(_ROUNDS, {"campaign_id": campaign_id}).scalar_one()
    counts = campaigns.counts(connection, campaign_id)
    return {"counts": counts, "rounds": rounds, "devices": devices, "ranked": ranked}


_LARGEST = text("""
SELECT * FROM v_measurements WHERE campaign_id = :campaign_id AND device_type = :device_type
ORDER BY flops DESC, tflops DESC, measurement_id LIMIT 1
""")


def largest_measured(connection: Connection, campaign_id: int, device_type: str) -> dict[str, Any] | None:
    """The fastest measurement of the campaign's largest problem: a prediction is compared with it."""
    row = connection.execute(_LARGEST, {"campaign_id": campaign_id, "device_type": device_type}).mappings()
    found = row.one_or_none()
    return None if found is None else dict(found)
