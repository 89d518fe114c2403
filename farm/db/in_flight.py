"""Configurations with open jobs, and their campaigns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, text

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
