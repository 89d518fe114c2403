"""Storing campaigns with their configurations and jobs, finding them, counting their jobs, and ending them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from farm.db.engine import hold_briefly
from farm.db.states import OPEN_JOB_STATES, CampaignState, JobState
from farm.devices import IMPORTED_PREFIX, Backend, DeviceTraits
from farm.errors import NoSuchCampaign, UnknownDefinitions
from farm.kernels.toolchains import BUILT_WITH, Versions

# What only submitting needs is imported there: farm status takes half the time without.
if TYPE_CHECKING:
    from farm.campaign import Campaign, KnownDevice, PlannedJob, PoolSpec

_DEVICES = text(f"""
SELECT d.uuid, d.type, h.name AS host, d.traits, d.backend FROM devices d JOIN hosts h ON h.id = d.host_id
WHERE NOT starts_with(d.uuid, '{IMPORTED_PREFIX}') ORDER BY d.id
""")


def known_devices(connection: Connection) -> list[KnownDevice]:
    """Every device that was ever announced, without those of imports. Targets are resolved against them."""
    from farm.campaign import KnownDevice

    return [
        KnownDevice(row.uuid, row.type, row.host, DeviceTraits.from_json(row.traits), Backend(row.backend))
        for row in connection.execute(_DEVICES)
    ]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a submission added, in numbers of new rows."""

    campaign_id: int
    new: bool
    configurations: int
    jobs: int
    # Whether it was deleted before, and was restored with its rows.
    restored: bool = False


_CAMPAIGN = text("""
INSERT INTO campaigns (name, digest, owner, submitted_by, priority, document, rules)
VALUES (:name, :digest, :owner, :submitted_by, :priority, CAST(:document AS jsonb), CAST(:rules AS jsonb))
ON CONFLICT (digest) DO UPDATE SET priority = excluded.priority
RETURNING id, (xmax = 0) AS new
""")
# A short round, which has rules, is over when it was decided what goes on from it.
_UNFINISHED_GROUP = (
    "(l.jobs > l.done + l.invalid + l.dead OR (l.rules IS NOT NULL AND l.decided IS DISTINCT FROM l.done)"
    " OR (l.purpose = 'learn' AND l.decided IS NULL))"
)
_ACTIVATE = text(f"""
UPDATE campaigns SET state = 'active', finished_at = NULL
WHERE id = :id AND state IN ('done', 'cancelled') AND EXISTS (
    SELECT 1 FROM lanes l WHERE l.campaign_id = :id AND {_UNFINISHED_GROUP}
)
""")


def store(
    connection: Connection,
    campaign: Campaign,
    planned: Iterable[PlannedJob],
    *,
    versions: Versions = BUILT_WITH,
    submitted_by: str | None = None,
) -> Stored:
    """Stores a campaign, its definitions, configurations and jobs, with COPY and in the caller's one transaction.

    Kernels that jobs need are requested, built with those versions. Jobs wait for those that are not built yet.

    The same campaign again adds missing jobs (of new devices), re-opens cancelled ones, and changes no result. A deleted
    campaign is restored first.

    What is stored is sent to the server before anything is locked: a slow client does not block others.
    """
    from farm.db import archive, definitions, learning, rounds, staging

    staging.begin(connection)
    pools: dict[tuple[PoolSpec, int], int] = {}
    binaries = staging.copy_in(connection, planned, pools, versions=versions)
    hold_briefly(connection)
    archive.lock_digest(connection, campaign.digest)
    restored = archive.restore_digest(connection, campaign.digest)
    definitions.store(connection, campaign.definitions, submitted_by=submitted_by)
    unknown = definitions.unknown(connection, definitions.numbers_in(one.kernel for one in campaign.configurations))
    if unknown:
        raise UnknownDefinitions(where=campaign.where, numbers=", ".join(map(str, unknown)))
    configurations = staging.store_configurations(connection, binaries, versions=versions)
    row = connection.execute(
        _CAMPAIGN,
        {
            "name": campaign.name,
            "digest": campaign.digest,
            "owner": campaign.owner,
            "submitted_by": submitted_by,
            "priority": campaign.priority,
            "document": json.dumps(campaign.document),
            "rules": campaign.measure.model_dump_json(),
        },
    ).one()
    rules = None if campaign.search is None else campaign.search.first_rules(campaign.measure)
    # In one order, so that two submissions never wait for each other's new pools.
    group_of = {
        (pool, number): staging.group(
            connection,
            row.id,
            staging.pool(connection, pool),
            number=number,
            rules=rules,
            purpose=learning.purpose_of(number) if campaign.learns else None,
        )
        for pool, number in sorted(pools, key=lambda key: (key[0].name, key[1]))
    }
    staging.lock_groups(connection, row.id)
    groups = {number: group_of[key] for key, number in pools.items()}
    jobs = staging.put_jobs(connection, row.id, groups, new=row.new)
    if campaign.search is not None and rules is not None:
        rounds.expect(connection, campaign.search, list(groups.values()))
    connection.execute(_ACTIVATE, {"id": row.id})
    return Stored(row.id, row.new, configurations, jobs, restored)


