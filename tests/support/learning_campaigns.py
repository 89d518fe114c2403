"""Campaigns of the strategy `learn`, and their rounds step by step."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import batches, campaigns, learning, trainings
from farm.db.trainings import TrainingAttempt
from support.batch_steps import claim, form
from support.samples import document, row
from trainer import rounds


def learning_campaign(name: str = "learning", **search: Any) -> Campaign:
    """100 problems of a small domain in two rounds, on a CPU with two kernels."""
    asked: dict[str, Any] = {
        "name": name,
        "problems": {"domain": {"m": "1..512", "n": "16..512", "k": "16..512", "align": [1, 8]}, "types": ["f32"]},
        "kernels": {"family": "blas", "threads": [1, 2]},
        "search": {"strategy": "learn", "problems": 10, "kernels": 2, "test_problems": 20, **search},
    }
    return Campaign.from_document(document(**asked))


def measure(engine: Engine, device: int, jobs: int = 1000) -> int:
    """The next batches land, up to so many jobs, with times that follow from the problem; how many jobs did."""
    count = 0
    while count < jobs and (batch := form(engine, min(100, jobs - count))) is not None:
        lease = claim(engine, batch, device)
        assert lease is not None
        results = [(job, row(runtime_ms=1e-6 * (1000 + job.configuration.problem.flops))) for job in lease.jobs]
        with engine.begin() as connection:
            batches.land(connection, lease, results, {})
        count += len(results)
    return count


def requested(engine: Engine) -> list[int]:
    with engine.begin() as connection:
        batches.fold(connection)
        return learning.request(connection)


def begun(engine: Engine, training_id: int) -> TrainingAttempt:
    with engine.begin() as connection:
        started = trainings.start(connection, training_id)
    assert started is not None
    return started


def decided(engine: Engine, training_id: int) -> str | None:
    """The training decides on its round, as a trainer does it."""
    return rounds.decide(engine.execution_options(isolation_level="AUTOCOMMIT"), begun(engine, training_id))


def state(engine: Engine) -> str:
    with engine.begin() as connection:
        batches.fold(connection)
        campaigns.finish(connection)
        found: str = connection.execute(text("SELECT state FROM campaigns")).scalar_one()
    return found
