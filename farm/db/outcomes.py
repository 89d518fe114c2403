"""Ended jobs of a campaign, with or without a result."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from farm.db.filters import COLUMNS, EVERYTHING, Filter, computed
from farm.db.problem_sql import PROBLEM
from farm.gemm import PROBLEM_COLUMNS
from farm.schema.results import EXPORTED

_NARROWED = """
  AND (CAST(:device_type AS text) IS NULL OR device_type = :device_type)
  AND (CAST(:family AS text) IS NULL OR family = :family)
ORDER BY job_id, device_type
"""
_MEASURED = f"""
SELECT job_id, only_device, {", ".join(EXPORTED)} FROM (
    SELECT r.*, p.device_uuid AS only_device
    FROM v_measurements r
    JOIN jobs j ON j.id = r.job_id
    JOIN lanes l ON l.id = j.lane_id
    JOIN pools p ON p.id = l.pool_id
    WHERE r.campaign_id = :campaign_id
) measured
"""


def measured(
    connection: Connection,
    campaign_id: int,
    *,
    device_type: str | None = None,
    family: str | None = None,
    only: Filter = EVERYTHING,
) -> list[dict[str, Any]]:
    """The rows of a campaign's jobs in the order of the jobs' ids: `EXPORTED`, `job_id` and `only_device`.

    `only_device` is the UUID of the device that the job's target names, None where it names types of devices.
    """
    return _read(connection, _MEASURED, campaign_id, device_type, family, only)


_KNOWN = (
    "job_id", "state", "attempts", "only_device", "device_type", "device_uuid", "error_class", "error", "failed_at",
    *PROBLEM_COLUMNS, "family", "parameters",
)  # fmt: skip
# What a filter may ask of such a job beside these: derived as in v_measurements, or without a value, of its type there.
_DERIVED = ("campaign", "host", "measured_at", "flops", "bytes", "intensity")
_WITHOUT_VALUE = [name for name in COLUMNS if name not in (*_KNOWN, *_DERIVED)]
# Few jobs of a large campaign fail: they are found by their failures. One that was refused before any device had it
# is refused on every type of its pool, and is listed for each.
_WITHOUT = f"""
SELECT {", ".join(_KNOWN)} FROM (
    SELECT j.id AS job_id, j.state, j.attempts, p.device_uuid AS only_device, t.device_type, fd.uuid AS device_uuid,
        f.kind AS error_class, f.message AS error, f.at AS failed_at,
        {PROBLEM}, c.family, c.parameters,
        g.name AS campaign, h.name AS host, f.at AS measured_at, w.flops, w.bytes, w.flops / w.bytes AS intensity,
        {", ".join(f"none.{name}" for name in _WITHOUT_VALUE)}
    FROM (
        SELECT DISTINCT ON (f.job_id) f.* FROM lanes l JOIN failures f ON f.lane_id = l.id
        WHERE l.campaign_id = :campaign_id ORDER BY f.job_id, f.id DESC
    ) f
    JOIN jobs j ON j.id = f.job_id AND j.state IN ('invalid', 'dead')
    JOIN lanes l ON l.id = j.lane_id
    JOIN campaigns g ON g.id = l.campaign_id
    JOIN pools p ON p.id = l.pool_id
    JOIN configurations c ON c.id = j.configuration_id
    LEFT JOIN devices fd ON fd.id = f.device_id
    LEFT JOIN hosts h ON h.id = fd.host_id
    LEFT JOIN devices pd ON pd.uuid = p.device_uuid
    CROSS JOIN LATERAL unnest(CASE
        WHEN fd.type IS NOT NULL THEN ARRAY[fd.type]
        WHEN p.device_types IS NOT NULL THEN p.device_types
        ELSE ARRAY[coalesce(pd.type, 'unknown')]
    END) AS t(device_type)
    CROSS JOIN LATERAL (
        SELECT 2.0::double precision * c.batch * c.m * c.n * c.k AS flops,
            gemm_bytes(c.m, c.n, c.k, c.ab, c.cd, c.beta, c.batch, c.scale, c.fused, c.groups, c.sparsity) AS bytes
    ) w
    LEFT JOIN (SELECT {", ".join(_WITHOUT_VALUE)} FROM v_measurements WHERE false) none ON true
) ended
"""


def without_result(
    connection: Connection,
    campaign_id: int,
    *,
    device_type: str | None = None,
    family: str | None = None,
    only: Filter = EVERYTHING,
) -> list[dict[str, Any]]:
    """The invalid and dead jobs of a campaign in the order of their ids, each with its configuration and last failure.

    For `only`, such a job was measured when it failed last, and has no value in any column that a measurement fills.
    `device_type` is that of the device on which it failed last, or `unknown` for a device that was never seen;
    `device_uuid` is None where no device had it.
    """
    return _read(connection, _WITHOUT, campaign_id, device_type, family, only)


def _read(
    connection: Connection, rows: str, campaign_id: int, device_type: str | None, family: str | None, only: Filter
) -> list[dict[str, Any]]:
    parameters = {"campaign_id": campaign_id, "device_type": device_type, "family": family}
    statement = text(f"{rows} WHERE {only.sql} {_NARROWED}")
    with computed(only):
        return [dict(row) for row in connection.execute(statement, {**parameters, **only.values}).mappings()]
