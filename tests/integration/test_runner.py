"""A worker's batch on real Postgres, with devices that behave and devices that do not."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import jobs
from farm.db.campaigns import Stored
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from farm.errors import DevicePoisoned, InvalidOnDevice, MeasurementFailed, ResultCorrupted
from farm.kernels import Configuration
from farm.measurement import Measurement
from support.batch_steps import counts, form, rows
from support.samples import cpu, document, row
from support.scripted_device import Measure, Scripted
from workers.preparation import AHEAD
from workers.runner import EXIT_HUNG, EXIT_SENTINEL, Deadline, Runner


@pytest.fixture
def device_id(announce: Callable[[DeviceIdentity], int]) -> int:
    return announce(cpu())


@pytest.fixture
def small(device_id: int, submit: Callable[[Campaign], Stored]) -> Stored:
    return submit(Campaign.from_document(document()))


@pytest.fixture
def run(engine: Engine, device_id: int) -> Callable[..., int]:
    def ran(script: Measure | Scripted, *, stopping: threading.Event | None = None) -> int:
        batch_id = form(engine)
        assert batch_id is not None
        stop = stopping or threading.Event()
        device = script if isinstance(script, Scripted) else Scripted(script)
        return Runner(engine, device, device_id, lease_seconds=60, stopping=stop).run_batch(batch_id)

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


def test_a_corrupted_result_is_no_row_and_its_job_is_tried_again(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        if n == 2:
            raise ResultCorrupted(launch="the last launch", difference="element (0, 0)")
        return row()

    assert run(script) == 11
    assert counts(engine, small.campaign_id) == {"done": 11, "pending": 1}
    with engine.connect() as connection:
        (job,) = jobs.listed(connection, small.campaign_id, kinds=[FailureKind.CORRUPTED])
    assert (job["attempts"], job["solo"]) == (1, False)
    assert job["error"] == str(ResultCorrupted(launch="the last launch", difference="element (0, 0)"))


def test_a_device_that_corrupts_a_second_result_hands_back_the_rest_of_its_batch(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        if n in (2, 4):
            raise ResultCorrupted(launch="the last launch", difference="one bit")
        return row()

    assert run(script) == 3
    assert counts(engine, small.campaign_id) == {"done": 3, "pending": 9}
    with engine.connect() as connection:
        assert jobs.failures_by_kind(connection, small.campaign_id) == {"corrupted": 2}


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


def test_a_poisoned_device_that_lost_its_lease_is_poisoned_still(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        with engine.begin() as connection:
            connection.execute(text("UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 s'"))
        raise DevicePoisoned(why="an illegal address")

    with pytest.raises(DevicePoisoned):
        run(script)
    assert rows(engine) == 0


@pytest.mark.parametrize("status", [EXIT_HUNG, EXIT_SENTINEL])
def test_what_outlives_its_time_ends_the_process_with_its_own_status(status: int) -> None:
    ended, statuses = threading.Event(), []

    def end(with_status: int) -> None:
        statuses.append(with_status)
        ended.set()

    deadline = Deadline(end, look_s=0.01)
    with deadline.of(60, "a job", job_id=1):
        assert not ended.wait(0.1)
    assert not ended.wait(0.1)
    with deadline.of(0.02, "a job", status=status, job_id=1):
        assert ended.wait(120)
    assert statuses == [status]


# --- the next job ----------------------------------------------------------------------------------------


def until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_while_a_job_is_measured_the_next_ones_are_prepared(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    early: list[bool] = []

    def script(n: int, _: Configuration) -> Measurement:
        early.append(until(lambda: len(device.prepared) == min(n + AHEAD, 11)))
        return row()

    device = Scripted(script)
    assert run(device) == 12
    assert all(early)
    assert device.prepared == device.asked[1:]


def test_a_preparation_that_raises_harms_nothing_and_the_next_is_made(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    def broken(_: Configuration) -> None:
        raise ZeroDivisionError

    def script(n: int, _: Configuration) -> Measurement:
        until(lambda: len(device.prepared) == min(n + AHEAD, 11))
        return row()

    device = Scripted(script, prepare=broken)
    assert run(device) == 12
    assert len(device.prepared) == 11


def test_nobody_waits_for_a_preparation_and_it_ends_with_its_runner(
    engine: Engine, small: Stored, run: Callable[..., int]
) -> None:
    before = set(threading.enumerate())

    def preparing() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "preparation" and thread not in before]

    done = threading.Event()
    device = Scripted(lambda n, _: row(), prepare=lambda _: done.wait(120) or None)
    assert run(device) == 12
    threads = preparing()
    assert 1 <= len(threads) <= AHEAD
    assert all(thread.daemon for thread in threads)
    gc.collect()
    done.set()
    assert until(lambda: preparing() == [])
    assert len(device.prepared) <= len(threads) + 1  # of what was asked for meanwhile, nothing is begun at the end
