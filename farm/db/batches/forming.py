"""Transitions of the coordinator: forming, sending, releasing and folding batches."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from farm.db.batches.ending import release
from farm.db.engine import Fault, fault_of


@dataclass(frozen=True, slots=True)
class PendingJobs:
    """Waiting jobs of one job group, and who may take them: one device, or devices of some types.

    A `retry` has failed jobs: it goes to one device, not to `avoid_device_id` if there is another. A `solo` job goes alone.
    """

    lane_id: int
    campaign_id: int
    owner: str
    priority: int
    device_types: tuple[str, ...] | None
    device_uuid: str | None
    solo: bool = False
    avoid_device_id: int | None = None
    # Devices that refused its jobs and do not get them again. Negative: versions of workers that cannot read them.
    refused_by: tuple[int, ...] = ()

    @property
    def retry(self) -> bool:
        return self.solo or self.avoid_device_id is not None


# The failed jobs of a job group form retry groups: their jobs may go to the same devices. Each step of the recursion finds the next
# retry group by one lookup in ix_returned_jobs_order. Its cost does not depend on the number of jobs or on other job groups.
_RETRY_GROUP = """
    SELECT r.solo, coalesce(r.avoid_device_id, 0) AS avoid, r.refused_by FROM returned_jobs r
    WHERE r.lane_id = {group} AND {after} AND (r.not_before IS NULL OR r.not_before <= clock_timestamp())
    ORDER BY r.lane_id, r.solo, coalesce(r.avoid_device_id, 0), r.refused_by LIMIT 1
"""
_CANDIDATES = text(f"""
WITH RECURSIVE open_lanes AS MATERIALIZED (
    SELECT l.id, l.fresh FROM campaigns c JOIN lanes l ON l.campaign_id = c.id WHERE c.state = 'active'
), failed AS (
    SELECT l.id AS lane_id, g.* FROM open_lanes l CROSS JOIN LATERAL (
        {_RETRY_GROUP.format(group="l.id", after="(r.solo, coalesce(r.avoid_device_id, 0)) > (false, 0)")}
    ) g
    UNION ALL
    SELECT f.lane_id, g.* FROM failed f CROSS JOIN LATERAL (
        {
    _RETRY_GROUP.format(
        group="f.lane_id",
        after="(r.solo, coalesce(r.avoid_device_id, 0), r.refused_by) > (f.solo, f.avoid, f.refused_by)",
    )
}
    ) g
)
SELECT l.id AS lane_id, c.id AS campaign_id, c.owner, c.priority, p.device_types, p.device_uuid, r.solo, r.avoid_device_id, r.refused_by
FROM (
    SELECT l.id AS lane_id, false AS solo, NULL::bigint AS avoid_device_id, '{{}}'::bigint[] AS refused_by
    FROM open_lanes l
    WHERE l.fresh OR EXISTS (
        SELECT 1 FROM returned_jobs r WHERE r.lane_id = l.id AND NOT r.solo AND coalesce(r.avoid_device_id, 0) = 0
    )
    UNION ALL
    SELECT lane_id, solo, nullif(avoid, 0), refused_by FROM failed
) r
JOIN lanes l ON l.id = r.lane_id JOIN campaigns c ON c.id = l.campaign_id JOIN pools p ON p.id = l.pool_id
ORDER BY c.id, r.solo, r.avoid_device_id IS NULL, l.id, r.avoid_device_id NULLS FIRST, r.refused_by
""")


def candidates(connection: Connection) -> list[PendingJobs]:
    """Waiting jobs of active campaigns, the oldest campaign first; for each, failed jobs, fresh jobs, and suspects.

    A device that fails every job at once takes fresh jobs very fast. Its failed jobs come first, because only their success on
    another device shows that it is at fault.
    """
    return [
        PendingJobs(
            **{
                **row,
                "device_types": None if row["device_types"] is None else tuple(row["device_types"]),
                "refused_by": tuple(row["refused_by"]),
            }
        )
        for row in connection.execute(_CANDIDATES).mappings()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesInFlight:
    """Batches of one job group for one queue that are not folded yet.

    Attributes:
        resource: the shared resource, see `farm.coordinator.fairness`.
        batches: number of queued and leased batches.
        queued: number of unclaimed batches.
        seconds: device seconds of all batches; expected ones for batches that have not ended.
    """

    resource: str
    priority: int
    owner: str
    campaign_id: int
    queue: str
    batches: int
    queued: int = 0
    seconds: float = 0.0


def _resource(queue: str, device_uuid: str) -> str:
    """SQL: the resource of a batch on that queue, of a pool of that one device or, where it is NULL, of types.

    Failed jobs of types go to queues of devices. Only for these is a device looked up.
    """
    of_type = f"(SELECT 'retry.' || type FROM devices WHERE uuid = substr({queue}, length('device.') + 1))"
    return f"coalesce(CASE WHEN {device_uuid} IS NULL AND {queue} LIKE 'device.%' THEN {of_type} END, {queue})"


_FLIGHTS = text(f"""
SELECT {_resource("b.queue", "p.device_uuid")} AS resource,
    c.priority, c.owner, c.id AS campaign_id, b.queue, b.batches, b.queued, b.seconds
