"""A worker's batch on real Postgres, with devices that behave and devices that do not."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from samples import cpu, document, row
from sqlalchemy import Engine, text
from test_batches import counts, form, rows

from farm.campaign import Campaign
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.errors import DevicePoisoned, InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from workers.runner import Deadline, Runner

Measure = Callable[[int, Configuration], Measurement]


class Scripted:
    """A device whose n-th measurement is what the script says."""

    def __init__(self, script: Measure) -> None:
        self.identity = cpu()
        self._script = script
        self.asked: list[Configuration] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def measure(self, configuration: Configuration, rules: MeasuringRules) -> Measurement:
        self.asked.append(configuration)
        return self._script(len(self.asked) - 1, configuration)


@pytest.fixture
def device_id(announce: Callable[[DeviceIdentity], int]) -> int:
    return announce(cpu())


@pytest.fixture
def small(device_id: int, submit: Callable[[Campaign], Stored]) -> Stored:
    return submit(Campaign.from_document(document()))


@pytest.fixture
def run(engine: Engine, device_id: int) -> Callable[..., int]:
    def ran(script: Measure, *, stopping: threading.Event | None = None) -> int:
        batch_id = form(engine)
        assert batch_id is not None
        stop = stopping or threading.Event()
        return Runner(engine, Scripted(script), device_id, lease_seconds=60, stopping=stop).run_batch(batch_id)

    return ran


def test_every_job_of_the_batch_lands(engine: Engine, small: Stored, run: Callable[..., int]) -> None:
    assert run(lambda n, _: row(1.0 + n)) == 12
    assert counts(engine, small.campaign_id) == {"done": 12}


def test_what_one_job_raises_does_not_harm_its_neighbours(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        if n == 2:
            raise InvalidOnDevice(why="no room")
        if n == 5:
            raise MeasurementFailed(why="a hiccup")
        if n == 7:
            raise ZeroDivisionError
        return row()

    assert run(script) == 9
    assert counts(engine, small.campaign_id) == {"done": 9, "invalid": 1, "pending": 2}


def test_a_poisoned_device_lands_what_came_before_and_suspects_its_job(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        if n == 4:
            raise DevicePoisoned(why="an illegal address")
        return row()

    with pytest.raises(DevicePoisoned):
        run(script)
    assert counts(engine, small.campaign_id) == {"done": 4, "pending": 8}
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM jobs WHERE solo")).scalar_one() == 1


def test_a_worker_that_is_told_to_stop_lands_what_it_has(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    stopping = threading.Event()

    def script(n: int, _: Configuration) -> Measurement:
        if n == 3:
            stopping.set()
        return row()

    assert run(script, stopping=stopping) == 4
    assert counts(engine, small.campaign_id) == {"done": 4, "pending": 8}


def test_a_worker_that_loses_its_lease_stops_measuring_and_writes_nothing(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    asked = []

    def script(n: int, configuration: Configuration) -> Measurement:
        asked.append(configuration)
        if n == 3:
            with engine.begin() as connection:
                connection.execute(text("UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 s'"))
        return row()

    assert run(script) == 0
    assert len(asked) == 4
    assert rows(engine) == 0


def test_a_job_that_outlives_its_time_ends_the_process() -> None:
    ended = threading.Event()
    deadline = Deadline(ended.set, look_s=0.01)
    with deadline.of(60, "a job", job_id=1):
        assert not ended.wait(0.1)
    assert not ended.wait(0.1)
    with deadline.of(0.02, "a job", job_id=1):
        assert ended.wait(5)
