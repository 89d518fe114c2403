"""What became of the jobs of a campaign that have ended: with a row of results, or without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from farm.db.measurements import RESULT_COLUMNS

_NARROWED = """
  AND (CAST(:device_type AS text) IS NULL OR device_type = :device_type)
  AND (CAST(:family AS text) IS NULL OR family = :family)
ORDER BY job_id, device_type
"""
_MEASURED = text(f"""
SELECT * FROM (
    SELECT r.job_id, p.device_uuid AS only_device, {", ".join(f"r.{name}" for name in RESULT_COLUMNS)}
    FROM v_measurements r
    JOIN jobs j ON j.id = r.job_id
    JOIN lanes l ON l.id = j.lane_id
    JOIN pools p ON p.id = l.pool_id
    WHERE r.campaign_id = :campaign_id
) measured WHERE true {_NARROWED}
""")


def measured(
    connection: Connection, campaign_id: int, *, device_type: str | None = None, family: str | None = None
) -> list[dict[str, Any]]:
    """The rows of a campaign's jobs in the order of the jobs' ids: `RESULT_COLUMNS`, `job_id` and `only_device`.

    `only_device` is the UUID of the device that the job's target names, None where it names types of devices.
    """
    return _read(connection, _MEASURED, campaign_id, device_type, family)


# Few jobs of a large campaign fail: they are found by their failures. One that was refused before any device had it
# is refused on every type of its pool, and is listed for each.
_WITHOUT = text(f"""
SELECT * FROM (
    SELECT j.id AS job_id, j.state, j.attempts, p.device_uuid AS only_device, t.device_type, fd.uuid AS device_uuid,
        f.kind AS error_class, f.message AS error, f.at AS failed_at,
        c.m, c.n, c.k, c.ab, c.cd, c.acc, c.layout, c.alpha, c.beta, c.family, c.parameters
    FROM (
        SELECT DISTINCT ON (f.job_id) f.* FROM lanes l JOIN failures f ON f.lane_id = l.id
        WHERE l.campaign_id = :campaign_id ORDER BY f.job_id, f.id DESC
    ) f
    JOIN jobs j ON j.id = f.job_id AND j.state IN ('invalid', 'dead')
    JOIN lanes l ON l.id = j.lane_id
    JOIN pools p ON p.id = l.pool_id
    JOIN configurations c ON c.id = j.configuration_id
    LEFT JOIN devices fd ON fd.id = f.device_id
    LEFT JOIN devices pd ON pd.uuid = p.device_uuid
    CROSS JOIN LATERAL unnest(CASE
        WHEN fd.type IS NOT NULL THEN ARRAY[fd.type]
        WHEN p.device_types IS NOT NULL THEN p.device_types
        ELSE ARRAY[coalesce(pd.type, 'unknown')]
    END) AS t(device_type)
) ended WHERE true {_NARROWED}
""")


def without_result(
    connection: Connection, campaign_id: int, *, device_type: str | None = None, family: str | None = None
) -> list[dict[str, Any]]:
    """The invalid and dead jobs of a campaign in the order of their ids, each with its configuration and last failure.

    `device_type` is that of the device on which it failed last, or `unknown` for a device that was never seen;
    `device_uuid` is None where no device had it.
    """
    return _read(connection, _WITHOUT, campaign_id, device_type, family)


def _read(
    connection: Connection, statement: Any, campaign_id: int, device_type: str | None, family: str | None
) -> list[dict[str, Any]]:
    parameters: Mapping[str, Any] = {"campaign_id": campaign_id, "device_type": device_type, "family": family}
    return [dict(row) for row in connection.execute(statement, parameters).mappings()]
