"""Campaigns: storing one with its configurations and jobs, finding it, its progress, its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from farm.campaign import Campaign, PlannedJob, PoolSpec
from farm.db import kernels
from farm.db.imports import UUID_PREFIX
from farm.db.measurements import cursor_of
from farm.db.tables import OPEN_JOB_STATES, JobState
from farm.devices import DeviceTraits
from farm.errors import NoSuchCampaign
from farm.kernels import Kernel
from farm.kernels.binary import BUILT_WITH, Binary, Versions

_DEVICES = text(f"""
SELECT d.uuid, d.type, h.name AS host, d.traits FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE NOT starts_with(d.uuid, '{UUID_PREFIX}') ORDER BY d.id
""")


def known_devices(connection: Connection) -> list[tuple[str, str, str, DeviceTraits]]:
    """(uuid, type, host, traits) of each device that was ever announced: what targets are resolved against.

    Devices of imports are none of these.
    """
    return [(row.uuid, row.type, row.host, DeviceTraits.from_json(row.traits)) for row in connection.execute(_DEVICES)]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a submission added. Numbers of new rows: a campaign that was there already adds none."""

    campaign_id: int
    new: bool
    configurations: int
    jobs: int


_CAMPAIGN = text("""
INSERT INTO campaigns (name, digest, owner, priority, document, rules)
VALUES (:name, :digest, :owner, :priority, CAST(:document AS jsonb), CAST(:rules AS jsonb))
ON CONFLICT (digest) DO UPDATE SET priority = excluded.priority
RETURNING id, (xmax = 0) AS new
""")
_STAGE = """
CREATE TEMPORARY TABLE staged (
    configuration_id uuid, m bigint, n bigint, k bigint, ab text, cd text, acc text, layout text,
    alpha float8, beta float8, family text, parameters jsonb, pool int, any_device boolean, invalid text,
    needs text[]
) ON COMMIT DROP
"""
_CONFIGURATIONS = text("""
INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters)
SELECT DISTINCT ON (configuration_id)
    configuration_id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters
FROM staged ORDER BY configuration_id
ON CONFLICT DO NOTHING
""")
# Two statements: one would not see a pool that another submission makes while this one waits for it.
_NEW_POOL = text("""
INSERT INTO pools (name, device_types, device_uuid) VALUES (:name, CAST(:device_types AS text[]), :device_uuid)
ON CONFLICT (name) DO NOTHING
""")
_POOL = text("SELECT id FROM pools WHERE name = :name")
_LANE = text("""
WITH new AS (
    INSERT INTO lanes (campaign_id, pool_id) VALUES (:campaign_id, :pool_id) ON CONFLICT DO NOTHING RETURNING id
)
SELECT id FROM new UNION ALL SELECT id FROM lanes WHERE campaign_id = :campaign_id AND pool_id = :pool_id LIMIT 1
""")
_LOCK_LANES = text("SELECT id FROM lanes WHERE campaign_id = :campaign_id ORDER BY id FOR NO KEY UPDATE")
# A campaign's new jobs behind a lane's cursor are found by it; those that it has passed are put where they are found.
_JOBS = text("""
WITH new AS (
    INSERT INTO jobs (lane_id, configuration_id, any_device, state)
    SELECT DISTINCT ON (l.id, s.configuration_id)
        l.id, s.configuration_id, s.any_device, CASE
            WHEN s.invalid IS NOT NULL THEN 'invalid'
            WHEN EXISTS (SELECT 1 FROM kernels k WHERE k.hash = ANY(s.needs) AND k.state <> 'built') THEN 'waiting'
            ELSE 'open'
        END
    FROM staged s JOIN unnest(CAST(:pools AS int[]), CAST(:lane_ids AS bigint[])) AS l(pool, id) USING (pool)
    WHERE :new OR NOT s.any_device OR NOT EXISTS (
        SELECT 1 FROM lanes o JOIN jobs j ON j.lane_id = o.id
        WHERE o.campaign_id = :campaign_id AND j.configuration_id = s.configuration_id AND j.any_device
    )
    ORDER BY l.id, s.configuration_id
    ON CONFLICT DO NOTHING
    RETURNING id, lane_id, configuration_id, state
), passed AS (
    INSERT INTO returned_jobs (job_id, lane_id, solo)
    SELECT n.id, n.lane_id, false FROM new n JOIN lanes l ON l.id = n.lane_id
    WHERE n.state = 'open' AND n.configuration_id <= l.cursor
), counted AS (
    UPDATE lanes l SET jobs = l.jobs + s.jobs, invalid = l.invalid + s.invalid, fresh = l.fresh OR s.open > 0
    FROM (
        SELECT lane_id, count(*) AS jobs, count(*) FILTER (WHERE state = 'invalid') AS invalid,
            count(*) FILTER (WHERE state = 'open') AS open
        FROM new GROUP BY lane_id
    ) s
    WHERE l.id = s.lane_id
)
SELECT count(*) FROM new
""")
_WAITING = text("""
INSERT INTO waiting_jobs (kernel_id, job_id, lane_id)
SELECT k.id, j.id, j.lane_id
FROM staged s JOIN unnest(CAST(:pools AS int[]), CAST(:lane_ids AS bigint[])) AS l(pool, id) USING (pool)
JOIN jobs j ON j.lane_id = l.id AND j.configuration_id = s.configuration_id
JOIN kernels k ON k.hash = ANY(s.needs)
WHERE j.state = 'waiting'
ON CONFLICT DO NOTHING
""")
_REFUSED = text("""
INSERT INTO failures (job_id, lane_id, kind, message)
SELECT DISTINCT ON (j.id) j.id, j.lane_id, 'invalid', s.invalid
FROM staged s JOIN unnest(CAST(:pools AS int[]), CAST(:lane_ids AS bigint[])) AS l(pool, id) USING (pool)
JOIN jobs j ON j.lane_id = l.id AND j.configuration_id = s.configuration_id
WHERE s.invalid IS NOT NULL AND j.state = 'invalid'
  AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.job_id = j.id)
ORDER BY j.id
""")
_ACTIVATE = text("""
UPDATE campaigns SET state = 'active', finished_at = NULL
WHERE id = :id AND state IN ('done', 'cancelled') AND EXISTS (
    SELECT 1 FROM lanes WHERE campaign_id = :id AND jobs > done + invalid + dead
)
""")


