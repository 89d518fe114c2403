"""Numbers for metrics. They come from counters and open batches, so the cost does not depend on the number of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.db import device_sessions, kernels, locks, worker_versions
from farm.db.campaigns import TALLY
from farm.db.duty import REPLAYING
from farm.db.states import BatchState, CampaignState, JobState, KernelState
from farm.devices import IMPORTED_PREFIX


@dataclass(frozen=True, slots=True)
class Sensors:
    """What the rows of a device that landed in the last `SENSORS_SECONDS` have. None: no row has it."""

    device: str
    device_type: str
    power_w: float | None
    power_limit_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class DatabaseNow:
    """Size and connections of the database."""

    size_bytes: int
    connections: int
    max_connections: int


@dataclass(frozen=True, slots=True)
class FarmGauges:
    """State of the farm at one time."""

    # Jobs of the active campaigns, by each state that such a job can have.
    jobs: dict[JobState, int]
    # Of the active and paused campaigns that were submitted last, by the name of the campaign and state.
    campaigns: dict[str, dict[JobState, int]]
    # By device type and one of `CONDITIONS`.
    devices: dict[str, dict[str, int]]
    # By device type and state, queued or leased.
    batches: dict[str, dict[BatchState, int]]
    # Seconds since the oldest batch was formed that nobody has claimed; 0 where none waits.
    oldest_unclaimed_s: float
    # Kernels that are built ahead of time, by state, and live builders.
    kernels: dict[KernelState, int]
    builders: int
    # Live devices by the version of the farm that their worker runs, as `0.1.0 (0025)`; jobs that wait because of it.
    versions: dict[str, int]
    unsupported: int
    # What the sensors of devices read lately, and the database itself.
    sensors: Sequence[Sensors]
    database: DatabaseNow
    # Sessions that have held locks on tables of the farm for long.
    lock_holders: Sequence[locks.LockHolder] = ()
    # Devices that two farm-workers wanted to serve lately, or that have rows which two measured at the same time.
    contended: Sequence[device_sessions.ContendedDevice] = ()


MAX_CAMPAIGNS = 50
"""Maximum number of campaigns with numbers of their own. A label of Prometheus must have few values."""

SENSORS_SECONDS = 60.0
MAX_SENSOR_ROWS = 5000
"""The latest rows to read for `Sensors`, so that the cost does not depend on the size of the farm."""

_JOBS = text(f"""
SELECT c.id, c.name, c.state,
    sum(t.jobs - t.done - t.invalid - t.dead - t.queued - t.running)::bigint AS pending,
    sum(t.queued)::bigint AS queued, sum(t.running)::bigint AS running, sum(t.later)::bigint AS later,
    sum(t.done)::bigint AS done, sum(t.invalid)::bigint AS invalid, sum(t.dead)::bigint AS dead
FROM campaigns c CROSS JOIN LATERAL ({TALLY} WHERE l.campaign_id = c.id) t
WHERE c.state IN ('active', 'paused') GROUP BY c.id, c.name, c.state ORDER BY c.id DESC
""")
_DEVICES = text(f"""
SELECT type, CASE
        WHEN state <> 'active' THEN state
        WHEN vanished_at IS NOT NULL THEN 'gone'
        WHEN last_seen_at = '-infinity' THEN 'stopped'
        WHEN last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) THEN 'live'
        ELSE 'silent'
    END AS condition, count(*) AS n
FROM devices WHERE NOT starts_with(uuid, '{IMPORTED_PREFIX}') GROUP BY 1, 2
""")
# A recorded device has the numbers of another one.
_SENSORS = text("""
SELECT d.uuid AS device, d.type AS device_type, avg(r.power_w)::float8 AS power_w, max(r.power_limit_w)::float8 AS power_limit_w,
    avg(r.sm_clock_mhz)::float8 AS sm_clock_mhz, max(r.temperature_c)::float8 AS temperature_c
FROM (
    SELECT device_id, measured_at, power_w, power_limit_w, sm_clock_mhz, temperature_c FROM measurements
    WHERE campaign_id IS NOT NULL ORDER BY id DESC LIMIT :most
) r JOIN devices d ON d.id = r.device_id AND d.backend <> ALL(:replaying)
WHERE r.measured_at > statement_timestamp() - make_interval(secs => :seconds)
GROUP BY d.uuid, d.type ORDER BY d.uuid
""")
_DATABASE = text("""
SELECT pg_database_size(current_database()) AS size_bytes,
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()) AS connections,
    current_setting('max_connections')::int AS max_connections