FROM (
    SELECT lane_id, queue,
        count(*) FILTER (WHERE state IN ('queued', 'leased')) AS batches,
        count(*) FILTER (WHERE state = 'queued') AS queued,
        coalesce(sum(CASE state
            WHEN 'queued' THEN :batch_seconds
            WHEN 'leased' THEN greatest(:batch_seconds, extract(epoch FROM clock_timestamp() - claimed_at)::float8)
            ELSE extract(epoch FROM finished_at - claimed_at)::float8
        END), 0) AS seconds
    FROM batches WHERE NOT folded GROUP BY lane_id, queue
) b
JOIN lanes l ON l.id = b.lane_id JOIN campaigns c ON c.id = l.campaign_id JOIN pools p ON p.id = l.pool_id
""")


def flights(connection: Connection, *, batch_seconds: float = 4.0) -> list[BatchesInFlight]:
    """Queued and leased batches, and ended ones that are not folded yet.

    Args:
        batch_seconds: device seconds that a batch is expected to take.
    """
    rows = connection.execute(_FLIGHTS, {"batch_seconds": batch_seconds}).mappings()
    return [BatchesInFlight(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class JobCost:
    """Device seconds of a job: `fixed_s + gflop_s * gflop`, where `gflop` is that of one GEMM of it in 10⁹ operations."""

    fixed_s: float
    gflop_s: float


_WAIT_BRIEFLY = text("SET LOCAL lock_timeout = '100ms'")
_LOCK = text("""
SELECT set_config('lock_timeout', '100ms', true) FROM campaigns c JOIN lanes l ON l.campaign_id = c.id
WHERE l.id = :lane_id AND c.state = 'active' FOR SHARE OF c SKIP LOCKED FOR NO KEY UPDATE OF l SKIP LOCKED
""")
# Jobs of one retry group: what came back, by id, and what is fresh, by configuration, each behind what was read before.
_READ = text("""
WITH lane AS (
    SELECT coalesce(CAST(:configuration_id AS uuid), cursor, :before_all) AS cursor, fresh FROM lanes WHERE id = :lane_id
), again AS (
    SELECT job_id FROM returned_jobs
    WHERE lane_id = :lane_id AND solo = :solo AND coalesce(avoid_device_id, 0) = :avoid
      AND refused_by = CAST(:refused_by AS bigint[]) AND job_id > :job_id
      AND (not_before IS NULL OR not_before <= clock_timestamp())
    ORDER BY job_id LIMIT :again
), offered AS (
    SELECT j.id, j.configuration_id, false AS fresh FROM again JOIN jobs j ON j.id = again.job_id
    UNION ALL (
        SELECT id, configuration_id, true FROM jobs
        WHERE lane_id = :lane_id AND (SELECT fresh FROM lane) AND state = 'open'
          AND configuration_id > (SELECT cursor FROM lane)
        ORDER BY configuration_id LIMIT :fresh
    )
)
SELECT o.id, CAST(o.configuration_id AS text), o.fresh, 2e-9::float8 * c.batch * c.m * c.n * c.k AS gflop
FROM offered o JOIN configurations c ON c.id = o.configuration_id
""")
_WRITE = text("""
WITH left_behind AS (
    DELETE FROM returned_jobs WHERE job_id = ANY(CAST(:again AS bigint[]))
), moved AS (
    UPDATE lanes SET cursor = coalesce(CAST(:cursor AS uuid), cursor), fresh = :fresh
    WHERE id = :lane_id AND fresh AND :advance
)
INSERT INTO batches (id, lane_id, queue, jobs, job_ids, gflop)
SELECT coalesce(b.id, nextval(pg_get_serial_sequence('batches', 'id'))), :lane_id, b.queue, b.last - b.first + 1,
    (CAST(:job_ids AS bigint[]))[b.first:b.last], b.gflop