def store(
    connection: Connection, campaign: Campaign, planned: Iterable[PlannedJob], *, versions: Versions = BUILT_WITH
) -> Stored:
    """Stores a campaign, its configurations and jobs, with COPY and in the caller's one transaction.

    Kernels that jobs need are wanted, built with those versions; jobs wait for those that are not built yet.

    The same campaign again adds what is missing (devices that came since), re-opens what was cancelled, and leaves
    every result alone.
    """
    row = connection.execute(
        _CAMPAIGN,
        {
            "name": campaign.name,
            "digest": campaign.digest,
            "owner": campaign.owner,
            "priority": campaign.priority,
            "document": json.dumps(campaign.document),
            "rules": campaign.rules.model_dump_json(),
        },
    ).one()
    connection.exec_driver_sql(_STAGE)
    pools: dict[PoolSpec, int] = {}
    hashes: dict[Binary, str] = {}
    with cursor_of(connection) as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
        for chunk in _chunks(_lines(planned, pools, hashes, versions)):
            copy.write(chunk)
    configurations = connection.execute(_CONFIGURATIONS).rowcount
    # In one order, so that two submissions never wait for each other's new pools.
    lane_of = {pool: _lane(connection, row.id, pool) for pool in sorted(pools, key=lambda pool: pool.name)}
    connection.execute(_LOCK_LANES, {"campaign_id": row.id})
    lanes = {"pools": list(pools.values()), "lane_ids": [lane_of[pool] for pool in pools]}
    if hashes:
        known = kernels.want(connection, hashes, versions)
        kernels.want_again(connection, list(known.values()))
    jobs: int = connection.execute(_JOBS, {**lanes, "campaign_id": row.id, "new": row.new}).scalar_one()
    if hashes:
        connection.execute(_WAITING, lanes)
    connection.execute(_REFUSED, lanes)
    connection.execute(_ACTIVATE, {"id": row.id})
    return Stored(row.id, row.new, configurations, jobs)


def _lane(connection: Connection, campaign_id: int, pool: PoolSpec) -> int:
    types = None if pool.device_types is None else list(pool.device_types)
    parameters = {"name": pool.name, "device_types": types, "device_uuid": pool.device_uuid}
    connection.execute(_NEW_POOL, parameters)
    pool_id = connection.execute(_POOL, {"name": pool.name}).scalar_one()
    found: int = connection.execute(_LANE, {"campaign_id": campaign_id, "pool_id": pool_id}).scalar_one()
    return found


def _lines(
    planned: Iterable[PlannedJob], pools: dict[PoolSpec, int], hashes: dict[Binary, str], versions: Versions
) -> Iterator[str]:
    """COPY's text format. Kernels repeat, so their JSON is made once, and binaries are hashed once."""
    parameters: dict[Kernel, str] = {}
    for job in planned:
        configuration = job.configuration
        p, kernel = configuration.problem, configuration.kernel
        if kernel not in parameters:
            parameters[kernel] = json.dumps(dict(kernel.parameters))
        pool = pools.setdefault(job.pool, len(pools))
        invalid = r"\N" if job.invalid_reason is None else _escaped(job.invalid_reason)
        for binary in job.binaries:
            if binary not in hashes:
                hashes[binary] = binary.hash(versions)
        needs = f"{{{','.join(hashes[binary] for binary in job.binaries)}}}"
        s, t = p.shape, p.types
        yield (
            f"{configuration.id}\t{s.m}\t{s.n}\t{s.k}\t{t.ab.value}\t{t.cd.value}\t{t.acc.value}\t{p.layout.value}\t"
            f"{p.alpha!r}\t{p.beta!r}\t{kernel.family}\t{parameters[kernel]}\t{pool}\t{job.any_device}\t{invalid}\t"
            f"{needs}\n"
        )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")


