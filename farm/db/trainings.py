"""Trainings: requests and results. Each function is one transition of docs/states.md.

Writes of a trainer are fenced: see `farm.db.task_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, text

from farm.db.states import TrainingState
from farm.db.task_rows import TaskTable


@dataclass(frozen=True, slots=True)
class TrainingAttempt:
    """The right of a trainer to a training, until it is taken back."""

    training_id: int
    number: int  # of the attempt, from 1
    device_type: str
    any_source: bool
    # The protocol of the rows that it learns from; None: the usual one, see `trainer.table.of_one_protocol`.
    protocol: str | None = None
    # The learning round that it decides on (`farm.db.learning`); None: it makes a model and registers it.
    lane_id: int | None = None
    # Seconds from the request to this attempt.
    queued_s: float = field(default=0.0, compare=False)


_TRAININGS = TaskTable(
    "trainings",
    waiting=TrainingState.REQUESTED,
    running=TrainingState.RUNNING,
    failed=TrainingState.FAILED,
    given_up="its trainer died or fell silent, %s times in a row; the log of the trainer may say why",
    resets="progress",
)


_REQUEST = text("""
INSERT INTO trainings (device_type, any_source, protocol) VALUES (:device_type, :any_source, :protocol) RETURNING id
""")


def request(connection: Connection, *, device_type: str, any_source: bool = False, protocol: str | None = None) -> int:
    """Requests a model of a device type and returns the id of the training."""
    parameters = {"device_type": device_type, "any_source": any_source, "protocol": protocol}
    found: int = connection.execute(_REQUEST, parameters).scalar_one()
    return found


# The pause before a message is sent again grows, so that a farm without a trainer does not fill its broker.
_UNSENT = text("""
SELECT id FROM trainings
WHERE state = 'requested' AND (sent_at IS NULL OR sent_at < clock_timestamp()
    - greatest(make_interval(secs => :resend_after), 0.1 * (sent_at - requested_at)))
ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
""")


def unsent(connection: Connection, *, resend_after: float, limit: int = 100) -> list[int]:
    """Requests whose message was never sent, or was sent so long ago that it may be lost: `resend_after` seconds, and
    a tenth of the time for which the request waited before."""
    parameters = {"resend_after": resend_after, "limit": limit}
    return list(connection.execute(_UNSENT, parameters).scalars())


def mark_sent(connection: Connection, ids: Sequence[int]) -> None:
    """Records that the broker has the messages of these trainings."""
    _TRAININGS.mark_sent(connection, ids)


def start(connection: Connection, training_id: int) -> TrainingAttempt | None:
    """requested → running; None if another trainer has it or it has ended."""
    row = _TRAININGS.start(connection, training_id)
    if row is None:
        return None
    queued_s = (row.started_at - row.requested_at).total_seconds()
    return TrainingAttempt(
        training_id, row.starts, row.device_type, row.any_source, row.protocol, row.lane_id, queued_s
    )


_BEAT = text(f"""
UPDATE trainings SET heard_of_at = clock_timestamp(), progress = coalesce(:progress, progress) WHERE {_TRAININGS.fence}
""")


def beat(connection: Connection, started: TrainingAttempt, *, progress: float | None = None) -> bool:
    """Records a heartbeat and the finished share. Returns whether the trainer still has the training."""
    parameters = {"id": started.training_id, "number": started.number, "progress": progress}
    return bool(connection.execute(_BEAT, parameters).rowcount)


_FINISH = text(f"""
UPDATE trainings SET state = :state, finished_at = clock_timestamp(), outcome = CAST(:outcome AS jsonb), error = :error
WHERE {_TRAININGS.fence}
""")


def finish(
    connection: Connection, started: TrainingAttempt, *, outcome: dict[str, Any] | None = None, error: str | None = None
) -> bool:
    """running → done with an outcome, or → failed with an error. Returns whether the trainer still had the training."""
    parameters = {
        "id": started.training_id,
        "number": started.number,
        "state": "done" if error is None else "failed",
        "outcome": None if outcome is None else json.dumps(outcome),
        "error": error,
    }
    return bool(connection.execute(_FINISH, parameters).rowcount)


def take_back(connection: Connection, *, silent_after: float, max_attempts: int) -> dict[int, TrainingState]:
    """running → requested, if the trainer sent no heartbeat for `silent_after` seconds; → failed after `max_attempts`.

    Returns the new state by id.
    """
    taken = _TRAININGS.take_back(connection, silent_after=silent_after, max_attempts=max_attempts)
    return {training_id: TrainingState(state) for training_id, state in taken.items()}


DECISION_SECONDS = 600
"""Maximum pause between two statements while a trainer decides, which takes less than a minute. Then Postgres ends its session."""

_DECISION_LOCKS = 0x6368_616D  # "cham": the first key of the advisory locks, of which the second names the model
_ALONE = text("SELECT pg_advisory_lock(:locks, hashtext(:model))")


@contextmanager
def deciding(engine: Engine, model: str) -> Iterator[Connection]:
    """Holds a lock: no other trainer decides inside the block whether a version of that model becomes the champion.

    The lock lasts as long as the session of the connection.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # closed at the end and not used again, it takes lock and setting with it
        connection.execute(text(f"SET idle_session_timeout = '{DECISION_SECONDS}s'"))
        connection.execute(_ALONE, {"locks": _DECISION_LOCKS, "model": model})
        yield connection


