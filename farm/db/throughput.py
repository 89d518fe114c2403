"""Throughput of campaigns: jobs that ended per minute. Read-only.

The numbers come from batches that ended recently, so the cost does not depend on the size of a campaign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, text

RECENT_SECONDS = 300.0
"""Time span of the throughput that estimates use."""

MAX_BATCHES = 5000
"""Maximum batches to read per campaign, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Ended jobs of a campaign per minute, measured or not. None if none ended in that time."""

    last_minute: float | None = None
    lately: float | None = None  # over the last `RECENT_SECONDS`
    began_s: float | None = None  # seconds from its first claim to its end, or to now; None before its first batch ends

    def seconds_for(self, jobs: int) -> float | None:
        """Seconds for that many jobs at the recent throughput; None if nothing ended recently."""
        return None if self.lately is None else 60 * jobs / self.lately

    def overall(self, ended: int) -> float | None:
        """Jobs per minute since the campaign began, if `ended` jobs have ended."""
        return None if self.began_s is None else _per_minute(ended, self.began_s)


def _per_minute(jobs: int | None, seconds: float | None) -> float | None:
    return 60 * jobs / max(seconds, 1.0) if jobs and seconds is not None else None


# A span begins where the first of its batches was claimed. `statement_timestamp` can be looked up in an index.
_THROUGHPUT = text("""
WITH ended AS (
    SELECT c.id AS campaign_id, b.claimed_at, b.finished_at, b.jobs,
        b.finished_at > statement_timestamp() - interval '1 minute' AS last_minute
    FROM campaigns c CROSS JOIN LATERAL (
        SELECT o.* FROM lanes l CROSS JOIN LATERAL (
            SELECT claimed_at, finished_at, done + invalid + dead AS jobs FROM batches
            WHERE lane_id = l.id AND claimed_at IS NOT NULL
                AND finished_at > statement_timestamp() - make_interval(secs => :lately)
            ORDER BY finished_at DESC LIMIT :most
        ) o
        WHERE l.campaign_id = c.id ORDER BY o.finished_at DESC LIMIT :most
    ) b
    WHERE c.id = ANY(:ids)
), spans AS (
    SELECT campaign_id, sum(jobs) FILTER (WHERE last_minute)::bigint AS minute_jobs, sum(jobs)::bigint AS lately_jobs,
        CASE WHEN count(*) = :most THEN min(finished_at) ELSE min(claimed_at) FILTER (WHERE last_minute) END AS minute,
        CASE WHEN count(*) = :most THEN min(finished_at) ELSE min(claimed_at) END AS lately
    FROM ended GROUP BY campaign_id
)
SELECT c.id, s.minute_jobs, s.lately_jobs,
    least(60, extract(epoch FROM statement_timestamp() - s.minute))::float8 AS minute_s,
    least(:lately, extract(epoch FROM statement_timestamp() - s.lately))::float8 AS lately_s,
    extract(epoch FROM coalesce(c.finished_at, statement_timestamp()) - f.claimed_at)::float8 AS began_s
FROM campaigns c LEFT JOIN spans s ON s.campaign_id = c.id
CROSS JOIN LATERAL (
    SELECT min(b.claimed_at) AS claimed_at FROM lanes l CROSS JOIN LATERAL (
        SELECT claimed_at FROM batches
        WHERE lane_id = l.id AND claimed_at IS NOT NULL AND finished_at IS NOT NULL ORDER BY finished_at LIMIT 1
    ) b
    WHERE l.campaign_id = c.id
) f
WHERE c.id = ANY(:ids)
""")


def of_campaigns(connection: Connection, campaign_ids: Iterable[int]) -> dict[int, Throughput]:
    """Throughput of campaigns, by id."""
    parameters = {"ids": list(campaign_ids), "lately": RECENT_SECONDS, "most": MAX_BATCHES}
    return {
        row.id: Throughput(
            last_minute=_per_minute(row.minute_jobs, row.minute_s),
            lately=_per_minute(row.lately_jobs, row.lately_s),
            began_s=row.began_s,
        )
        for row in connection.execute(_THROUGHPUT, parameters)
    }
