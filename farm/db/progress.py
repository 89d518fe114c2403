"""Present state of the farm: open jobs, throughput, and liveness of devices. Read-only.

The numbers come from counters, open batches and recently ended batches, so the cost does not depend on the size of a campaign.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from farm.db.campaigns import TALLY
from farm.db.states import CampaignState, DeviceState
from farm.devices import IMPORTED_PREFIX

# --- jobs --------------------------------------------------------------------------------------------


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


# --- throughput --------------------------------------------------------------------------------------

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
_PACE = text("""
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


def throughputs(connection: Connection, campaign_ids: Iterable[int]) -> dict[int, Throughput]:
    """Throughput of campaigns, by id."""
    parameters = {"ids": list(campaign_ids), "lately": RECENT_SECONDS, "most": MAX_BATCHES}
    return {
        row.id: Throughput(
            last_minute=_per_minute(row.minute_jobs, row.minute_s),
            lately=_per_minute(row.lately_jobs, row.lately_s),
            began_s=row.began_s,
        )
        for row in connection.execute(_PACE, parameters)
    }


# --- liveness ---------------------------------------------------------------------------------------


class Presence(StrEnum):
    """Liveness of a device's worker."""

    LIVE = "live"
    SILENT = "silent"  # no heartbeat for `FARM_SILENT_AFTER_SECONDS`
    STOPPED = "stopped"  # it deregistered
    GONE = "gone"  # its host no longer has the device
    IMPORTED = "imported"  # it was measured elsewhere and has no worker


def _takes_work(state: DeviceState, presence: Presence) -> bool:
    return state is DeviceState.ACTIVE and presence is Presence.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """A device with its liveness and state. Ages are in seconds by Postgres's clock."""

    device_id: int
    uuid: str
    type: str
    host: str
    state: DeviceState
    reason: str | None
    state_s: float  # since its state changed
    presence: Presence
    silent_s: float | None  # since its last heartbeat; None if it stopped or is gone
    vanished_s: float | None  # since its host no longer has it
    batch_id: int | None  # the leased batch
    # The version of its worker; None: not announced.
    worker_version_id: int | None = None
    worker_version: str | None = None
    worker_revision: str | None = None
    # Why its worker could not claim a batch last time, and how long ago.
    claim_error: str | None = None
    claim_error_s: float | None = None
    # Seconds until its next trial, where it is on probation; below zero: it is due.
    next_trial_s: float | None = None

    def is_among(self, refusers: Container[int]) -> bool:
        """Whether the device or the version of its worker is in `refusers`."""
        version = self.worker_version_id
        return self.device_id in refusers or (version is not None and -version in refusers)

    @property
    def takes_work(self) -> bool:
        return _takes_work(self.state, self.presence)


_EVERY_DEVICE = f"""
SELECT d.id AS device_id, d.uuid, d.type, h.name AS host, d.state, d.state_reason AS reason, b.batch_id,
    CASE
        WHEN starts_with(d.uuid, '{IMPORTED_PREFIX}') THEN 'imported'
        WHEN d.vanished_at IS NOT NULL THEN 'gone'
        WHEN d.last_seen_at = '-infinity' THEN 'stopped'
        WHEN d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) THEN 'live'
        ELSE 'silent'
    END AS presence,
    extract(epoch FROM clock_timestamp() - d.state_changed_at)::float8 AS state_s,
    extract(epoch FROM clock_timestamp() - nullif(d.last_seen_at, '-infinity'))::float8 AS silent_s,
    extract(epoch FROM clock_timestamp() - d.vanished_at)::float8 AS vanished_s,
    d.worker_version_id, v.version AS worker_version, v.revision AS worker_revision,
    d.claim_error, extract(epoch FROM clock_timestamp() - d.claim_error_at)::float8 AS claim_error_s,
    extract(epoch FROM d.next_trial_at - clock_timestamp())::float8 AS next_trial_s
FROM devices d
JOIN hosts h ON h.id = d.host_id
LEFT JOIN worker_versions v ON v.id = d.worker_version_id
LEFT JOIN (
    SELECT device_id, max(id) AS batch_id FROM batches WHERE NOT folded AND state = 'leased' GROUP BY device_id
) b ON b.device_id = d.id
"""

_DEVICES = text(f"{_EVERY_DEVICE} ORDER BY host, uuid")


def devices(connection: Connection, *, silent_after: float) -> list[DeviceNow]:
    """Every device that was ever announced."""
    rows = connection.execute(_DEVICES, {"silent_after": silent_after}).mappings()
    return [
        DeviceNow(**{**row, "state": DeviceState(row["state"]), "presence": Presence(row["presence"])}) for row in rows
    ]


_TALLIES = text(f"""
SELECT state, presence, batch_id IS NOT NULL AS busy, count(*) AS devices
FROM ({_EVERY_DEVICE}) known GROUP BY state, presence, busy
""")


class DeviceTally(NamedTuple):
    """How many devices are in the same state."""

    state: DeviceState
    presence: Presence
    busy: bool
    devices: int

    @property
    def takes_work(self) -> bool:
        return _takes_work(self.state, self.presence)


def device_tallies(connection: Connection, *, silent_after: float) -> list[DeviceTally]:
    """Every device that was ever announced, counted by state."""
    rows = connection.execute(_TALLIES, {"silent_after": silent_after})
    return [DeviceTally(DeviceState(row.state), Presence(row.presence), row.busy, row.devices) for row in rows]


_ERRORS = text("""
SELECT device_id, kind, count(*) AS failures FROM failures
WHERE device_id = ANY(:ids)
    AND at > statement_timestamp() - make_interval(secs => :window)
GROUP BY device_id, kind ORDER BY device_id, kind
""")


def device_errors(
    connection: Connection, ids: Sequence[int], *, window_seconds: float = 3600.0
) -> dict[int, dict[str, int]]:
    """Number of recently failed attempts on each of the devices, by kind. Devices without any are left out."""
    found: dict[int, dict[str, int]] = {}
    for row in connection.execute(_ERRORS, {"ids": list(ids), "window": window_seconds}):
        found.setdefault(row.device_id, {})[row.kind] = row.failures
    return found
