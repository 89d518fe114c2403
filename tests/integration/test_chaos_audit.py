"""What the audit of a chaos run says of a database in which something is wrong."""

from __future__ import annotations

from sqlalchemy import Engine, text

from chaos.audit import harm_to_healthy_jobs
from chaos.workload import Workload
from farm.db.campaigns import Stored
from support.batch_steps import land, leased

HEALTHY = Workload((), (), {}, {}, ())


def harm(engine: Engine) -> tuple[int, int, int]:
    """Jobs lost, rows doubled, healthy jobs dead."""
    with engine.connect() as connection:
        lost, doubled, dead = harm_to_healthy_jobs(connection, HEALTHY).values()
    return lost, doubled, dead


def write(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def test_jobs_that_are_lost_doubled_or_dead_are_counted(engine: Engine, device: int, small: Stored) -> None:
    land(engine, leased(engine, device))
    assert harm(engine) == (0, 0, 0)
    write(engine, "ALTER TABLE measurements DISABLE TRIGGER USER")  # rows cannot be changed otherwise
    write(engine, "DELETE FROM measurements WHERE job_id = (SELECT min(id) FROM jobs)")
    assert harm(engine) == (1, 0, 0)
    write(engine, "UPDATE jobs SET state = 'dead' WHERE id = (SELECT max(id) FROM jobs)")
    assert harm(engine) == (1, 0, 1)
    write(engine, "UPDATE jobs SET state = 'open' WHERE id = (SELECT min(id) FROM jobs)")
    assert harm(engine) == (1, 0, 1)
    write(engine, "DROP INDEX uq_measurements_job_id")
    others = "(SELECT id FROM jobs WHERE state = 'done' ORDER BY id LIMIT 2)"
    write(engine, f"UPDATE measurements SET job_id = (SELECT min(id) FROM {others} o) WHERE job_id IN {others}")
    assert harm(engine) == (2, 1, 1)
