"""Rounds of a search: the choice of jobs for the next rounds when a short round has no open job.

The caller owns the transaction. The campaign and its job groups are locked at its end. A decision follows from the landed rows, and only
adds missing jobs to the next rounds. So it may be made by any coordinator, repeatedly, and after a crash. A job of an earlier round that
is retried and lands later is a further candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from farm.campaign import Destination, PlannedJob, PoolSpec
from farm.campaign.strategies import Search, ShortRounds
from farm.db import staging
from farm.db.device_sessions import OVERLAPPED
from farm.db.problem_sql import PROBLEM
from farm.devices import Backend, DeviceTraits
from farm.kernels import BASELINES, FAMILIES, problem_of
from farm.kernels.binary import Binary
from farm.measurement import MeasuringRules

WITH_BASELINE = [family.name for family in FAMILIES.values() if family.kind in BASELINES]
"""The families that run on devices with a baseline."""

# --- expected jobs -----------------------------------------------------------------------------------

_EXPECTED = text(f"""
SELECT lane_id, n, has_baseline, count(*) AS problems
FROM (
    SELECT j.lane_id, count(*) FILTER (WHERE j.state <> 'invalid') AS n, bool_or(c.family = ANY(:with_baseline)) AS has_baseline
    FROM jobs j JOIN configurations c ON c.id = j.configuration_id WHERE j.lane_id = ANY(:lane_ids)
    GROUP BY j.lane_id, {PROBLEM}
) p
GROUP BY lane_id, n, has_baseline
""")
_EXPECT = text("UPDATE lanes SET later = :later WHERE id = :lane_id")


def expect(connection: Connection, search: Search, lane_ids: Sequence[int]) -> None:
    """Stores the maximum number of jobs of later rounds with the first rounds. The caller has locked these."""
    later = dict.fromkeys(sorted(lane_ids), 0)
    for row in connection.execute(_EXPECTED, {"lane_ids": list(lane_ids), "with_baseline": WITH_BASELINE}):
        later[row.lane_id] += row.problems * (sum(search.rounds(row.n)[1:]) + row.has_baseline)
    for lane_id, jobs in later.items():
        connection.execute(_EXPECT, {"lane_id": lane_id, "later": jobs})


# --- decisions ---------------------------------------------------------------------------------------

_DUE = text("""
SELECT l.id FROM campaigns c JOIN lanes l ON l.campaign_id = c.id
WHERE c.state = 'active' AND l.rules IS NOT NULL AND l.decided IS DISTINCT FROM l.done
  AND l.jobs = l.done + l.invalid + l.dead