FROM unnest(
    CAST(:ids AS bigint[]), CAST(:queues AS text[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]), CAST(:gflop AS float8[])
) WITH ORDINALITY AS b(id, queue, first, last, gflop, number)
ORDER BY b.number
RETURNING id
""")
_RESERVE = text("SELECT nextval(pg_get_serial_sequence('batches', 'id')) FROM generate_series(1, :count)")
BEFORE_ALL = uuid.UUID(int=0)
"""A cursor before every configuration: no hash is zero."""


def lock(connection: Connection, lane_id: int) -> bool:
    """Locks a job group for this transaction, to form batches of it.

    Returns False, without waiting, if its campaign is not active or another session holds one of the two.
    """
    return connection.execute(_LOCK, {"lane_id": lane_id}).one_or_none() is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch to form.

    Attributes:
        jobs: maximum number of jobs.
        seconds: maximum device seconds of the jobs at that cost. The first job may take longer.
        cost: of one job; None if unknown.
        id: of the batch, from `reserve`; None for the next one.
    """

    queue: str
    jobs: int
    seconds: float = 1e9
    cost: JobCost | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class FormedBatches:
    """Ids of batches, in the order of their plans, and whether more jobs may wait."""

    ids: Sequence[int]
    more: bool


def reserve(connection: Connection, count: int) -> list[int]:
    """Reserves ascending ids. Batches are sent in the order of their ids, independent of the order of forming."""
    return sorted(connection.execute(_RESERVE, {"count": count}).scalars())


def form(
    connection: Connection,
    work: PendingJobs,
    *,
    queue: str,
    jobs: int,
    seconds: float = 1e9,
    cost: JobCost | None = None,
) -> int | None:
    """`form_many` for one batch. Returns its id; None if nothing waits."""
    formed = form_many(connection, work, [BatchPlan(queue=queue, jobs=jobs, seconds=seconds, cost=cost)])
    return next(iter(formed.ids), None)


def form_many(connection: Connection, work: PendingJobs, plans: Sequence[BatchPlan]) -> FormedBatches:
    """pending → queued: forms one batch per plan, until nothing waits.

    A batch has jobs for `seconds` of device time, at least one and at most `jobs`; one for suspects. The caller has locked the job
    group with `lock`. The result is the same as that of one call per plan.
    """
    waiting = _Waiting(connection, work)
    taken = list[list[_OfferedJob]]()
    ahead = sum(plan.jobs for plan in plans)
    for plan in plans:
        ahead -= plan.jobs
        if not (jobs := waiting.take(plan, ahead)):
            break
        taken.append(jobs)
    if not taken and work.retry:
        return FormedBatches([], more=False)
    lasts = list(accumulate(map(len, taken)))
    fresh = [job.configuration_id for jobs in taken for job in jobs if job.fresh]
    parameters = {
        "lane_id": work.lane_id,
        "again": [job.id for jobs in taken for job in jobs if not job.fresh],
        "cursor": max(fresh, default=None),
        "fresh": waiting.has_fresh,
        "advance": not work.retry,
        "ids": [plan.id for plan in plans[: len(taken)]],
        "queues": [plan.queue for plan in plans[: len(taken)]],
        "firsts": [last - len(jobs) + 1 for last, jobs in zip(lasts, taken, strict=True)],
        "lasts": lasts,
        "job_ids": [job.id for jobs in taken for job in sorted(jobs, key=_by_configuration)],
        "gflop": [sum(job.gflop for job in jobs) for jobs in taken],
    }
    return FormedBatches(sorted(connection.execute(_WRITE, parameters).scalars()), more=waiting.has_more)


class _OfferedJob(NamedTuple):
    id: int
    # As text, which sorts as Postgres sorts UUIDs.
    configuration_id: str
    # Not dispatched yet, and after the job group's cursor.
    fresh: bool
    gflop: float


