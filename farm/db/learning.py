"""Campaigns of the strategy learn: decisions after rounds, and the learning curve.

A campaign has, for each pool, a job group with its test set (round 0) and job groups to learn from (from round 1 on). When a round is
nearly over, the coordinator requests a training for its job group. The trainer (`trainer.rounds`) either gives the campaign a
next round or ends it. Either happens once, in one transaction that the attempt of the training fences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from farm.db import trainings
from farm.db.engine import hold_briefly
from farm.db.states import GroupPurpose
from farm.errors import TaskLost

# What only deciding needs is imported there: farm status reads curves.
if TYPE_CHECKING:
    from farm.campaign import PlannedJob, PoolSpec

DECIDE_AT = 0.15
"""The next round is requested when this share of a round's jobs is open, so that devices measure while a model is fitted."""


def purpose_of(number: int) -> GroupPurpose:
    """Purpose of round `number` of such a campaign."""
    return GroupPurpose.TEST if number == 0 else GroupPurpose.LEARN


# The test set must have landed too: the decision uses it.
_REQUEST = text("""
INSERT INTO trainings (device_type, lane_id)
SELECT coalesce(p.device_types[1], d.type), l.id
FROM campaigns c
JOIN lanes l ON l.campaign_id = c.id AND l.purpose = 'learn' AND l.decided IS NULL
JOIN pools p ON p.id = l.pool_id LEFT JOIN devices d ON d.uuid = p.device_uuid
WHERE c.state = 'active' AND NOT EXISTS (SELECT FROM trainings t WHERE t.lane_id = l.id)
  AND l.jobs - l.done - l.invalid - l.dead <= :share * l.jobs
  AND NOT EXISTS (
      SELECT FROM lanes o WHERE o.campaign_id = c.id AND o.pool_id = l.pool_id AND o.purpose IS NOT NULL
        AND (o.round < l.round OR o.purpose = 'test') AND o.jobs - o.done - o.invalid - o.dead > :share * o.jobs
  )
FOR KEY SHARE OF l SKIP LOCKED
ON CONFLICT (lane_id) DO NOTHING
RETURNING id
""")
# A round whose training failed has no successor, so the campaign ends.
_ABANDON = text("""
WITH these AS MATERIALIZED (
    SELECT l.id, t.error FROM lanes l JOIN trainings t ON t.lane_id = l.id
    WHERE t.state = 'failed' AND l.purpose = 'learn' AND l.decided IS NULL
    ORDER BY l.id FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE lanes l SET decided = l.done, later = 0 FROM these t WHERE l.id = t.id
RETURNING l.campaign_id, t.error
""")


def request(connection: Connection) -> list[int]:
    """Requests a decision for each round that is nearly over. Returns the ids of the new trainings."""
    return list(connection.execute(_REQUEST, {"share": DECIDE_AT}).scalars())


def abandon(connection: Connection) -> dict[int, str]:
    """Ends campaigns at rounds whose training failed. Returns the error by the campaign's id."""
    return {row.campaign_id: row.error for row in connection.execute(_ABANDON)}


_LEARNS = text("""
SELECT EXISTS (
    SELECT 1 FROM lanes l JOIN campaigns c ON c.id = l.campaign_id
    WHERE c.id = :campaign_id AND c.state = 'active' AND l.purpose = 'learn' AND l.decided IS NULL
)
""")


def learns(connection: Connection, campaign_id: int) -> bool:
    """Whether a round of the campaign waits for a decision of a trainer."""
    found: bool = connection.execute(_LEARNS, {"campaign_id": campaign_id}).scalar_one()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRound:
    """A round that waits for a decision."""

    lane_id: int
    number: int
    campaign_id: int
    document: dict[str, Any]
    pool: PoolSpec
    # Device seconds that the campaign has used in this pool, test set included.
    device_seconds: float


_ROUND = text("""
SELECT l.id AS lane_id, l.round AS number, c.id AS campaign_id, c.document, p.name, p.device_types, p.device_uuid,
    (SELECT coalesce(sum(m.cost_s), 0) FROM lanes o JOIN jobs j ON j.lane_id = o.id JOIN measurements m ON m.job_id = j.id
     WHERE o.campaign_id = c.id AND o.pool_id = p.id)::float8 AS device_seconds
FROM lanes l JOIN campaigns c ON c.id = l.campaign_id JOIN pools p ON p.id = l.pool_id
WHERE l.id = :lane_id AND l.purpose = 'learn' AND l.decided IS NULL
""")