def _chunks(lines: Iterator[str], size: int = 1000) -> Iterator[str]:
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield "".join(chunk)
            chunk.clear()
    if chunk:
        yield "".join(chunk)


_FIND = text("""
SELECT id, name, digest, owner, priority, state, document, rules, submitted_at, finished_at FROM campaigns
WHERE name = :name OR (CAST(:digest AS text) IS NOT NULL AND starts_with(digest, :digest))
ORDER BY id DESC LIMIT 1
""")
_NAMES = text("SELECT name FROM campaigns GROUP BY name ORDER BY max(id) DESC LIMIT 12")


def find(connection: Connection, name: str) -> dict[str, Any]:
    """The campaign of that name (the newest, where a file was changed and kept its name) or digest prefix.

    Raises `NoSuchCampaign`.
    """
    digest = name if re.fullmatch(r"[0-9a-f]{6,64}", name) else None
    row = connection.execute(_FIND, {"name": name, "digest": digest}).mappings().one_or_none()
    if row is None:
        known = ", ".join(connection.execute(_NAMES).scalars()) or "none yet"
        raise NoSuchCampaign(name=name, known=known)
    return dict(row)


# Jobs by state from the counters of the lanes and the few batches that are not in them yet: the same at any size.
TALLY = """
SELECT l.campaign_id, l.id AS lane_id, l.jobs, l.done + b.done AS done, l.invalid + b.invalid AS invalid,
    l.dead + b.dead AS dead, b.queued, b.running
FROM lanes l
CROSS JOIN LATERAL (
    SELECT coalesce(sum(jobs) FILTER (WHERE state = 'queued'), 0)::bigint AS queued,
        coalesce(sum(jobs) FILTER (WHERE state = 'leased'), 0)::bigint AS running,
        coalesce(sum(done), 0)::bigint AS done, coalesce(sum(invalid), 0)::bigint AS invalid,
        coalesce(sum(dead), 0)::bigint AS dead
    FROM batches WHERE lane_id = l.id AND NOT folded
) b
"""
_COUNTS = f"""
SELECT
    CASE WHEN c.state = 'cancelled' THEN 0 ELSE waiting END AS pending,
    queued, running, done, invalid, dead,
    CASE WHEN c.state = 'cancelled' THEN waiting ELSE 0 END AS cancelled
FROM (
    SELECT coalesce(sum(queued), 0)::bigint AS queued, coalesce(sum(running), 0)::bigint AS running,
        coalesce(sum(done), 0)::bigint AS done, coalesce(sum(invalid), 0)::bigint AS invalid,
        coalesce(sum(dead), 0)::bigint AS dead,
        coalesce(sum(jobs - done - invalid - dead - queued - running), 0)::bigint AS waiting
    FROM ({TALLY} WHERE l.campaign_id = c.id) t
) s
"""
_LIST = text(f"""
SELECT c.id, c.name, c.digest, c.owner, c.priority, c.state, c.submitted_at, c.finished_at, j.*
FROM campaigns c CROSS JOIN LATERAL ({_COUNTS}) j
ORDER BY c.id DESC LIMIT :limit
""")


def overview(connection: Connection, *, limit: int = 50) -> list[dict[str, Any]]:
    """The newest campaigns, each with `counts` of its jobs by state."""
    return [_with_counts(row) for row in connection.execute(_LIST, {"limit": limit}).mappings()]


def _with_counts(row: Mapping[Any, Any]) -> dict[str, Any]:
    counted = {state.value: row[state.value] for state in JobState}
    return {**{key: value for key, value in row.items() if key not in counted}, "counts": counted}


_COUNT = text(f"SELECT j.* FROM campaigns c CROSS JOIN LATERAL ({_COUNTS}) j WHERE c.id = :id")


def counts(connection: Connection, campaign_id: int) -> dict[str, int]:
    """Jobs of a campaign by state, every state named."""
    return dict(connection.execute(_COUNT, {"id": campaign_id}).mappings().one())


def open_jobs(counts: Mapping[str, int]) -> int:
    """How many of the jobs counted by state still wait or run."""
    return sum(counts[state] for state in OPEN_JOB_STATES)


_FINISHED = """
c.state IN ('active', 'paused') AND NOT EXISTS (
    SELECT 1 FROM lanes l WHERE l.campaign_id = c.id AND l.jobs > l.done + l.invalid + l.dead
)
"""
_FINISHABLE = text(f"SELECT c.id FROM campaigns c WHERE {_FINISHED} ORDER BY c.id FOR NO KEY UPDATE SKIP LOCKED")
_FINISH = text(f"""
UPDATE campaigns c SET state = 'done', finished_at = clock_timestamp() WHERE c.id = ANY(:ids) AND {_FINISHED}
RETURNING c.id
""")


def finish(connection: Connection) -> list[int]:
    """active, paused → done, for every campaign without open jobs, as of the last `batches.fold`. Returns their ids."""
    locked = list(connection.execute(_FINISHABLE).scalars())
    # A second look with the campaigns locked: a submission may have added jobs since the first began.
    return list(connection.execute(_FINISH, {"ids": locked}).scalars()) if locked else []
