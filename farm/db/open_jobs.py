"""Open jobs: counted by campaign and target, where they wait, and what runs. Read-only.

The numbers come from counters and open batches, so the cost does not depend on the size of a campaign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from farm.db.campaigns import TALLY
from farm.db.liveness import DeviceNow, Presence
from farm.db.states import CampaignState


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs of one campaign for one target, counted by state."""

    lane_id: int
    campaign_id: int
    campaign: str
    owner: str
    priority: int
    state: CampaignState
    target: str  # the pool's name
    device_types: tuple[str, ...] | None
    device_uuid: str | None
    jobs: int
    done: int
    invalid: int
    dead: int
    queued: int  # in batches that no worker has claimed
    running: int  # in batches that a worker holds
    round: int = 0
    later: int = 0  # expected in later rounds, and not stored yet
    # Seconds for which the decision on a learning round has waited without a live trainer; None: it does not wait.
    untrained_s: float | None = None

    @property
    def open(self) -> int:
        return self.jobs - self.done - self.invalid - self.dead

    @property
    def waiting(self) -> int:
        """Number of open jobs that are in no batch."""
        return self.open - self.queued - self.running

    def serves(self, device: DeviceNow) -> bool:
        """Whether the device may take the jobs. A device of an import may not."""
        if device.presence is Presence.IMPORTED:
            return False
        if self.device_types is None:
            return device.uuid == self.device_uuid
        return device.type in self.device_types


_GROUPS = text(f"""
SELECT t.lane_id, c.id AS campaign_id, c.name AS campaign, c.owner, c.priority, c.state, p.name AS target,
    p.device_types, p.device_uuid, t.jobs, t.done, t.invalid, t.dead, t.queued, t.running,
    s.round, t.later,
    (SELECT extract(epoch FROM clock_timestamp() - greatest(r.requested_at, (SELECT max(heard_of_at) FROM trainings)))::float8
     FROM trainings r WHERE r.lane_id = t.lane_id AND r.state = 'requested') AS untrained_s
FROM campaigns c
CROSS JOIN LATERAL ({TALLY} WHERE l.campaign_id = c.id) t
JOIN lanes s ON s.id = t.lane_id JOIN pools p ON p.id = s.pool_id
WHERE c.state IN ('active', 'paused') OR c.id = :also
ORDER BY c.id, t.lane_id
""")


def groups(connection: Connection, *, also: int | None = None) -> list[JobGroup]:
    """Job groups of active and paused campaigns, and of the campaign `also` in any state."""
    return [
        JobGroup(
            **{
                **row,
                "state": CampaignState(row["state"]),
                "device_types": None if row["device_types"] is None else tuple(row["device_types"]),
            }
        )
        for row in connection.execute(_GROUPS, {"also": also}).mappings()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNow:
    """Unclaimed batches of one job group for one queue."""

    lane_id: int
    queue: str
    oldest_s: float  # since the oldest was formed
    sends: int  # maximum number of sends of a batch


_QUEUES = text("""
SELECT lane_id, queue, extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest_s, max(sends) AS sends
FROM batches WHERE NOT folded AND state = 'queued' GROUP BY lane_id, queue ORDER BY lane_id, queue
""")


def queues(connection: Connection) -> list[QueueNow]:
    """Unclaimed batches, by job group and queue."""
    return [QueueNow(**row) for row in connection.execute(_QUEUES).mappings()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedNow:
    """Waiting jobs of one job group, and the devices that refused them and do not get them again."""

    lane_id: int
    refused_by: tuple[int, ...]
    jobs: int


_REFUSED = text("""
SELECT lane_id, refused_by, count(*) AS jobs FROM returned_jobs
WHERE lane_id = ANY(:lanes) AND refused_by <> '{}' GROUP BY lane_id, refused_by ORDER BY lane_id, refused_by
""")


def refused(connection: Connection, lane_ids: Sequence[int]) -> list[RefusedNow]:
    """Jobs of these job groups that wait for another device than those that refused them."""
    found = connection.execute(_REFUSED, {"lanes": list(lane_ids)}) if lane_ids else ()
    return [RefusedNow(lane_id=row.lane_id, refused_by=tuple(row.refused_by), jobs=row.jobs) for row in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedNow:
    """Jobs of one job group that wait because versions of workers cannot read them.

    `refused_by`: as in `farm.db.batches.PendingJobs`, with negative ids of versions. `why` is the message of a worker for one job.
    """

    lane_id: int
    refused_by: tuple[int, ...]
    jobs: int
    why: str


_UNSUPPORTED = text("""
SELECT r.lane_id, r.refused_by, r.jobs, f.message AS why
FROM (
    SELECT lane_id, refused_by, count(*) AS jobs, min(job_id) AS job_id FROM returned_jobs
    WHERE refused_by[1] < 0 GROUP BY lane_id, refused_by
) r
CROSS JOIN LATERAL (
    SELECT message FROM failures WHERE job_id = r.job_id AND kind = 'unsupported' ORDER BY id DESC LIMIT 1
) f
ORDER BY r.lane_id, r.refused_by
""")


def unsupported(connection: Connection) -> list[UnsupportedNow]:
    """Jobs that wait for workers of another version."""
    return [
        UnsupportedNow(lane_id=row.lane_id, refused_by=tuple(row.refused_by), jobs=row.jobs, why=row.why)
        for row in connection.execute(_UNSUPPORTED)
    ]


_RUNNING = text("""
SELECT d.uuid AS device_uuid, d.type AS device_type, h.name AS host, p.name AS target, b.id AS batch_id, b.jobs,
    b.current_job_id AS job_id, extract(epoch FROM clock_timestamp() - b.claimed_at)::float8 AS busy_s,
    d.last_seen_at <= clock_timestamp() - make_interval(secs => :silent_after) AS silent
FROM batches b
JOIN lanes l ON l.id = b.lane_id
JOIN pools p ON p.id = l.pool_id
JOIN devices d ON d.id = b.device_id
JOIN hosts h ON h.id = d.host_id
WHERE NOT b.folded AND b.state = 'leased' AND l.campaign_id = :campaign_id
ORDER BY silent DESC, b.claimed_at, b.id
""")


def running(connection: Connection, campaign_id: int, *, silent_after: float) -> list[dict[str, Any]]:
    """Leased batches of a campaign, those of silent workers first, then the oldest first.

    `job_id` is the job in hand, where one is; `busy_s` counts from the claim of the batch.
    """
    parameters = {"campaign_id": campaign_id, "silent_after": silent_after}
    return [dict(row) for row in connection.execute(_RUNNING, parameters).mappings()]