def read_round(connection: Connection, lane_id: int) -> LearningRound | None:
    """The round of that job group; None if it is decided, or its campaign is gone."""
    row = connection.execute(_ROUND, {"lane_id": lane_id}).one_or_none()
    if row is None:
        return None
    from farm.campaign import PoolSpec

    pool = PoolSpec(row.name, None if row.device_types is None else tuple(row.device_types), row.device_uuid)
    return LearningRound(
        lane_id=row.lane_id,
        number=row.number,
        campaign_id=row.campaign_id,
        document=row.document,
        pool=pool,
        device_seconds=row.device_seconds,
    )


_LOCK = text("SELECT id FROM campaigns WHERE id = :campaign_id AND state IN ('active', 'paused') FOR NO KEY UPDATE")
_UNDECIDED = text("SELECT 1 FROM lanes WHERE id = :lane_id AND decided IS NULL FOR NO KEY UPDATE")
_DECIDED = text("UPDATE lanes SET decided = done, later = 0 WHERE id = :lane_id")
_LATER = text("UPDATE lanes SET later = :later WHERE id = :lane_id")


def decide(
    connection: Connection,
    started: trainings.TrainingAttempt,
    round_: LearningRound,
    planned: Iterable[PlannedJob],
    *,
    outcome: dict[str, Any],
    later: int,
) -> int | None:
    """Adds the next round to the campaign, or ends it if nothing is planned, and finishes the training.

    Args:
        outcome: the point of the learning curve; see `Point` in `trainer.rounds`.
        later: how many jobs the rounds after the next one are expected to have.

    Returns:
        Number of jobs of the next round; None if the round was already decided.

    Raises:
        ErrandLost: the training is no longer this trainer's. The caller's transaction must not be committed.
    """
    from farm.db import staging

    staging.begin(connection)
    pools: dict[tuple[PoolSpec, int], int] = {}
    binaries = staging.copy_in(connection, planned, pools)
    hold_briefly(connection)
    if connection.execute(_LOCK, {"campaign_id": round_.campaign_id}).one_or_none() is None:
        pools = {}  # cancelled meanwhile: nothing follows
    staging.lock_groups(connection, round_.campaign_id)
    if connection.execute(_UNDECIDED, {"lane_id": round_.lane_id}).one_or_none() is None:
        return None
    if pools:
        staging.store_configurations(connection, binaries)
    jobs = 0
    for (pool, _), number in pools.items():
        pool_id = staging.pool(connection, pool)
        group = staging.group(
            connection, round_.campaign_id, pool_id, number=round_.number + 1, purpose=GroupPurpose.LEARN
        )
        jobs += staging.put_jobs(connection, round_.campaign_id, {number: group})
        connection.execute(_LATER, {"lane_id": group, "later": later})
    connection.execute(_DECIDED, {"lane_id": round_.lane_id})
    if not trainings.finish(connection, started, outcome={**outcome, "next_jobs": jobs}):
        raise TaskLost(what="training", number=started.training_id)
    return jobs


_CURVE = text("""
SELECT t.outcome, t.error, t.state, l.round, p.name AS pool
FROM lanes l JOIN trainings t ON t.lane_id = l.id JOIN pools p ON p.id = l.pool_id
WHERE l.campaign_id = :campaign_id AND (CAST(:device_type AS text) IS NULL OR t.device_type = :device_type)
ORDER BY p.name, l.round
""")


def curve(connection: Connection, campaign_id: int, *, device_type: str | None = None) -> list[dict[str, Any]]:
    """The learning curve of a campaign: the outcomes of its rounds that were decided, by pool and round.

    Args:
        device_type: only of models of this device type.
    """
    only = {"campaign_id": campaign_id, "device_type": device_type}
    rows: Sequence[Any] = connection.execute(_CURVE, only).all()
    return [
        {"pool": row.pool, "round": row.round, "error": row.error, **(row.outcome or {})}
        for row in rows
        if row.state in ("done", "failed")
    ]
