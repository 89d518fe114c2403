"""Configurations under given rules: measured runtimes, and campaigns with open jobs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, text

from farm.db.device_sessions import OVERLAPPED

# Rounds of a search that have rules of their own were measured under those.
_RUNTIMES = text(f"""
SELECT r.configuration_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY r.runtime_ms)::float8 AS runtime_ms
FROM measurements r
JOIN campaigns c ON c.id = r.campaign_id AND c.rules = CAST(:rules AS jsonb)
JOIN devices d ON d.id = r.device_id AND d.type = :device_type
LEFT JOIN jobs j ON j.id = r.job_id
LEFT JOIN lanes l ON l.id = j.lane_id
WHERE r.configuration_id = ANY(:ids) AND l.rules IS NULL AND NOT {OVERLAPPED}
GROUP BY r.configuration_id
""")


def runtimes(
    connection: Connection, configurations: Sequence[uuid.UUID], *, device_type: str, rules: str
) -> dict[uuid.UUID, float]:
    """Median runtime in ms of each configuration that was measured under these rules (JSON)."""
    parameters = {"ids": list(configurations), "device_type": device_type, "rules": rules}
    return {row.configuration_id: row.runtime_ms for row in connection.execute(_RUNTIMES, parameters)}


# Rounds of a search that have rules of their own give no results.
_UNDERWAY = text("""
SELECT DISTINCT ON (j.configuration_id) j.configuration_id, c.name
FROM pools p
JOIN lanes l ON l.pool_id = p.id AND l.rules IS NULL
JOIN campaigns c ON c.id = l.campaign_id AND c.state IN ('active', 'paused') AND c.rules = CAST(:rules AS jsonb)
CROSS JOIN unnest(CAST(:ids AS uuid[])) AS wanted(id)
JOIN jobs j ON j.lane_id = l.id AND j.configuration_id = wanted.id AND j.state IN ('open', 'waiting')
WHERE p.name = ANY(:pools)
ORDER BY j.configuration_id, c.id
""")


def campaigns_of(
    connection: Connection, configurations: Sequence[uuid.UUID], *, pools: Sequence[str], rules: str
) -> dict[uuid.UUID, str]:
    """Returns the campaign's name for each configuration with an open job in one of the pools under these rules (JSON)."""
    parameters = {"ids": list(configurations), "pools": list(pools), "rules": rules}
    return {row.configuration_id: row.name for row in connection.execute(_UNDERWAY, parameters)}