_ESTIMATE = text("UPDATE campaigns SET estimated_s = :seconds WHERE id = :id")


def set_estimate(connection: Connection, campaign_id: int, seconds: float) -> None:
    """Stores an upper estimate of the device time of all jobs of a campaign."""
    connection.execute(_ESTIMATE, {"id": campaign_id, "seconds": seconds})


_FIND = text("""
SELECT id, name, digest, owner, submitted_by, priority, state, document, rules, submitted_at, finished_at FROM campaigns
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


_OF_NAME = text("SELECT id FROM campaigns WHERE name = :name ORDER BY id")


def repetitions(connection: Connection, name: str) -> list[int]:
    """The ids of every campaign of that name, which are those of one that was measured again; or of a digest, its own.

    Raises `NoSuchCampaign`.
    """
    newest = find(connection, name)
    return list(connection.execute(_OF_NAME, {"name": name}).scalars()) if newest["name"] == name else [newest["id"]]


_LAST_REPEAT = text("""
SELECT max(coalesce(CAST(document->>'repeat' AS bigint), 0)) FROM campaigns WHERE name = :name AND owner = :owner
""")
_OPEN = text("SELECT EXISTS (SELECT 1 FROM campaigns WHERE digest = :digest AND state IN ('active', 'paused'))")


def again(connection: Connection, campaign: Campaign) -> Campaign:
    """The campaign with the number of its next repetition, or of the last one if that has not ended.

    A deleted repetition keeps its number: measuring again does not restore it.
    """
    from farm.db import archive

    last = connection.execute(_LAST_REPEAT, {"name": campaign.name, "owner": campaign.owner}).scalar_one()
    following = campaign
    if last is not None:
        latest = campaign.changed(repeat=last)
        if connection.execute(_OPEN, {"digest": latest.digest}).scalar_one():
            return latest
        following = campaign.changed(repeat=last + 1)
    deleted = archive.deleted_digests(connection, campaign.name)
    while following.digest in deleted:
        following = following.changed(repeat=following.repeat + 1)
    return following


# Jobs by state from the counters of the job groups and the few batches that are not in them yet: the same at any size.
TALLY = """
SELECT l.campaign_id, l.id AS lane_id, l.jobs, l.done + b.done AS done, l.invalid + b.invalid AS invalid,
    l.dead + b.dead AS dead, b.queued, b.running,
    CASE
        WHEN l.purpose = 'learn' AND l.decided IS NULL THEN greatest(l.later, 1)
        WHEN l.rules IS NULL OR l.decided = l.done + b.done THEN 0
        WHEN l.decided IS NULL THEN greatest(l.later, 1)
        ELSE 1  -- a job that was tried again: it may go on
    END AS later
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
    queued, running, CASE WHEN c.state = 'cancelled' THEN 0 ELSE later END AS later, done, invalid, dead,
    CASE WHEN c.state = 'cancelled' THEN waiting ELSE 0 END AS cancelled
FROM (
    SELECT coalesce(sum(queued), 0)::bigint AS queued, coalesce(sum(running), 0)::bigint AS running,
        coalesce(sum(done), 0)::bigint AS done, coalesce(sum(invalid), 0)::bigint AS invalid,
        coalesce(sum(dead), 0)::bigint AS dead, coalesce(sum(later), 0)::bigint AS later,
        coalesce(sum(jobs - done - invalid - dead - queued - running), 0)::bigint AS waiting
    FROM ({TALLY} WHERE l.campaign_id = c.id) t
) s
"""
_LIST = text(f"""
SELECT c.id, c.name, c.digest, c.owner, c.submitted_by, c.priority, c.state, c.submitted_at, c.finished_at, j.*
FROM campaigns c CROSS JOIN LATERAL ({_COUNTS}) j
WHERE (CAST(:states AS text[]) IS NULL OR c.state = ANY(:states))
  AND (CAST(:owner AS text) IS NULL OR c.owner = :owner)
  AND (CAST(:search AS text) IS NULL OR strpos(c.name, :search) > 0)
  AND (CAST(:before AS bigint) IS NULL OR c.id < :before)
ORDER BY c.id DESC LIMIT :limit
""")


def overview(
    connection: Connection,
    *,
    states: Sequence[CampaignState] | None = None,
    owner: str | None = None,
    search: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """The newest campaigns, each with `counts` of its jobs by state: of that owner, in one of those states, with `search`
    in their names, and with an id before that one."""
    parameters = {
        "states": None if states is None else [state.value for state in states],
        "owner": owner,
        "search": search,
        "before": before,
        "limit": limit,
    }
    return [_with_counts(row) for row in connection.execute(_LIST, parameters).mappings()]


_NUMBER = text("SELECT count(*) FROM campaigns WHERE state = ANY(:states)")


def count(connection: Connection, states: Sequence[CampaignState]) -> int:
    """How many campaigns are in one of those states."""
    found: int = connection.execute(_NUMBER, {"states": [state.value for state in states]}).scalar_one()
    return found


def _with_counts(row: Mapping[Any, Any]) -> dict[str, Any]:
    counted = {state.value: row[state.value] for state in JobState}
    return {**{key: value for key, value in row.items() if key not in counted}, "counts": counted}


_COUNT = text(f"SELECT j.* FROM campaigns c CROSS JOIN LATERAL ({_COUNTS}) j WHERE c.id = :id")


def counts(connection: Connection, campaign_id: int) -> dict[str, int]:
    """Jobs of a campaign by state, every state named."""
    return dict(connection.execute(_COUNT, {"id": campaign_id}).mappings().one())


@dataclass(frozen=True, slots=True)
class CampaignsUnderway:
    """The open jobs of an owner, and an upper estimate of their device time."""

    open_jobs: int
    device_seconds: float


_UNDERWAY = text(f"""
SELECT coalesce(sum(o.open), 0)::bigint AS open_jobs,
    coalesce(sum(c.estimated_s * o.open / greatest(o.open + j.done + j.invalid + j.dead, 1)), 0)::float8 AS device_seconds
FROM campaigns c CROSS JOIN LATERAL ({_COUNTS}) j
CROSS JOIN LATERAL (SELECT j.pending + j.queued + j.running + j.later AS open) o
WHERE c.owner = :owner AND c.state IN ('active', 'paused')
""")


def underway(connection: Connection, owner: str) -> CampaignsUnderway:
    """The open jobs of the active and paused campaigns of an owner."""
    return CampaignsUnderway(**connection.execute(_UNDERWAY, {"owner": owner}).mappings().one())


_OWNERS = text("SELECT DISTINCT owner FROM campaigns WHERE state IN ('active', 'paused') ORDER BY owner")


def owners(connection: Connection) -> list[str]:
    """Owners of active and paused campaigns."""
    return list(connection.execute(_OWNERS).scalars())


_SIZE = text(
    "SELECT coalesce(sum(l.jobs), 0)::bigint FROM lanes l JOIN campaigns c ON c.id = l.campaign_id WHERE c.digest = :digest"
)


def size_of(connection: Connection, digest: str) -> int:
    """How many jobs the campaign of that digest has; 0 if there is none."""
    found: int = connection.execute(_SIZE, {"digest": digest}).scalar_one()
    return found


def open_jobs(counts: Mapping[str, int]) -> int:
    """How many of the jobs counted by state still wait or run."""
    return sum(counts[state] for state in OPEN_JOB_STATES)


_FINISHED = f"""
c.state IN ('active', 'paused') AND NOT EXISTS (
    SELECT 1 FROM lanes l WHERE l.campaign_id = c.id AND {_UNFINISHED_GROUP}
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