ORDER BY l.campaign_id, l.round, l.id
""")


def due(connection: Connection) -> list[int]:
    """Undecided job groups of short rounds without open jobs, as of the last `batches.fold`."""
    return list(connection.execute(_DUE).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDecision:
    """The decision after a short round."""

    campaign_id: int
    round: int
    # The jobs that later rounds got.
    jobs: int


_OF_GROUP = """
SELECT id, document, rules FROM campaigns
WHERE id = (SELECT campaign_id FROM lanes WHERE id = :lane_id) AND state = 'active'
"""
_CAMPAIGN = text(_OF_GROUP)
_LOCK_CAMPAIGN = text(f"{_OF_GROUP} FOR NO KEY UPDATE SKIP LOCKED")
_OF_CAMPAIGN = """
SELECT l.*, l.jobs > l.done + l.invalid + l.dead AS open FROM lanes l WHERE l.campaign_id = :campaign_id ORDER BY l.id
"""
_GROUPS = text(_OF_CAMPAIGN)
_LOCK_GROUPS = text(f"{_OF_CAMPAIGN} FOR NO KEY UPDATE SKIP LOCKED")
_SIZES = text(f"""
SELECT DISTINCT count(*) AS n FROM jobs j JOIN configurations c ON c.id = j.configuration_id
WHERE j.lane_id = :lane_id AND j.state = 'done' GROUP BY {PROBLEM}
""")
# Rows that overlap with those of another worker are no results, and come last.
_SPEED = f"{OVERLAPPED}, r.runtime_ms, j.configuration_id"
_FASTEST = text(f"""
INSERT INTO staged (configuration_id, pool, any_device)
SELECT ranked.configuration_id, :number, false
FROM (
    SELECT j.configuration_id, count(*) OVER (PARTITION BY {PROBLEM}) AS n,
        row_number() OVER (PARTITION BY {PROBLEM} ORDER BY {_SPEED}) AS place
    FROM jobs j JOIN measurements r ON r.job_id = j.id JOIN configurations c ON c.id = j.configuration_id
    WHERE j.lane_id = :lane_id AND j.state = 'done'
) ranked
JOIN unnest(CAST(:sizes AS bigint[]), CAST(:going_on AS bigint[])) AS s(n, going_on) USING (n)
WHERE ranked.place <= s.going_on
""")
_FINALISTS = text(f"""
INSERT INTO staged (configuration_id, pool, any_device)
SELECT configuration_id, :number, false
FROM (
    SELECT j.configuration_id, l.round, max(l.round) OVER (PARTITION BY {PROBLEM}) AS last_round,
        row_number() OVER (PARTITION BY l.round, {PROBLEM} ORDER BY {_SPEED}) AS place
    FROM lanes l JOIN jobs j ON j.lane_id = l.id JOIN measurements r ON r.job_id = j.id
    JOIN configurations c ON c.id = j.configuration_id
    WHERE l.campaign_id = :campaign_id AND l.pool_id = :pool_id AND l.rules IS NOT NULL AND j.state = 'done'
) ranked
WHERE round = last_round AND place <= :finalists
""")
_LATER = text("UPDATE lanes SET later = greatest(:later, 0) WHERE id = :lane_id")
_DECIDED = text("UPDATE lanes SET decided = done WHERE id = :lane_id")
_LAST, _NEXT = 0, 1
"""How the job group of the last round, and that of the next short one, are numbered while they are staged."""


def decide(connection: Connection, lane_id: int) -> RoundDecision | None:
    """Gives later rounds what goes on from a short one. None where there is nothing to decide (any more), or not now,
    since another session holds the campaign or one of its job groups.

    Of each problem with more kernels than finalists, the fastest go on to the next short round, which is made where there
    are such problems. Without any the last round is made: the finalists of every problem, from the last round that each
    was in, and the baselines. What is late goes where the others went.
    """
    campaign = connection.execute(_CAMPAIGN, {"lane_id": lane_id}).one_or_none()
    if campaign is None:
        return None
    groups = {row.id: row for row in connection.execute(_GROUPS, {"campaign_id": campaign.id})}
    group = groups.get(lane_id)
    if group is None or group.open or group.rules is None or group.decided == group.done:
        return None
    search = Search.model_validate(campaign.document["search"])
    assert isinstance(search, ShortRounds)  # no other has job groups with rules
    of_pool = [other for other in groups.values() if other.pool_id == group.pool_id]
    sizes = connection.execute(_SIZES, {"lane_id": lane_id}).scalars()
    on = {n: search.going_on(n) for n in sizes if not search.goes_to_the_last(n)}
    staging.begin(connection)
    binaries: dict[Binary, str] = {}
    if _last_gets_something(group, of_pool, some_go_on=bool(on)):  # before anything is locked: see `staging.copy_in`
        binaries = staging.copy_in(connection, _baselines(connection, campaign.id, group.pool_id), {})
    if connection.execute(_LOCK_CAMPAIGN, {"lane_id": lane_id}).one_or_none() is None:
        return None
    if [tuple(row) for row in connection.execute(_LOCK_GROUPS, {"campaign_id": campaign.id})] != [
        tuple(row) for row in groups.values()
    ]:
        return None  # another session holds one, or something landed: the next look decides
    into = _next_groups(connection, campaign, group, of_pool, search, some_go_on=bool(on))
    if _LAST in into:
        staging.store_configurations(connection, binaries)
        pool = {"campaign_id": campaign.id, "pool_id": group.pool_id}
        connection.execute(_FINALISTS, {**pool, "finalists": search.finalists, "number": _LAST})
    if _NEXT in into:
        fastest = {"lane_id": lane_id, "sizes": list(on), "going_on": list(on.values())}
        connection.execute(_FASTEST, {**fastest, "number": _NEXT})
    jobs = staging.put_jobs(connection, campaign.id, into)
    if into.get(_NEXT, lane_id) not in groups:
        connection.execute(_LATER, {"lane_id": into[_NEXT], "later": group.later - jobs})
    connection.execute(_DECIDED, {"lane_id": lane_id})
    return RoundDecision(campaign_id=campaign.id, round=group.round, jobs=jobs)


def _last_gets_something(group: Row[Any], of_pool: Sequence[Row[Any]], *, some_go_on: bool) -> bool:
    """Whether `_next_groups` names the job group of the last round."""
    there = any(other.rules is None for other in of_pool)
    return there or not (some_go_on or any(other.round == group.round + 1 for other in of_pool))


def _next_groups(
    connection: Connection,
    campaign: Row[Any],
    group: Row[Any],
    of_pool: Sequence[Row[Any]],
    search: ShortRounds,
    *,
    some_go_on: bool,
) -> dict[int, int]:
    """The job groups that get something, by their number: what follows the job group, which is made where it is missing, and the last."""
    following = next((other for other in of_pool if other.round == group.round + 1), None)
    last = next((other.id for other in of_pool if other.rules is None), None)
    into: dict[int, int] = {} if last is None else {_LAST: last}
    new = {"campaign_id": campaign.id, "pool_id": group.pool_id, "number": group.round + 1}
    if some_go_on and following is None:
        rules = search.short_rules(MeasuringRules.model_validate(campaign.rules), group.round + 1)
        into[_NEXT] = staging.group(connection, **new, rules=rules)
    elif some_go_on and following is not None and following.rules is not None:
        into[_NEXT] = following.id
    elif following is None:
        into[_LAST] = staging.group(connection, **new)
    return into


_POOL = text("SELECT name, device_types, device_uuid FROM pools WHERE id = :pool_id")
_TRAITS = text("SELECT DISTINCT traits, backend FROM devices WHERE type = ANY(:device_types) OR uuid = :device_uuid")
_PROBLEMS = text(f"""
SELECT DISTINCT {PROBLEM} FROM lanes l JOIN jobs j ON j.lane_id = l.id JOIN configurations c ON c.id = j.configuration_id
WHERE l.campaign_id = :campaign_id AND l.pool_id = :pool_id AND l.round = 0
""")


def _baselines(connection: Connection, campaign_id: int, pool_id: int) -> Iterable[PlannedJob]:
    """The baseline of each problem that the campaign has for the pool, where its devices can run it."""
    pool = connection.execute(_POOL, {"pool_id": pool_id}).one()
    destination = _destination(connection, pool)
    if destination is None:
        return []
    rows = connection.execute(_PROBLEMS, {"campaign_id": campaign_id, "pool_id": pool_id}).mappings()
    jobs = (destination.baseline(problem_of(dict(row))) for row in rows.all())
    return (job for job in jobs if job is not None)


def _destination(connection: Connection, pool: Row[Any]) -> Destination | None:
    """The pool with the traits of its devices; None where none of them is known."""
    spec = PoolSpec(pool.name, None if pool.device_types is None else tuple(pool.device_types), pool.device_uuid)
    found = connection.execute(_TRAITS, {"device_types": pool.device_types, "device_uuid": pool.device_uuid})
    backend_of = {DeviceTraits.from_json(row.traits): Backend(row.backend) for row in found}
    traits = tuple(backend_of)
    executing = tuple(one for one, backend in backend_of.items() if backend.runs_kernels)
    return Destination(spec, traits[0].kind, traits, executing) if traits else None
