"""Rows and messages that the database does not take: they are failures of their own job, and harm no other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from farm.campaign import Campaign
from farm.db import batches, measurements
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.errors import MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement
from support.batch_steps import form, leased
from support.samples import cpu, document, row
from support.scripted_device import Scripted
from workers.runner import Runner


@pytest.fixture
def device_id(announce: Callable[[DeviceIdentity], int]) -> int:
    return announce(cpu())


@pytest.fixture
def small(device_id: int, submit: Callable[[Campaign], Stored]) -> Stored:
    return submit(Campaign.from_document(document()))


def run(engine: Engine, device_id: int, script: Callable[[int, Configuration], Measurement]) -> int:
    batch_id = form(engine)
    assert batch_id is not None
    return Runner(engine, Scripted(script), device_id, lease_seconds=60, stopping=threading.Event()).run_batch(batch_id)


def failures(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT message FROM failures ORDER BY job_id")).scalars())


@pytest.mark.parametrize(
    ("unstorable", "why"),
    [
        ({"samples": 0}, 'violates check constraint "ck_measurements_samples_positive"'),
        ({"power_w": -1.0}, 'violates check constraint "ck_measurements_power_positive"'),
        ({"runtime_settled_ms": 0.0}, 'violates check constraint "ck_measurements_runtime_settled_positive"'),
        ({"stop_reason": "zero\0byte"}, "cannot contain NUL"),
        ({"details": {"text": "zero\0byte"}}, "unsupported Unicode escape sequence"),
        ({"details": {"registers": np.int64(3)}}, "not JSON serializable"),
        ({"environment": {"library": np.float32(1)}}, "not JSON serializable"),
        ({"sm_clock_mhz": 2**70}, "out of range"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_row_that_cannot_be_stored_fails_its_job_alone(
    engine: Engine, device_id: int, small: Stored, unstorable: dict[str, object], why: str
) -> None:
    assert run(engine, device_id, lambda n, _: row(1.0 + n, **(unstorable if n == 4 else {}))) == 11
    (message,) = failures(engine)
    assert message.startswith("its row cannot be stored: ")
    assert why in message
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM jobs WHERE state = 'done'")).scalar_one() == 11
        assert connection.execute(text("SELECT count(*) FROM measurements")).scalar_one() == 11
        assert list(connection.execute(text("SELECT state FROM batches")).scalars()) == ["done"]


def test_a_message_that_cannot_be_stored_is_written_so_that_it_can(
    engine: Engine, device_id: int, small: Stored
) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        if n == 1:
            raise MeasurementFailed(why="zero \0 byte")
        if n == 2:
            raise MeasurementFailed(why="broken \udcff byte")
        return row()

    assert run(engine, device_id, script) == 10
    said = failures(engine)
    assert sorted(said) == [r"The measurement failed: broken \udcff byte", r"The measurement failed: zero \0 byte"]


def test_refusals_are_found_without_writing(engine: Engine, device_id: int, small: Stored) -> None:
    lease = leased(engine, device_id)
    results = [(job, row(samples=n % 2)) for n, job in enumerate(lease.jobs)]
    with engine.begin() as connection:
        refused = batches.refusals(connection, lease, results)
    assert set(refused) == {job.id for job in lease.jobs[::2]}
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM measurements")).scalar_one() == 0


LOSE_CONNECTION = """
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
CREATE TRIGGER lose BEFORE INSERT ON measurements FOR EACH ROW EXECUTE FUNCTION lose()
"""


def test_a_connection_that_is_lost_in_the_middle_of_a_row_is_an_error_of_sqlalchemy_and_leaves_the_pool(
    engine: Engine, device_id: int, small: Stored
) -> None:
    lease = leased(engine, device_id)
    job = lease.jobs[0]
    given: measurements.Row = (job.id, lease.campaign_id, job.configuration.id, device_id, row())
    with engine.begin() as connection:
        connection.execute(text(LOSE_CONNECTION))
    with pytest.raises(OperationalError) as lost, engine.begin() as connection:
        measurements.insert(connection, [given])
    assert lost.value.connection_invalidated
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER lose ON measurements"))
        measurements.insert(connection, [given])
