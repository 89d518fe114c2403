"""Requests to train, and what became of them."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, text

_REQUEST = text("INSERT INTO trainings (device_type, any_source) VALUES (:device_type, :any_source) RETURNING id")


def request(connection: Connection, *, device_type: str, any_source: bool = False) -> int:
    """Asks for a model of that device type and returns the training's id."""
    found: int = connection.execute(_REQUEST, {"device_type": device_type, "any_source": any_source}).scalar_one()
    return found


_START = text("""
UPDATE trainings SET state = 'running', started_at = clock_timestamp()
WHERE id = :training_id AND state = 'requested' RETURNING device_type, any_source
""")


def start(connection: Connection, training_id: int) -> tuple[str, bool] | None:
    """requested → running: (device type, any source); None where another trainer has it or it is over."""
    row = connection.execute(_START, {"training_id": training_id}).one_or_none()
    return None if row is None else (row.device_type, row.any_source)


_FINISH = text("""
UPDATE trainings SET state = :state, finished_at = clock_timestamp(), outcome = CAST(:outcome AS jsonb), error = :error
WHERE id = :training_id AND state = 'running'
""")


def finish(
    connection: Connection, training_id: int, *, outcome: dict[str, Any] | None = None, error: str | None = None
) -> None:
    """running → done with an outcome, or → failed with an error."""
    parameters = {
        "training_id": training_id,
        "state": "done" if error is None else "failed",
        "outcome": None if outcome is None else json.dumps(outcome),
        "error": error,
    }
    connection.execute(_FINISH, parameters)


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