""")
# A queue is `gpu.<type>` or `device.<uuid>`.
_BATCHES = text("""
SELECT coalesce(d.type, substr(b.queue, length('gpu.') + 1)) AS type, b.state, count(*) AS n,
    coalesce(extract(epoch FROM clock_timestamp() - min(b.created_at) FILTER (WHERE b.state = 'queued')), 0)::float8
        AS oldest_s
FROM batches b
LEFT JOIN devices d ON starts_with(b.queue, 'device.') AND d.uuid = substr(b.queue, length('device.') + 1)
WHERE NOT b.folded AND b.state IN ('queued', 'leased')
GROUP BY 1, 2
""")

_KERNELS = text("SELECT state, count(*) AS n FROM kernels GROUP BY state")

CONDITIONS = ("live", "silent", "stopped", "gone", "probation", "drained", "quarantined")
"""Every device is in one of them. Stopped: its worker deregistered. Gone: its host no longer has it."""

_STATES = (
    JobState.PENDING, JobState.QUEUED, JobState.RUNNING, JobState.LATER, JobState.DONE, JobState.INVALID, JobState.DEAD,
)  # fmt: skip
_OPEN = (BatchState.QUEUED, BatchState.LEASED)


def read(connection: Connection, *, silent_after: float) -> FarmGauges:
    """Reads the state of the farm. Every known device type has all numbers, zeros too."""
    jobs, campaigns = _jobs(connection)
    devices = defaultdict[str, dict[str, int]](lambda: dict.fromkeys(CONDITIONS, 0))
    for row in connection.execute(_DEVICES, {"silent_after": silent_after}):
        devices[row.type][row.condition] = row.n
    batches = defaultdict[str, dict[BatchState, int]](lambda: dict.fromkeys(_OPEN, 0))
    batches |= {kind: dict.fromkeys(_OPEN, 0) for kind in devices}
    oldest_s = 0.0
    for row in connection.execute(_BATCHES):
        batches[row.type][row.state] = row.n
        oldest_s = max(oldest_s, row.oldest_s)
    built = dict.fromkeys(KernelState, 0)
    built |= {KernelState(row.state): row.n for row in connection.execute(_KERNELS)}
    return FarmGauges(
        jobs=jobs,
        campaigns=campaigns,
        devices=dict(devices),
        batches=dict(batches),
        oldest_unclaimed_s=oldest_s,
        kernels=built,
        versions={
            "unknown" if one.version is None else f"{one.version.version} ({one.version.revision})": one.devices
            for one in worker_versions.of_live(connection, silent_after=silent_after)
        },
        unsupported=worker_versions.waiting(connection),
        builders=len(kernels.builders(connection, silent_after=silent_after)),
        sensors=_sensors(connection),
        database=DatabaseNow(**connection.execute(_DATABASE).mappings().one()),
        lock_holders=locks.holders(connection),
        contended=device_sessions.contended(connection),
    )


def _jobs(connection: Connection) -> tuple[dict[JobState, int], dict[str, dict[JobState, int]]]:
    """Jobs of all active campaigns, and those of the latest `MAX_CAMPAIGNS` open ones by the campaign's name."""
    total = dict.fromkeys(_STATES, 0)
    by_name = dict[str, dict[JobState, int]]()
    for n, row in enumerate(connection.execute(_JOBS).mappings()):
        counted = [total] if row["state"] == CampaignState.ACTIVE else []
        if n < MAX_CAMPAIGNS:
            counted.append(by_name.setdefault(row["name"], dict.fromkeys(_STATES, 0)))
        for counts in counted:
            for state in _STATES:
                counts[state] += row[state]
    return total, by_name


def _sensors(connection: Connection) -> list[Sensors]:
    parameters = {"most": MAX_SENSOR_ROWS, "seconds": SENSORS_SECONDS, "replaying": REPLAYING}
    return [Sensors(**row) for row in connection.execute(_SENSORS, parameters).mappings()]
