"""Duty: the share of wall time that a device spends in measurement windows. Read-only.

Rows have the time in windows, and batches have the time of work. A query reads a bounded number of the latest rows and batches,
so its cost does not depend on the size of a campaign.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.devices import Backend

BREAK_SECONDS = 60.0
"""A longer pause between two batches is not counted as time of work."""

MAX_ROWS = 5000
"""Maximum rows of a campaign to read, which takes some milliseconds. The latest rows count."""

MAX_RECENT_ROWS = 50_000
"""The same for `recent`, which is queried less often."""

RECENT_SECONDS = 600.0
"""What `recent` covers."""

REPLAYING = [backend.value for backend in Backend if not backend.runs_kernels]
"""Backends whose rows have the numbers of another device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """Use of time by one device with rows in measurement windows.

    Recorded devices have none: their rows have the times of another device, and their batches the times of lookups.
    """

    device_id: int
    device_uuid: str
    host: str
    window_s: float
    wall_s: float  # from the claim of a batch to the end of the last, without breaks

    @property
    def share(self) -> float:
        return self.window_s / self.wall_s


# The rows of a batch land together, at its end, so batches and rows that ended since the same moment belong together, but
# for the one batch that this moment may cut in two. A device's batches do not overlap.
_DUTY = """
WITH latest AS MATERIALIZED ({latest}), began AS (
    SELECT count(*) = :most AS cut, CASE WHEN count(*) < :most THEN {since} ELSE min(measured_at) END AS at,
        (array_agg(device_id ORDER BY measured_at))[1] AS device_id
    FROM latest
), worked AS (
    SELECT b.device_id, b.claimed_at, b.finished_at,
        lag(b.finished_at) OVER (PARTITION BY b.device_id ORDER BY b.claimed_at) AS before
    FROM began CROSS JOIN lanes l CROSS JOIN LATERAL (
        SELECT device_id, claimed_at, finished_at FROM batches
        WHERE lane_id = l.id AND finished_at > began.at AND claimed_at IS NOT NULL
            AND NOT (began.cut AND device_id = began.device_id AND claimed_at < began.at)
        ORDER BY finished_at DESC LIMIT :most
    ) b
    WHERE {groups}
), spans AS (
    SELECT device_id, min(claimed_at) AS first, max(finished_at) AS last,
        sum(extract(epoch FROM finished_at - claimed_at) + CASE
            WHEN claimed_at - before <= make_interval(secs => :break) THEN extract(epoch FROM claimed_at - before) ELSE 0
        END)::float8 AS wall_s
    FROM worked GROUP BY device_id
)
SELECT s.device_id, d.uuid AS device_uuid, h.name AS host, sum(r.window_s) AS window_s, s.wall_s
FROM spans s JOIN latest r ON r.device_id = s.device_id AND r.measured_at BETWEEN s.first AND s.last
JOIN devices d ON d.id = s.device_id AND d.backend <> ALL(:replaying) JOIN hosts h ON h.id = d.host_id
GROUP BY s.device_id, d.uuid, h.name, s.wall_s HAVING sum(r.window_s) > 0 ORDER BY h.name, d.uuid
"""
# The index has the rows of one campaign in the order in which they were written, and read backwards it gives the latest.
# A planner that is told of one campaign alone sees no order in it.
_OF_CAMPAIGN = text(
    _DUTY.format(
        latest="""
    SELECT device_id, measured_at, window_s FROM measurements
    WHERE campaign_id >= :campaign_id AND campaign_id <= :campaign_id ORDER BY campaign_id DESC LIMIT :most
""",
        since="CAST('-infinity' AS timestamptz)",
        groups="l.campaign_id = :campaign_id",
    )
)
_LATELY = text(
    _DUTY.format(
        latest="""
    SELECT device_id, measured_at, window_s FROM (SELECT * FROM measurements WHERE campaign_id IS NOT NULL ORDER BY id DESC LIMIT :most) r
    WHERE measured_at > statement_timestamp() - make_interval(secs => :lately)
""",
        since="statement_timestamp() - make_interval(secs => :lately)",
        groups="true",
    )
)


def of_campaign(connection: Connection, campaign_id: int, *, max_rows: int = MAX_ROWS) -> list[Duty]:
    """Duty of each device of a campaign, ordered by host and device."""
    parameters = {"campaign_id": campaign_id, "most": max_rows, "break": BREAK_SECONDS, "replaying": REPLAYING}
    return [Duty(**row) for row in connection.execute(_OF_CAMPAIGN, parameters).mappings()]


def recent(connection: Connection, *, seconds: float = RECENT_SECONDS) -> dict[int, Duty]:
    """Duty of each device in the last `seconds`, by device id."""
    parameters = {"lately": seconds, "most": MAX_RECENT_ROWS, "break": BREAK_SECONDS, "replaying": REPLAYING}
    found = (Duty(**row) for row in connection.execute(_LATELY, parameters).mappings())
    return {duty.device_id: duty for duty in found}
