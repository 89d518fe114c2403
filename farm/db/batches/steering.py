"""Transitions that people request: cancel, pause, resume, retry."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from farm.db.batches.ending import release
from farm.db.batches.forming import BEFORE_ALL
from farm.db.engine import hold_briefly
from farm.db.states import CampaignState, FailureKind, JobState

_LOCK = text("SELECT state FROM campaigns WHERE id = :campaign_id FOR NO KEY UPDATE")
_SET = text("""
UPDATE campaigns SET state = :state,
    finished_at = CASE WHEN :state = 'cancelled' THEN clock_timestamp() END
WHERE id = :campaign_id
""")
_QUEUED = text("""
SELECT b.id FROM batches b JOIN lanes l ON l.id = b.lane_id
WHERE l.campaign_id = :campaign_id AND NOT b.folded AND b.state = 'queued' ORDER BY b.id FOR NO KEY UPDATE OF b
""")
# What is queued is locked by now, so that no claim is under way.
_STOP_LEASED = text("""
WITH held AS MATERIALIZED (
    SELECT b.id FROM batches b JOIN lanes l ON l.id = b.lane_id
    WHERE l.campaign_id = :campaign_id AND NOT b.folded AND b.state = 'leased' ORDER BY b.id FOR NO KEY UPDATE OF b
)
UPDATE batches b SET stopped = true FROM held WHERE b.id = held.id
""")
_IN_HAND = text("""
SELECT count(*) FROM batches b JOIN lanes l ON l.id = b.lane_id
WHERE l.campaign_id = :campaign_id AND NOT b.folded AND b.state = 'leased' AND b.current_job_id IS NOT NULL
""")


def in_hand(connection: Connection, campaign_id: int) -> int:
    """Number of jobs of the campaign that are being measured or landed: at most one per device."""
    found: int = connection.execute(_IN_HAND, {"campaign_id": campaign_id}).scalar_one()
    return found


def _stop(connection: Connection, campaign_id: int, state: CampaignState, *, of: Sequence[CampaignState]) -> bool:
    """Releases unclaimed batches. After the commit, no further job of leased batches is marked."""
    hold_briefly(connection)
    if connection.execute(_LOCK, {"campaign_id": campaign_id}).scalar_one_or_none() not in of:  # None: it was deleted
        return False
    connection.execute(_SET, {"campaign_id": campaign_id, "state": state.value})
    for batch_id in list(connection.execute(_QUEUED, {"campaign_id": campaign_id}).scalars()):
        release(connection, batch_id, reason=f"the campaign was {state}", suspect=False)
    connection.execute(_STOP_LEASED, {"campaign_id": campaign_id})
    return True


def cancel(connection: Connection, campaign_id: int) -> bool:
    """active, paused → cancelled. Returns whether it changed.

    After the commit, no job of it is marked. A job that a device began before is measured, and its row is stored.
    """
    return _stop(connection, campaign_id, CampaignState.CANCELLED, of=(CampaignState.ACTIVE, CampaignState.PAUSED))


def pause(connection: Connection, campaign_id: int) -> bool:
    """active → paused, with the guarantee of `cancel`. Returns whether it changed."""
    return _stop(connection, campaign_id, CampaignState.PAUSED, of=(CampaignState.ACTIVE,))


def resume(connection: Connection, campaign_id: int) -> bool:
    """paused → active. Returns whether it changed."""
    hold_briefly(connection)
    if connection.execute(_LOCK, {"campaign_id": campaign_id}).scalar_one_or_none() != CampaignState.PAUSED:
        return False
    connection.execute(_SET, {"campaign_id": campaign_id, "state": CampaignState.ACTIVE.value})
    return True


_GROUPS = text("SELECT id FROM lanes WHERE campaign_id = :campaign_id ORDER BY id FOR NO KEY UPDATE")
_RETRY = text("""
WITH chosen AS (
    SELECT j.id, j.lane_id, j.state, j.solo, j.configuration_id > coalesce(l.cursor, :before_all) AS ahead
    FROM lanes l JOIN jobs j ON j.lane_id = l.id
    WHERE l.campaign_id = :campaign_id AND j.state = ANY(:states)
      AND (CAST(:ids AS bigint[]) IS NULL OR j.id = ANY(:ids))
      AND (CAST(:kinds AS text[]) IS NULL OR (
          SELECT f.kind FROM failures f WHERE f.job_id = j.id ORDER BY f.id DESC LIMIT 1
      ) = ANY(:kinds))
    FOR NO KEY UPDATE OF j
), reopened AS (
    UPDATE jobs j SET state = 'open', attempts = 0 FROM chosen c WHERE j.id = c.id
), again AS (
    INSERT INTO returned_jobs (job_id, lane_id, solo) SELECT c.id, c.lane_id, c.solo FROM chosen c WHERE NOT c.ahead
), counted AS (
    UPDATE lanes l SET dead = l.dead - s.dead, invalid = l.invalid - s.invalid, fresh = l.fresh OR s.ahead
    FROM (
        SELECT lane_id, count(*) FILTER (WHERE state = 'dead') AS dead,
            count(*) FILTER (WHERE state = 'invalid') AS invalid, bool_or(ahead) AS ahead
        FROM chosen GROUP BY lane_id
    ) s
    WHERE l.id = s.lane_id
)
SELECT count(*) FROM chosen
""")
_REOPEN = text("UPDATE campaigns SET state = 'active', finished_at = NULL WHERE id = :campaign_id AND state = 'done'")


def retry(
    connection: Connection,
    campaign_id: int,
    *,
    states: Sequence[JobState] = (JobState.DEAD,),
    job_ids: Sequence[int] | None = None,
    kinds: Sequence[FailureKind] | None = None,
) -> int:
    """dead, invalid → pending, with all their attempts before them. Returns how many jobs were re-opened.

    `states` says which of the two; `job_ids` and `kinds` (of their last failure) choose among them. A campaign that
    was done is active again. Jobs that were suspected of killing their process are still measured alone. Devices that refused
    a job are asked again.
    """
    wrong = set(states) - {JobState.DEAD, JobState.INVALID}
    if wrong:
        raise ValueError(f"jobs that are {', '.join(sorted(wrong))} cannot be tried again")
    hold_briefly(connection)
    connection.execute(_LOCK, {"campaign_id": campaign_id})
    connection.execute(_GROUPS, {"campaign_id": campaign_id})
    parameters = {
        "campaign_id": campaign_id,
        "states": [state.value for state in states],
        "ids": None if job_ids is None else list(job_ids),
        "kinds": None if kinds is None else [kind.value for kind in kinds],
        "before_all": BEFORE_ALL,
    }
    chosen: int = connection.execute(_RETRY, parameters).scalar_one()
    if chosen:
        connection.execute(_REOPEN, {"campaign_id": campaign_id})
    return chosen
