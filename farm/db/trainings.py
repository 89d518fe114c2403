"""Requests to train, and what became of them. Each function is one transition of docs/states.md.

All times are Postgres's. A trainer's writes are fenced by the number of its start: they change nothing once the
training was taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from farm.db.tables import TrainingState


@dataclass(frozen=True, slots=True)
class Start:
    """A trainer's right to a training, until it is taken back."""

    training_id: int
    number: int  # of the starts of this training, from 1
    device_type: str
    any_source: bool

    @property
    def _fence(self) -> dict[str, Any]:
        return {"training_id": self.training_id, "number": self.number}


_REQUEST = text("INSERT INTO trainings (device_type, any_source) VALUES (:device_type, :any_source) RETURNING id")


def request(connection: Connection, *, device_type: str, any_source: bool = False) -> int:
    """Asks for a model of that device type and returns the training's id."""
    found: int = connection.execute(_REQUEST, {"device_type": device_type, "any_source": any_source}).scalar_one()
    return found


# The longer a request waits, the rarer: a farm without a trainer must not fill its broker.
_UNSENT = text("""
SELECT id FROM trainings
WHERE state = 'requested' AND (sent_at IS NULL OR sent_at < clock_timestamp()
    - greatest(make_interval(secs => :resend_after), 0.1 * (sent_at - requested_at)))
ORDER BY id LIMIT :limit
""")
_SENT = text("""
WITH these AS MATERIALIZED (SELECT id FROM trainings WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE)
UPDATE trainings t SET sent_at = clock_timestamp() FROM these WHERE t.id = these.id
""")


def unsent(connection: Connection, *, resend_after: float, limit: int = 100) -> list[int]:
    """Requests whose message was never sent, or was sent so long ago that it may be lost: `resend_after` seconds, and
    a tenth of the time for which the request waited before."""
    parameters = {"resend_after": resend_after, "limit": limit}
    return list(connection.execute(_UNSENT, parameters).scalars())


def mark_sent(connection: Connection, ids: Sequence[int]) -> None:
    """Notes that the messages of these trainings are with the broker."""
    connection.execute(_SENT, {"ids": list(ids)})


_START = text("""
UPDATE trainings SET state = 'running', starts = starts + 1, started_at = clock_timestamp(),
    heard_of_at = clock_timestamp()
WHERE id = :training_id AND state = 'requested' RETURNING starts, device_type, any_source
""")


def start(connection: Connection, training_id: int) -> Start | None:
    """requested → running; None where another trainer has it or it is over."""
    row = connection.execute(_START, {"training_id": training_id}).one_or_none()
    return None if row is None else Start(training_id, row.starts, row.device_type, row.any_source)


_BEAT = text("""
UPDATE trainings SET heard_of_at = clock_timestamp()
WHERE id = :training_id AND state = 'running' AND starts = :number
""")


def beat(connection: Connection, started: Start) -> bool:
    """Says that the trainer lives. Returns whether it still has the training."""
    return bool(connection.execute(_BEAT, started._fence).rowcount)


_FINISH = text("""
UPDATE trainings SET state = :state, finished_at = clock_timestamp(), outcome = CAST(:outcome AS jsonb), error = :error
WHERE id = :training_id AND state = 'running' AND starts = :number
""")


def finish(
    connection: Connection, started: Start, *, outcome: dict[str, Any] | None = None, error: str | None = None
) -> bool:
    """running → done with an outcome, or → failed with an error. Returns whether the trainer still had the training."""
    parameters = {
        **started._fence,
        "state": "done" if error is None else "failed",
        "outcome": None if outcome is None else json.dumps(outcome),
        "error": error,
    }
    return bool(connection.execute(_FINISH, parameters).rowcount)


_TAKE_BACK = text("""
UPDATE trainings SET sent_at = NULL,
    state = CASE WHEN starts < :most_starts THEN 'requested' ELSE 'failed' END,
    finished_at = CASE WHEN starts < :most_starts THEN NULL ELSE clock_timestamp() END,
    error = CASE WHEN starts < :most_starts THEN NULL ELSE
        format('its trainer died or fell silent, %s times in a row; the log of the trainer may say why', starts) END
WHERE id IN (
    SELECT id FROM trainings WHERE state = 'running'
      AND coalesce(heard_of_at, started_at, requested_at) < clock_timestamp() - make_interval(secs => :silent_after)
    ORDER BY id FOR UPDATE SKIP LOCKED
)
RETURNING id, state
""")


def take_back(connection: Connection, *, silent_after: float, most_starts: int) -> dict[int, TrainingState]:
    """running → requested, where the trainer was not heard of for `silent_after` seconds; → failed after `most_starts`.

    Returns the new state by id.
    """
    parameters = {"silent_after": silent_after, "most_starts": most_starts}
    return {row.id: TrainingState(row.state) for row in connection.execute(_TAKE_BACK, parameters)}


_READ = text("SELECT id, device_type, state, outcome, error FROM trainings WHERE id = :training_id")


def read(connection: Connection, training_id: int) -> dict[str, Any]:
    """The training: device_type, state, outcome, error."""
    return dict(connection.execute(_READ, {"training_id": training_id}).mappings().one())


_TRAINABLE = text("""
SELECT DISTINCT device_type FROM v_measurements
WHERE (CAST(:campaign_id AS bigint) IS NULL OR campaign_id = :campaign_id) AND (:any_source OR source = 'measured')
ORDER BY device_type
""")


def trainable_types(connection: Connection, *, campaign_id: int | None, any_source: bool) -> list[str]:
    """The device types that have measurements, of one campaign or of all."""
    return list(connection.execute(_TRAINABLE, {"campaign_id": campaign_id, "any_source": any_source}).scalars())