_by_configuration = attrgetter("configuration_id")


class _Waiting:
    """Waiting jobs, read as far as the batches need them."""

    def __init__(self, connection: Connection, work: PendingJobs) -> None:
        self._connection, self._work = connection, work
        self._again, self._fresh = list[_OfferedJob](), list[_OfferedJob]()
        self._more_again, self._more_fresh = True, not work.retry
        self._read_jobs = 0
        self._after_job = 0
        self._after_configuration: str | None = None

    @property
    def has_fresh(self) -> bool:
        """Whether fresh jobs may be left."""
        return bool(self._fresh) or self._more_fresh

    @property
    def has_more(self) -> bool:
        """Whether jobs may be left."""
        return self.has_fresh or bool(self._again) or self._more_again

    def take(self, plan: BatchPlan, ahead: int) -> list[_OfferedJob]:
        """Takes the jobs of the next batch. `ahead`: maximum jobs of the batches after it."""
        most = 1 if self._work.solo else plan.jobs
        self._read(most, ahead)
        again = sorted(self._again[:most], key=_by_configuration)
        jobs, seconds = list[_OfferedJob](), 0.0
        cost = plan.cost or JobCost(0.0, 0.0)
        for job in chain(again, self._fresh):
            seconds += cost.fixed_s + cost.gflop_s * job.gflop
            if jobs and (len(jobs) == most or seconds > plan.seconds):
                break
            jobs.append(job)
        left = {job.id for job in again[len(jobs) :]}
        self._again[:most] = [job for job in self._again[:most] if job.id in left]
        del self._fresh[: max(0, len(jobs) - len(again))]
        return jobs

    def _read(self, most: int, ahead: int) -> None:
        """Reads more jobs if there are fewer than `most` of a kind.

        It reads ahead a quarter of the maximum jobs of later batches, since most end earlier by their seconds, and doubles this at
        each further read.
        """
        at_once = max(most + ahead // 4, self._read_jobs)
        again = at_once if self._more_again and len(self._again) < most else 0
        fresh = at_once if self._more_fresh and len(self._fresh) < most else 0
        if not again and not fresh:
            return
        parameters = {
            "lane_id": self._work.lane_id,
            "solo": self._work.solo,
            "avoid": self._work.avoid_device_id or 0,
            "refused_by": list(self._work.refused_by),
            "before_all": BEFORE_ALL,
            "job_id": self._after_job,
            "configuration_id": self._after_configuration,
            "again": again,
            "fresh": fresh,
        }
        found = [_OfferedJob._make(row) for row in self._connection.execute(_READ, parameters)]
        self._read_jobs += len(found)
        if again:
            read = sorted((job for job in found if not job.fresh), key=lambda job: job.id)
            self._again += read
            self._more_again = len(read) == again
            self._after_job = read[-1].id if read else self._after_job
        if fresh:
            read = sorted((job for job in found if job.fresh), key=_by_configuration)
            self._fresh += read
            self._more_fresh = len(read) == fresh
            self._after_configuration = read[-1].configuration_id if read else self._after_configuration


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A completely measured batch: jobs, 10⁹ operations of one GEMM of each, and seconds."""

    jobs: int
    gflop: float
    seconds: float


_FINISHED = text("""
SELECT b.jobs, b.gflop, extract(epoch FROM b.finished_at - b.claimed_at)::float8
FROM batches b JOIN devices d ON d.id = b.device_id
WHERE b.lane_id = :lane_id AND b.state = 'done' AND b.done = b.jobs AND d.type = :device_type
    AND b.finished_at IS NOT NULL
ORDER BY b.finished_at DESC LIMIT :limit
""")


def recently_finished(
    connection: Connection, *, lane_id: int, device_type: str, limit: int = 20
) -> list[FinishedBatch]:
    """The latest completely measured batches of a job group on a device type, the newest first."""
    parameters = {"lane_id": lane_id, "device_type": device_type, "limit": limit}
    return [FinishedBatch(*row) for row in connection.execute(_FINISHED, parameters)]


_UNSENT = text("""
SELECT id, queue FROM batches
WHERE NOT folded AND state = 'queued'
  AND (sent_at IS NULL OR sent_at < clock_timestamp() - make_interval(secs => :resend_after))
ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
""")
# Several batches are always locked by id. An UPDATE alone locks them in the order on the disk, and can deadlock.
_SENT = text("""
WITH these AS MATERIALIZED (SELECT id FROM batches WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
UPDATE batches b SET sent_at = clock_timestamp(), sends = least(b.sends + 1, 32767)
FROM these WHERE b.id = these.id RETURNING b.sends
""")


def unsent(connection: Connection, *, resend_after: float, limit: int = 1000) -> list[tuple[int, str]]:
    """Batches (id, queue) whose message was never sent, or may be lost.

    Skips batches that another session holds: `mark_sent` could not record the send, so they would be sent in every turn.
    """
    parameters = {"resend_after": resend_after, "limit": limit}
    return [(i, queue) for i, queue in connection.execute(_UNSENT, parameters)]


def mark_sent(connection: Connection, ids: Sequence[int]) -> int:
    """Records that the broker has the messages of these batches. Returns the number that were sent before.

    Skips batches that another session holds, such as a worker that claims one.
    """
    return sum(sends > 1 for sends in connection.execute(_SENT, {"ids": list(ids)}).scalars())


_EXPIRED = text("""
SELECT b.id FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN devices d ON d.id = b.device_id
WHERE NOT b.folded AND b.state = 'leased' AND b.lease_expires_at < clock_timestamp()
ORDER BY b.id FOR NO KEY UPDATE OF b SKIP LOCKED FOR KEY SHARE OF l, d SKIP LOCKED
""")


def reap(connection: Connection, *, suspect: bool = True) -> list[int]:
    """leased → released, for every expired lease that no other session holds.

    Args:
        suspect: whether the job in hand counts an attempt. False if workers could not renew leases because the database was away.

    Returns:
        The ids of those batches.
    """
    expired = connection.execute(_EXPIRED).scalars().all()
    return _released(connection, expired, reason="the lease passed without being renewed", suspect=suspect)


def _released(connection: Connection, ids: Sequence[int], *, reason: str, suspect: bool) -> list[int]:
    """Releases locked batches. Returns their ids, without batches with a job that another session holds."""
    if not ids:
        return []
    connection.execute(_WAIT_BRIEFLY)
    parts: list[Sequence[int]] = [ids]
    done = list[int]()
    while parts:
        some = parts.pop()
        try:
            with connection.begin_nested():
                for batch_id in some:
                    release(connection, batch_id, reason=reason, suspect=suspect)
        except DBAPIError as error:
            if fault_of(error) is not Fault.HELD:
                raise
            if len(some) > 1:
                parts += [some[len(some) // 2 :], some[: len(some) // 2]]
        else:
            done += some
    return done


_UNSERVED = text("""
SELECT b.id FROM batches b JOIN lanes l ON l.id = b.lane_id
WHERE NOT b.folded AND b.state = 'queued' AND b.queue <> ALL(CAST(:served AS text[]))
ORDER BY b.id LIMIT 1000 FOR NO KEY UPDATE OF b SKIP LOCKED FOR KEY SHARE OF l SKIP LOCKED
""")


def recall(connection: Connection, *, served: Sequence[str]) -> list[int]:
    """queued → released, for batches on queues that no live device serves."""
    unserved = connection.execute(_UNSERVED, {"served": list(served)}).scalars().all()
    return _released(connection, unserved, reason="no live device serves its queue", suspect=False)


_BELOW = text("""
SELECT b.id FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN campaigns c ON c.id = l.campaign_id
WHERE NOT b.folded AND b.state = 'queued' AND b.queue = :queue AND c.priority < :priority
ORDER BY b.id LIMIT :limit FOR NO KEY UPDATE OF b SKIP LOCKED FOR KEY SHARE OF l SKIP LOCKED
""")


def make_way(connection: Connection, *, queue: str, priority: int, limit: int) -> list[int]:
    """queued → released, for unclaimed batches of a queue with a lower priority.

    Returns their ids.
    """
    below = connection.execute(_BELOW, {"queue": queue, "priority": priority, "limit": limit}).scalars().all()
    return _released(connection, below, reason="a campaign of a higher priority goes first", suspect=False)


_FOLDABLE = text("""
SELECT id, lane_id, device_id FROM batches
WHERE NOT folded AND state IN ('done', 'released') AND lane_id <> ALL(:lanes)
  AND (device_id IS NULL OR device_id <> ALL(:devices))
ORDER BY id LIMIT :most FOR NO KEY UPDATE SKIP LOCKED
""")
LOCK_GROUPS = text("SELECT id FROM lanes WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED")
_LOCK_DEVICES = text("SELECT id FROM devices WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED")
MAX_FOLDED = 5000
"""Maximum batches to fold in one turn."""
_FOLD = text(f"""
WITH over AS (
    UPDATE batches SET folded = true, job_ids = '{{}}' WHERE id = ANY(:ids)
    RETURNING lane_id, device_id, queue, done, invalid, dead, extract(epoch FROM finished_at - claimed_at)::float8 AS seconds
), used AS (
    SELECT o.resource, c.priority, c.owner,
        coalesce(c.id, 0) AS campaign_id,
        sum(o.seconds) / CASE WHEN c.id IS NULL THEN coalesce(max(w.weight), 1) ELSE 1 END AS seconds
    FROM (
        SELECT o.lane_id, {_resource("o.queue", "p.device_uuid")} AS resource, sum(o.seconds) AS seconds
        FROM over o JOIN lanes l ON l.id = o.lane_id JOIN pools p ON p.id = l.pool_id
        WHERE o.seconds > 0 GROUP BY 1, 2
    ) o
    JOIN lanes l ON l.id = o.lane_id JOIN campaigns c ON c.id = l.campaign_id
    LEFT JOIN unnest(CAST(:owners AS text[]), CAST(:weights AS float8[])) AS w(owner, weight) ON w.owner = c.owner
    GROUP BY GROUPING SETS ((o.resource, c.priority, c.owner), (o.resource, c.priority, c.owner, c.id))
), shares AS MATERIALIZED (
    SELECT f.resource, f.priority, f.owner, f.campaign_id, u.seconds
    FROM fair_shares f JOIN used u USING (resource, priority, owner, campaign_id)
    ORDER BY f.resource, f.priority, f.owner, f.campaign_id FOR NO KEY UPDATE OF f SKIP LOCKED
), charged AS (
    UPDATE fair_shares f SET virtual_s = f.virtual_s + s.seconds FROM shares s
    WHERE (f.resource, f.priority, f.owner, f.campaign_id) = (s.resource, s.priority, s.owner, s.campaign_id)
), lane_sums AS (
    UPDATE lanes l SET done = l.done + s.done, invalid = l.invalid + s.invalid, dead = l.dead + s.dead
    FROM (SELECT lane_id, sum(done) AS done, sum(invalid) AS invalid, sum(dead) AS dead FROM over GROUP BY lane_id) s
    WHERE l.id = s.lane_id
)
UPDATE devices d SET measured = d.measured + s.done
FROM (SELECT device_id, sum(done) AS done FROM over WHERE done > 0 GROUP BY device_id) s
WHERE d.id = s.device_id
""")


def fold(connection: Connection, *, weights: Mapping[str, float] | None = None) -> int:
    """Adds ended batches to the counters of their job groups and devices, and charges their shares.

    Skips batches whose job group or device another session holds. A share that another session holds is not charged.

    Args:
        weights: of owners; 1 for others.

    Returns:
        Number of folded batches.
    """
    over = _take_foldable(connection)
    if over:
        named = dict(weights or {})
        connection.execute(_FOLD, {"ids": over, "owners": list(named), "weights": list(named.values())})
    return len(over)


def _take_foldable(connection: Connection) -> list[int]:
    """Locks ended batches with their job groups and devices. Returns the ids of the batches."""
    held_groups, held_devices = set[int](), set[int]()
    while True:
        parameters = {"lanes": list(held_groups), "devices": list(held_devices), "most": MAX_FOLDED}
        over = connection.execute(_FOLDABLE, parameters).all()
        groups, devices = {row.lane_id for row in over}, {row.device_id for row in over} - {None}
        held_groups |= groups - set(connection.execute(LOCK_GROUPS, {"ids": list(groups)}).scalars() if groups else ())
        held_devices |= devices - set(
            connection.execute(_LOCK_DEVICES, {"ids": list(devices)}).scalars() if devices else ()
        )
        free = [row.id for row in over if row.lane_id not in held_groups and row.device_id not in held_devices]
        if free or len(over) < MAX_FOLDED:
            return free  # else what is held fills the whole look, and others are behind it
