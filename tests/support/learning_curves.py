"""Learning curves to test with: rounds of a campaign that were decided, with the errors that a test gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import bindparam

LEARNS: dict[str, Any] = {
    "name": "learning",
    "problems": {"domain": {"m": "1..512", "n": "16..512", "k": "16..512", "align": [1, 8]}, "types": ["f32"]},
    "kernels": {"family": "blas", "threads": [1, 2]},
    "search": {"strategy": "learn", "problems": 10, "kernels": 2, "test_problems": 20},
}
"""What a campaign document has that learns, on a CPU."""

BUDGET_USED = "the budget of 480 device seconds is used"


def score(mean: float, *, rows: int = 40) -> dict[str, Any]:
    return {
        "rows": rows,
        "mean_error_pct": mean,
        "low": 0.8 * mean,
        "high": 1.25 * mean,
        "median_error_pct": mean / 2,
        "p90_error_pct": 2 * mean,
    }


def point(number: int, *, stop: str | None = None, **means: float) -> dict[str, Any]:
    """Of round `number`, with a mean error for `all` and each family."""
    return {
        "device_seconds": 100.0 * number,
        "rows": 1200 * number,
        "test": {name: score(mean) for name, mean in means.items()},
        "stop": stop,
        "problems": 0 if stop else 10,
        "random_problems": 0 if stop else 3,
        "next_jobs": 0 if stop else 20,
    }


CURVE = (
    point(1, all=20.0, blas=24.0, tiled=16.0),
    point(2, all=10.0, blas=12.0, tiled=8.0),
    point(3, all=8.0, blas=10.0, tiled=6.0, stop=BUDGET_USED),
)

_LANE = text("""
INSERT INTO lanes (campaign_id, pool_id, round, purpose, decided)
SELECT campaign_id, pool_id, :round, purpose, 0 FROM lanes WHERE campaign_id = :campaign_id AND round = 1
    AND (CAST(:pool AS text) IS NULL OR pool_id = (SELECT id FROM pools WHERE name = :pool))
ON CONFLICT (campaign_id, pool_id, round) DO UPDATE SET decided = lanes.done RETURNING id
""")
_TRAINING = text("""
INSERT INTO trainings (device_type, lane_id, state, outcome, error)
VALUES (:device_type, :lane_id, :state, :outcome, :error)
""").bindparams(bindparam("outcome", type_=JSONB(none_as_null=True)))


def decided(
    engine: Engine,
    campaign_id: int,
    points: Sequence[dict[str, Any]] = CURVE,
    *,
    first: int = 1,
    device_type: str = "cpu-test",
    error: str | None = None,
    pool: str | None = None,
) -> None:
    """The campaign's rounds from `first` on were decided with these outcomes; with `error`, one more could not be.

    Args:
        pool: Where the campaign has several, the one whose rounds they are.
    """
    outcomes: list[dict[str, Any] | None] = [*points, *([None] if error else [])]
    with engine.begin() as connection:
        for number, outcome in enumerate(outcomes, start=first):
            lane = {"campaign_id": campaign_id, "round": number, "pool": pool}
            lane_id = connection.execute(_LANE, lane).scalar_one()
            given = {"device_type": device_type, "lane_id": lane_id, "outcome": outcome}
            state = {"state": "failed", "error": error} if outcome is None else {"state": "done", "error": None}
            connection.execute(_TRAINING, {**given, **state})
