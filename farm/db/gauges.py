"""Numbers for metrics. They come from counters and open batches, so the cost does not depend on the number of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from farm.db import device_sessions, kernels, locks, worker_versions
from farm.db.campaigns import TALLY
from farm.db.states import BatchState, JobState, KernelState
from farm.devices import IMPORTED_PREFIX


@dataclass(frozen=True, slots=True)
class FarmGauges:
    """State of the farm at one time."""

    # Jobs of the active campaigns, by each state that such a job can have.
    jobs: dict[JobState, int]
    # By device type and: live, silent, probation, drained, quarantined. Every device is in one of them.
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
    # Sessions that have held locks on tables of the farm for long.
    lock_holders: Sequence[locks.LockHolder] = ()
    # Devices that two farm-workers wanted to serve lately, or that have rows which two measured at the same time.
    contended: Sequence[device_sessions.ContendedDevice] = ()


_JOBS = text(f"""
SELECT coalesce(sum(jobs - done - invalid - dead - queued - running), 0)::bigint AS pending,
    coalesce(sum(queued), 0)::bigint AS queued, coalesce(sum(running), 0)::bigint AS running,
    coalesce(sum(later), 0)::bigint AS later, coalesce(sum(done), 0)::bigint AS done, coalesce(sum(invalid), 0)::bigint AS invalid,
    coalesce(sum(dead), 0)::bigint AS dead
FROM ({TALLY} WHERE l.campaign_id IN (SELECT id FROM campaigns WHERE state = 'active')) t
""")
_DEVICES = text(f"""
SELECT type, CASE
        WHEN state <> 'active' THEN state
        WHEN vanished_at IS NULL AND last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) THEN 'live'
        ELSE 'silent'
    END AS condition, count(*) AS n
FROM devices WHERE NOT starts_with(uuid, '{IMPORTED_PREFIX}') GROUP BY 1, 2
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

CONDITIONS = ("live", "silent", "probation", "drained", "quarantined")
_OPEN = (BatchState.QUEUED, BatchState.LEASED)


def read(connection: Connection, *, silent_after: float) -> FarmGauges:
    """Reads the state of the farm. Every known device type has all numbers, zeros too."""
    jobs = connection.execute(_JOBS).mappings().one()
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
        jobs={JobState(state): n for state, n in jobs.items()},
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
        lock_holders=locks.holders(connection),
        contended=device_sessions.contended(connection),
    )