_READ = text("""
SELECT id, device_type, state, outcome, error, progress, EXTRACT(epoch FROM clock_timestamp() - started_at)::float8 AS running_s
FROM trainings WHERE id = :training_id
""")


def read(connection: Connection, training_id: int) -> dict[str, Any]:
    """A training: device_type, state, outcome, error, finished share, and seconds since its start."""
    return dict(connection.execute(_READ, {"training_id": training_id}).mappings().one())


# Rows are counted by the batches in which they landed: by an index, some hundred rows in one. Short rounds of a search
# train no model, and neither does what a recording answered.
_DUE = text("""
WITH latest AS (
    SELECT device_type, max(coalesce(started_at, requested_at)) AS began,
        bool_or(state IN ('requested', 'running')) AS open
    FROM trainings WHERE lane_id IS NULL GROUP BY device_type
), kinds AS (
    SELECT d.type, coalesce(t.began, '-infinity') AS began
    FROM (SELECT DISTINCT type FROM devices) d LEFT JOIN latest t ON t.device_type = d.type
    WHERE t.open IS NOT TRUE
), landed AS (
    SELECT k.type AS device_type, sum(b.done) AS rows, sum(b.done) FILTER (WHERE c.finished_at > k.began) AS of_ended
    FROM kinds k
    JOIN campaigns c ON coalesce(c.finished_at, 'infinity') > k.began
    JOIN lanes l ON l.campaign_id = c.id AND l.rules IS NULL
    JOIN batches b ON b.lane_id = l.id AND b.finished_at > k.began AND b.done > 0
    JOIN devices d ON d.id = b.device_id AND d.type = k.type AND d.backend <> 'recorded'
    GROUP BY k.type
)
SELECT device_type, rows FROM landed WHERE of_ended >= :of_ended OR rows >= :whatever_runs ORDER BY device_type
""")


def due(connection: Connection, *, of_ended: int, whatever_runs: int) -> dict[str, int]:
    """Device types that need a new model, and the number of rows since their last training began.

    Campaigns that ended since then brought `of_ended` measurements, or `whatever_runs` rows landed in all. Device types with an open
    training are left out. A failed training counts, because the same rows would fail again.
    """
    parameters = {"of_ended": of_ended, "whatever_runs": whatever_runs}
    return {row.device_type: int(row.rows) for row in connection.execute(_DUE, parameters)}


_TRAINABLE = text("""
SELECT DISTINCT device_type FROM v_measurements
WHERE (CAST(:campaign_id AS bigint) IS NULL OR campaign_id = :campaign_id) AND (:any_source OR source = 'measured')
    AND (CAST(:protocol AS text) IS NULL OR protocol = :protocol)
ORDER BY device_type
""")


_ROWS = text("""
SELECT device_type, source, count(*) AS rows FROM v_measurements
WHERE CAST(:campaign_id AS bigint) IS NULL OR campaign_id = :campaign_id
GROUP BY device_type, source ORDER BY device_type, source
""")


def rows_by_source(connection: Connection, *, campaign_id: int | None) -> dict[str, dict[str, int]]:
    """The rows of each device type by their source, of one campaign or of all. Reads every row."""
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(_ROWS, {"campaign_id": campaign_id}):
        found.setdefault(row.device_type, {})[row.source] = row.rows
    return found


def trainable_types(
    connection: Connection, *, campaign_id: int | None, any_source: bool, protocol: str | None = None
) -> list[str]:
    """The device types that have measurements, of one campaign or of all, and of one protocol or of all."""
    parameters = {"campaign_id": campaign_id, "any_source": any_source, "protocol": protocol}
    return list(connection.execute(_TRAINABLE, parameters).scalars())
