"""Campaigns: storing one with its configurations and jobs, finding it, its progress, its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from farm.campaign import Campaign, PlannedJob, PoolSpec
from farm.db import batches
from farm.db.measurements import cursor_of
from farm.db.tables import OPEN_JOB_STATES, JobState
from farm.devices import DeviceTraits
from farm.errors import NoSuchCampaign
from farm.kernels import Kernel

_DEVICES = text("""
SELECT d.uuid, d.type, h.name AS host, d.traits FROM devices d JOIN hosts h ON h.id = d.host_id ORDER BY d.id
""")


def known_devices(connection: Connection) -> list[tuple[str, str, str, DeviceTraits]]:
    """(uuid, type, host, traits) of each device that was ever announced: what targets are resolved against."""
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
    alpha float8, beta float8, family text, parameters jsonb, pool int, any_device boolean, invalid text
) ON COMMIT DROP
"""
_CONFIGURATIONS = text("""
INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters)
SELECT DISTINCT ON (configuration_id)
    configuration_id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters
FROM staged ORDER BY configuration_id
ON CONFLICT DO NOTHING
""")
_POOL = text("""
WITH new AS (
    INSERT INTO pools (name, device_types, device_uuid) VALUES (:name, CAST(:device_types AS text[]), :device_uuid)
    ON CONFLICT (name) DO NOTHING RETURNING id
)
SELECT id FROM new UNION ALL SELECT id FROM pools WHERE name = :name LIMIT 1
""")
_JOBS = text("""
INSERT INTO jobs (campaign_id, configuration_id, pool_id, any_device, state, error_class, error)
SELECT DISTINCT ON (s.configuration_id, s.pool)
    :campaign_id, s.configuration_id, p.id, s.any_device,
    CASE WHEN s.invalid IS NULL THEN 'pending' ELSE 'invalid' END,
    CASE WHEN s.invalid IS NULL THEN NULL ELSE 'invalid' END,
    s.invalid
FROM staged s JOIN unnest(CAST(:pools AS int[]), CAST(:pool_ids AS bigint[])) AS p(pool, id) USING (pool)
ORDER BY s.configuration_id, s.pool
ON CONFLICT DO NOTHING
""")
_REOPEN = text("UPDATE jobs SET state = 'pending', attempts = 0 WHERE campaign_id = :id AND state = 'cancelled'")
_ACTIVATE = text("""
UPDATE campaigns SET state = 'active', finished_at = NULL
WHERE id = :id AND EXISTS (SELECT 1 FROM jobs WHERE campaign_id = :id AND state IN ('pending', 'queued', 'running'))
""")


def store(connection: Connection, campaign: Campaign, planned: Iterable[PlannedJob]) -> Stored:
    """Stores a campaign, its configurations and jobs, with COPY and in the caller's one transaction.

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
    with cursor_of(connection) as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
        for chunk in _chunks(_lines(planned, pools)):
            copy.write(chunk)
    configurations = connection.execute(_CONFIGURATIONS).rowcount
    pool_ids = [
        connection.execute(
            _POOL,
            {
                "name": pool.name,
                "device_types": None if pool.device_types is None else list(pool.device_types),
                "device_uuid": pool.device_uuid,
            },
        ).scalar_one()
        for pool in pools
    ]
    jobs = connection.execute(
        _JOBS, {"campaign_id": row.id, "pools": list(pools.values()), "pool_ids": pool_ids}
    ).rowcount
    connection.execute(_REOPEN, {"id": row.id})
    connection.execute(_ACTIVATE, {"id": row.id})
    return Stored(row.id, row.new, configurations, jobs)


def _lines(planned: Iterable[PlannedJob], pools: dict[PoolSpec, int]) -> Iterator[str]:
    """COPY's text format. Kernels repeat, so their JSON is made once."""
    parameters: dict[Kernel, str] = {}
    for job in planned:
        configuration = job.configuration
        p, kernel = configuration.problem, configuration.kernel
        if kernel not in parameters:
            parameters[kernel] = json.dumps(dict(kernel.parameters))
        pool = pools.setdefault(job.pool, len(pools))
        invalid = r"\N" if job.invalid_reason is None else _escaped(job.invalid_reason)
        s, t = p.shape, p.types
        yield (
            f"{configuration.id}\t{s.m}\t{s.n}\t{s.k}\t{t.ab.value}\t{t.cd.value}\t{t.acc.value}\t{p.layout.value}\t"
            f"{p.alpha!r}\t{p.beta!r}\t{kernel.family}\t{parameters[kernel]}\t{pool}\t{job.any_device}\t{invalid}\n"
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


_LIST = text("""
SELECT c.id, c.name, c.digest, c.owner, c.priority, c.state, c.submitted_at, c.finished_at, j.counts
FROM campaigns c
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(state, count) AS counts
    FROM (SELECT state, count(*) AS count FROM jobs WHERE campaign_id = c.id GROUP BY state) s
) j
ORDER BY c.id DESC LIMIT :limit
""")


def overview(connection: Connection, *, limit: int = 50) -> list[dict[str, Any]]:
    """The newest campaigns, each with `counts` of its jobs by state."""
    rows = connection.execute(_LIST, {"limit": limit}).mappings()
    return [{**row, "counts": _every_state(row["counts"] or {})} for row in rows]


_COUNTS = text("SELECT state, count(*) AS n FROM jobs WHERE campaign_id = :id GROUP BY state")


def counts(connection: Connection, campaign_id: int) -> dict[str, int]:
    """Jobs of a campaign by state, every state named."""
    return _every_state({row.state: row.n for row in connection.execute(_COUNTS, {"id": campaign_id})})


def open_jobs(counts: Mapping[str, int]) -> int:
    """How many of the jobs counted by state still wait or run."""
    return sum(counts[state] for state in OPEN_JOB_STATES)


def _every_state(some: Mapping[str, int]) -> dict[str, int]:
    return {state.value: some.get(state.value, 0) for state in JobState}


_PROBLEMS = text("""
SELECT j.state, j.error_class, j.error, j.attempts, p.name AS pool, c.m, c.n, c.k, c.ab, c.cd, c.acc, c.layout,
    c.alpha, c.beta, c.family, c.parameters
FROM jobs j JOIN configurations c ON c.id = j.configuration_id JOIN pools p ON p.id = j.pool_id
WHERE j.campaign_id = :id AND j.error IS NOT NULL ORDER BY j.state, j.id LIMIT :limit
""")


def problems(connection: Connection, campaign_id: int, *, limit: int = 20) -> list[dict[str, Any]]:
    """Jobs that failed at least once or cannot run, with their errors."""
    return [dict(row) for row in connection.execute(_PROBLEMS, {"id": campaign_id, "limit": limit}).mappings()]


_CANCEL = text("""
UPDATE campaigns SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = :id AND state = 'active'
""")


def cancel(connection: Connection, campaign_id: int) -> int:
    """active → cancelled. Returns the number of jobs that will not be measured; results stay."""
    if connection.execute(_CANCEL, {"id": campaign_id}).rowcount != 1:
        return 0
    return batches.cancel_open(connection, campaign_id)


_FINISH = text("""
UPDATE campaigns c SET state = 'done', finished_at = clock_timestamp()
WHERE c.state = 'active'
  AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.campaign_id = c.id AND j.state IN ('pending', 'queued', 'running'))
RETURNING c.id
""")


def finish(connection: Connection) -> list[int]:
    """active → done, for every campaign without open jobs. Returns their ids."""
    return list(connection.execute(_FINISH).scalars())
