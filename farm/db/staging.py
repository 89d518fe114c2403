"""Stages jobs in a temporary table by COPY, from which job groups get missing jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import Connection, text

from farm.campaign import PlannedJob, PoolSpec
from farm.db import kernels
from farm.db.measurements import cursor_of
from farm.db.states import GroupPurpose
from farm.groups import NONE
from farm.kernels import Kernel
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH, Versions
from farm.measurement import MeasuringRules

_STAGE = """
CREATE TEMPORARY TABLE staged (
    configuration_id uuid, m bigint, n bigint, k bigint, ab text, cd text, acc text, layout text,
    alpha float8, beta float8, batch bigint, scale text, fused text, groups text, sparsity text, family text, parameters jsonb, pool int, any_device boolean, invalid text,
    needs text[]
) ON COMMIT DROP
"""
_CONFIGURATIONS = text("""
INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, batch, scale, fused, groups, sparsity, family, parameters)
SELECT DISTINCT ON (configuration_id)
    configuration_id, m, n, k, ab, cd, acc, layout, alpha, beta, batch, scale, fused, groups, sparsity, family, parameters
FROM staged ORDER BY configuration_id
ON CONFLICT DO NOTHING
""")
# Two statements: one would not see a pool that another submission makes while this one waits for it.
_NEW_POOL = text("""
INSERT INTO pools (name, device_types, device_uuid) VALUES (:name, CAST(:device_types AS text[]), :device_uuid)
ON CONFLICT (name) DO NOTHING
""")
_POOL = text("SELECT id FROM pools WHERE name = :name")
_JOB_GROUP = text("""
WITH new AS (
    INSERT INTO lanes (campaign_id, pool_id, round, rules, purpose)
    VALUES (:campaign_id, :pool_id, :round, CAST(:rules AS jsonb), :purpose) ON CONFLICT DO NOTHING RETURNING id
)
SELECT id FROM new
UNION ALL SELECT id FROM lanes WHERE campaign_id = :campaign_id AND pool_id = :pool_id AND round = :round LIMIT 1
""")
_LOCK_GROUPS = text("SELECT id FROM lanes WHERE campaign_id = :campaign_id ORDER BY id FOR NO KEY UPDATE")
# A campaign's new jobs behind a job group's cursor are found by it; those that it has passed are put where they are found.
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
SELECT count(*) AS jobs, count(*) FILTER (WHERE state = 'waiting') AS waiting FROM new
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


def begin(connection: Connection) -> None:
    """Creates the temporary table. Call it once per transaction."""
    connection.exec_driver_sql(_STAGE)


def copy_in(
    connection: Connection,
    planned: Iterable[PlannedJob],
    pools: dict[tuple[PoolSpec, int], int],
    *,
    versions: Versions = BUILT_WITH,
) -> dict[Binary, str]:
    """Copies jobs to the temporary table, without locks that others need. Returns the required binaries with their hashes.

    Numbers the pools and rounds, from 0 on, in `pools`.
    """
    hashes: dict[Binary, str] = {}
    with cursor_of(connection) as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
        for chunk in _chunks(_lines(planned, pools, hashes, versions)):
            copy.write(chunk)
    return hashes


def store_configurations(
    connection: Connection, binaries: Mapping[Binary, str], *, versions: Versions = BUILT_WITH
) -> int:
    """Stores the staged configurations, and requests these kernels, built with those versions.

    Returns the number of new configurations.
    """
    if binaries:
        known = kernels.want(connection, binaries, versions)
        kernels.want_again(connection, list(known.values()))
    return connection.execute(_CONFIGURATIONS).rowcount


def pool(connection: Connection, spec: PoolSpec) -> int:
    """The id of a pool. A new pool is stored."""
    types = None if spec.device_types is None else list(spec.device_types)
    parameters = {"name": spec.name, "device_types": types, "device_uuid": spec.device_uuid}
    connection.execute(_NEW_POOL, parameters)
    found: int = connection.execute(_POOL, {"name": spec.name}).scalar_one()
    return found


def group(
    connection: Connection,
    campaign_id: int,
    pool_id: int,
    *,
    number: int = 0,
    rules: MeasuringRules | None = None,
    purpose: GroupPurpose | None = None,
) -> int:
    """The id of a campaign's job group of that round. A new one is stored with these rules and purpose."""
    parameters = {
        "campaign_id": campaign_id,
        "pool_id": pool_id,
        "round": number,
        "rules": None if rules is None else rules.model_dump_json(),
        "purpose": purpose,
    }
    found: int = connection.execute(_JOB_GROUP, parameters).scalar_one()
    return found


def lock_groups(connection: Connection, campaign_id: int) -> None:
    """Locks all job groups of a campaign for this transaction."""
    connection.execute(_LOCK_GROUPS, {"campaign_id": campaign_id})


def put_jobs(connection: Connection, campaign_id: int, groups: Mapping[int, int], *, new: bool = False) -> int:
    """Adds missing staged jobs to the job groups, by the number of the pool. Returns the number of added jobs.

    Jobs that need kernels which are not built wait for them.

    The caller has locked the job groups. `new`: the campaign is new, so its jobs need not be searched.
    """
    parameters = {"pools": list(groups), "lane_ids": list(groups.values())}
    made = connection.execute(_JOBS, {**parameters, "campaign_id": campaign_id, "new": new}).one()
    if made.waiting:
        connection.execute(_WAITING, parameters)
    connection.execute(_REFUSED, parameters)
    jobs: int = made.jobs
    return jobs


def _lines(
    planned: Iterable[PlannedJob], pools: dict[tuple[PoolSpec, int], int], hashes: dict[Binary, str], versions: Versions
) -> Iterator[str]:
    """COPY's text format. Kernels repeat, so their JSON is made once, and binaries are hashed once."""
    parameters: dict[Kernel, str] = {}
    for job in planned:
        configuration = job.configuration
        p, kernel = configuration.problem, configuration.kernel
        if kernel not in parameters:
            parameters[kernel] = json.dumps(dict(kernel.parameters))
        pool = pools.setdefault((job.pool, job.round), len(pools))
        invalid = r"\N" if job.invalid_reason is None else _escaped(job.invalid_reason)
        for binary in job.binaries:
            if binary not in hashes:
                hashes[binary] = binary.hash(versions)
        needs = f"{{{','.join(hashes[binary] for binary in job.binaries)}}}"
        s, t = p.shape, p.types
        yield (
            f"{configuration.id}\t{s.m}\t{s.n}\t{s.k}\t{t.ab.value}\t{t.cd.value}\t{t.acc.value}\t{p.layout.value}\t"
            f"{p.alpha!r}\t{p.beta!r}\t{p.batch}\t{p.scale.value}\t{p.fused.value}\t{p.groups or NONE}\t{p.sparsity.value}\t{kernel.family}\t{parameters[kernel]}\t{pool}\t{job.any_device}\t{invalid}\t"
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
