"""A device that fails everything costs no healthy job: trials, probation, and death after two devices only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Connection, Engine, text

from farm.broker.queues import TRY_DEVICE, queue_of_device
from farm.campaign import Campaign
from farm.coordinator import quarantine
from farm.db import batches, devices, probation
from farm.db.batches import Failure, ending
from farm.db.campaigns import Stored
from farm.db.states import DeviceState, FailureKind, JobState
from farm.devices import DeviceIdentity
from farm.errors import DevicePoisoned, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.metrics import Metrics
from farm.settings import Settings
from support.batch_steps import counts, form, land, leased, recording
from support.commands import farm_here
from support.samples import cpu, document, row
from support.scripted_device import Scripted
from workers import tasks
from workers.runner import Runner

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]

CANARY = Configuration.parse("blas(threads=1) 32x32x32 f32")
BROKEN = Failure(FailureKind.FAILED, "broken")


class Device(Scripted):
    """Fails each configuration that `fails` says."""

    def __init__(self, fails: Callable[[Configuration], bool], *, error: type[MeasurementFailed] = MeasurementFailed):
        super().__init__(self._measured)
        self._fails, self._error = fails, error

    def canary(self) -> Configuration:
        return CANARY

    def _measured(self, _: int, configuration: Configuration) -> Measurement:
        if self._fails(configuration):
            raise self._error(why="broken")
        return row()


@pytest.fixture
def bad(announce: Announce) -> int:
    return announce(cpu(1))


@pytest.fixture
def good(announce: Announce) -> int:
    return announce(cpu(2))


@pytest.fixture
def jobs(bad: int, good: int, submit: Submit) -> int:
    """Twelve jobs for both devices; the id of their campaign."""
    return submit(Campaign.from_document(document(measure={"max_attempts": 2}))).campaign_id


def runner(engine: Engine, device_id: int, device: Device) -> Runner:
    return Runner(engine, device, device_id, lease_seconds=60, stopping=threading.Event())  # type: ignore[arg-type]


def state_of(engine: Engine, device_id: int) -> str:
    with engine.connect() as connection:
        return str(connection.execute(text("SELECT state FROM devices WHERE id = :id"), {"id": device_id}).scalar_one())


def attempts(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT sum(attempts) FROM jobs")).scalar_one())


def leave(engine: Engine, device_id: int) -> None:
    with engine.begin() as connection:
        devices.leave(connection, device_id)


def beat(engine: Engine, device_id: int) -> None:
    with engine.begin() as connection:
        devices.heartbeat(connection, device_id)


def end_exhausted(engine: Engine) -> int:
    with engine.begin() as connection:
        return batches.end_exhausted(connection)


def measure(engine: Engine, device_id: int, device: Device) -> int:
    """Batches that the device measures, until none is formed for it. Returns how many."""
    measuring, number = runner(engine, device_id, device), 0
    while (batch_id := form(engine, 4)) is not None:
        measuring.run_batch(batch_id)
        number += 1
        assert number < 50
        if state_of(engine, device_id) != DeviceState.ACTIVE:
            break
    return number


def test_a_device_that_fails_everything_alone_costs_no_job_while_the_good_one_restarts(
    engine: Engine, bad: int, good: int, jobs: int
) -> None:
    land(engine, leased(engine, good, 2))  # known-good
    leave(engine, good)
    broken = Device(lambda _: True)
    assert measure(engine, bad, broken) == 1
    assert state_of(engine, bad) == DeviceState.PROBATION
    assert len(broken.asked) == 4, "three jobs and the trial"
    assert attempts(engine) == 0
    assert counts(engine, jobs) == {"done": 2, "pending": 10}
    assert form(engine) is None, "nobody takes work"
    beat(engine, good)
    assert measure(engine, good, Device(lambda _: False))
    assert counts(engine, jobs) == {"done": 12}


def test_the_canary_is_the_trial_where_nothing_is_known_to_be_good(
    engine: Engine, bad: int, good: int, jobs: int
) -> None:
    leave(engine, good)
    broken = Device(lambda _: True)
    measure(engine, bad, broken)
    assert broken.asked[3] is CANARY
    assert state_of(engine, bad) == DeviceState.PROBATION
    assert attempts(engine) == 0


def test_a_device_that_passes_its_trials_fails_jobs_alone_and_none_is_dead(
    engine: Engine, bad: int, good: int, jobs: int
) -> None:
    leave(engine, good)
    measure(engine, bad, Device(lambda configuration: configuration is not CANARY))
    assert state_of(engine, bad) == DeviceState.ACTIVE
    assert counts(engine, jobs) == {"pending": 12}
    assert end_exhausted(engine) == 0, "the other one may be back"
    beat(engine, good)
    measure(engine, good, Device(lambda _: False))
    assert counts(engine, jobs) == {"done": 12}


def test_a_job_that_two_devices_fail_is_dead_and_neither_is_on_probation(
    engine: Engine, bad: int, good: int, jobs: int
) -> None:
    fails = Device(lambda configuration: configuration is not CANARY)
    for _ in range(8):
        for device_id in (bad, good):
            batch_id = form(engine, 12)
            if batch_id is not None:
                runner(engine, device_id, fails).run_batch(batch_id)
    assert counts(engine, jobs) == {"dead": 12}
    assert {state_of(engine, bad), state_of(engine, good)} == {DeviceState.ACTIVE}


def test_a_job_is_dead_after_its_attempts_on_the_only_device(engine: Engine, bad: int, submit: Submit) -> None:
    campaign_id = submit(Campaign.from_document(document(measure={"max_attempts": 2}))).campaign_id
    measure(engine, bad, Device(lambda configuration: configuration is not CANARY))
    assert counts(engine, campaign_id) == {"dead": 12}
    assert state_of(engine, bad) == DeviceState.ACTIVE


def test_what_waits_for_another_device_is_dead_once_none_is_expected(
    engine: Engine, bad: int, good: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(engine, good)
    measure(engine, bad, Device(lambda configuration: configuration is not CANARY))
    assert end_exhausted(engine) == 0
    with engine.begin() as connection:  # an operator says so
        devices.set_state(connection, good, DeviceState.DRAINED, "gone for long")
    assert end_exhausted(engine) == 12
    assert counts(engine, jobs) == {"dead": 12}


def test_what_waits_for_another_device_is_dead_when_that_refuses_it(
    engine: Engine, bad: int, good: int, jobs: int
) -> None:
    leave(engine, good)
    measure(engine, bad, Device(lambda configuration: configuration is not CANARY))
    beat(engine, good)
    lease = leased(engine, good)
    land(engine, lease, {job.id: Failure(FailureKind.INVALID, "no room") for job in lease.jobs})
    end_exhausted(engine)
    assert set(counts(engine, jobs)) <= {"dead", "invalid"}


def test_a_failed_job_pauses_before_it_is_tried_again(
    engine: Engine, bad: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "RETRY_SECONDS", 3600.0)
    lease = leased(engine, bad)
    land(engine, lease, {lease.jobs[0].id: BROKEN})
    assert form(engine) is None
    with engine.begin() as connection:
        connection.execute(text("UPDATE returned_jobs SET not_before = clock_timestamp()"))
    assert form(engine) is not None


def test_a_trial_that_poisons_the_device_ends_its_process_and_blames_no_job(
    engine: Engine, bad: int, good: int, jobs: int
) -> None:
    broken = Device(lambda c: True)
    broken._script = _poisoned_after(3)
    batch_id = form(engine, 4)
    assert batch_id is not None
    with pytest.raises(DevicePoisoned):
        runner(engine, bad, broken).run_batch(batch_id)
    assert state_of(engine, bad) == DeviceState.PROBATION
    assert attempts(engine) == 0


def _poisoned_after(jobs: int) -> Callable[[int, Configuration], Measurement]:
    def script(n: int, _: Configuration) -> Measurement:
        raise DevicePoisoned(why="lost") if n >= jobs else MeasurementFailed(why="broken")

    return script


def test_a_device_comes_back_when_it_passes_a_trial(
    engine: Engine, bad: int, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, str]] = []
    monkeypatch.setattr(
        quarantine, "send", lambda app, task, ids: [sent.append(one) or one[0] for one in ids if task == TRY_DEVICE]
    )
    with engine.begin() as connection:
        assert probation.begin(connection, bad, "broken", tried=True)
        assert not probation.begin(connection, bad, "again", tried=True)
        assert [row[0] for row in devices.live(connection, silent_after=60)] == [good]
    assert quarantine.send_trials(engine, None, Settings()) == 1  # type: ignore[arg-type]
    assert quarantine.send_trials(engine, None, Settings()) == 0, "it was told"  # type: ignore[arg-type]
    assert sent == [(bad, queue_of_device("CPU-1"))]
    with engine.begin() as connection:
        probation.failed_trial(connection, bad, "still broken")
        assert state_of(engine, bad) == DeviceState.PROBATION
        assert probation.passed_trial(connection, bad)
        assert not probation.passed_trial(connection, bad)
    assert state_of(engine, bad) == DeviceState.ACTIVE


def test_the_pause_before_a_trial_doubles_and_goes_on_after_a_relapse(
    engine: Engine, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probation, "TRIAL_SECONDS", 10.0)

    def pause() -> int:
        with engine.connect() as connection:
            found = connection.execute(
                text("SELECT extract(epoch FROM next_trial_at - clock_timestamp()) FROM devices")
            )
            return round(float(found.scalar_one()) / 10)

    with engine.begin() as connection:
        probation.begin(connection, bad, "its process dies", tried=False)
    assert pause() == 0, "it did not fail a trial yet"
    with engine.begin() as connection:
        probation.passed_trial(connection, bad)
        probation.begin(connection, bad, "broken", tried=True)
    pauses = [pause()]
    for _ in range(8):
        with engine.begin() as connection:
            probation.failed_trial(connection, bad, "broken")
        pauses.append(pause())
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    with engine.begin() as connection:
        probation.passed_trial(connection, bad)
        probation.begin(connection, bad, "again", tried=True)
    assert pause() == 64


@pytest.mark.long
def test_the_doctor_names_devices_that_take_no_jobs(
    engine: Engine, bad: int, tmp_path: Path, database_url: str
) -> None:
    def check() -> dict[str, str]:
        with engine.begin() as connection:
            devices.heartbeat(connection, bad)
        told = json.loads(farm_here(tmp_path, database_url)("doctor", "--json").stdout)
        return next(one for one in told if one["check"] == "devices")

    assert check()["state"] == "ok"
    with engine.begin() as connection:
        probation.begin(connection, bad, "broken", tried=True)
    found = check()
    assert found["state"] == "warning"
    assert "probation (broken)" in found["what"]


def test_a_device_whose_process_dies_in_job_after_job_is_found(engine: Engine, bad: int, good: int, jobs: int) -> None:
    for n in range(probation.DEATHS_IN_A_ROW):
        lease = leased(engine, bad, 1)
        with engine.begin() as connection:
            assert probation.dies_in_a_row(connection, bad) is False, n
            batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
            batches.release(connection, lease.batch_id, device_id=bad, reason="its process died", suspect=True)
    with engine.begin() as connection:
        assert probation.dies_in_a_row(connection, bad)
        assert not probation.dies_in_a_row(connection, good)
    land(engine, leased(engine, bad, 1))
    with engine.begin() as connection:
        assert not probation.dies_in_a_row(connection, bad)


def test_nobody_waits_for_the_refusal_of_a_device_that_fails_trial_after_trial(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    good, bad = announce(recording(1)), announce(recording(2))
    campaign_id = submit(Campaign.from_document(document())).campaign_id
    lease = leased(engine, good, 1, kind="recorded-cpu-test")
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.INVALID, "not in the recording")})
    with engine.begin() as connection:
        probation.begin(connection, bad, "broken", tried=True)
        assert batches.give_up(connection) == 0, "it may be well soon"
        for _ in range(devices.HOPELESS_TRIALS - 1):
            probation.failed_trial(connection, bad, "still broken")
        assert list(devices.shut_out_on(connection, "here").values()) == ["still broken"]
        assert batches.give_up(connection) == 1
    assert counts(engine, campaign_id)["invalid"] == 1


def test_devices_are_asked_again_for_a_retried_job_that_they_refused(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    good, bad = announce(recording(1)), announce(recording(2))
    with engine.begin() as connection:
        probation.begin(connection, bad, "broken", tried=True)
        for _ in range(devices.HOPELESS_TRIALS - 1):
            probation.failed_trial(connection, bad, "still broken")
    one = document(
        problems={"m": 16, "n": 16, "k": 16, "types": ["f32"]},
        kernels=[{"family": "blas", "threads": 1}],
        measure={"max_attempts": 2},
    )
    campaign_id = submit(Campaign.from_document(one)).campaign_id
    kind = "recorded-cpu-test"
    lease = leased(engine, good, kind=kind)
    (job,) = lease.jobs
    with engine.begin() as connection:  # it is measured alone from now on
        batches.mark(connection, lease, job, lease_seconds=60)
        batches.release(connection, lease.batch_id, device_id=good, reason="its process died", suspect=True)
        connection.execute(text("UPDATE returned_jobs SET not_before = clock_timestamp()"))
    refusal = {job.id: Failure(FailureKind.INVALID, "not in the recording")}
    land(engine, leased(engine, good, kind=kind), refusal)
    assert counts(engine, campaign_id) == {"invalid": 1}
    with engine.begin() as connection:
        assert batches.retry(connection, campaign_id, states=[JobState.INVALID]) == 1
        assert batches.give_up(connection) == 0, "somebody wants it to be tried again"
    land(engine, leased(engine, good, kind=kind), refusal)
    assert counts(engine, campaign_id) == {"invalid": 1}


# --- in the worker's processes ---------------------------------------------------------------------------


@pytest.fixture
def served(engine: Engine, bad: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The tasks of this process serve the bad device."""
    monkeypatch.setattr(tasks, "engine", lambda: engine)
    monkeypatch.setattr(tasks, "device_id", lambda: bad)
    monkeypatch.setattr(tasks, "_metrics", lambda _: Metrics())
    return bad


def test_a_trial_decides_whether_a_device_stays_on_probation(
    engine: Engine, served: int, good: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(engine, leased(engine, good, 2))
    with engine.begin() as connection:
        probation.begin(connection, served, "broken", tried=True)
    broken, mended = Device(lambda _: True), Device(lambda _: False)
    monkeypatch.setattr(tasks, "_runner", lambda: runner(engine, served, broken))
    tasks.try_device(served)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT state, state_reason, failed_trials FROM devices WHERE id = 1")).one()
    assert (found.state, found.failed_trials) == ("probation", 2)
    assert "which another device measured: " in found.state_reason
    monkeypatch.setattr(tasks, "_runner", lambda: runner(engine, served, mended))
    tasks.try_device(good)
    assert not mended.asked, "it was another device's trial"
    tasks.try_device(served)
    tasks.try_device(served)
    assert len(mended.asked) == 1, "a late message does nothing"
    assert state_of(engine, served) == DeviceState.ACTIVE


@pytest.mark.parametrize("fails", [True, False])
def test_a_trial_whose_result_cannot_be_stored_is_tried_again(
    engine: Engine, served: int, good: int, jobs: int, fails: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    land(engine, leased(engine, good, 2))
    with engine.begin() as connection:
        probation.begin(connection, served, "broken", tried=True)
    name = "failed_trial" if fails else "passed_trial"
    store = getattr(probation, name)

    def store_read_only(connection: Connection, *arguments: object) -> object:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        return store(connection, *arguments)

    monkeypatch.setattr(tasks, "_runner", lambda: runner(engine, served, Device(lambda _: fails)))
    with monkeypatch.context() as patched:
        patched.setattr(probation, name, store_read_only)
        tasks.try_device(served)
    assert "in a read-only transaction" in caplog.text
    assert "the trial is tried again" in caplog.text
    assert state_of(engine, served) == DeviceState.PROBATION
    tasks.try_device(served)
    assert state_of(engine, served) == (DeviceState.PROBATION if fails else DeviceState.ACTIVE)


def test_a_process_that_ends_in_a_trial_blames_no_job(engine: Engine, served: int, good: int, jobs: int) -> None:
    lease = leased(engine, served, 4)
    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
    tasks._hand_backs.add(lease.batch_id, "its process was ended", cause=tasks.cause_of_death("exitcode 90"))
    tasks._hand_backs.work_off()
    assert state_of(engine, served) == DeviceState.PROBATION
    assert attempts(engine) == 0
    assert counts(engine, jobs) == {"pending": 12}
    tasks._hand_backs.add(None, "its process was ended", cause="SIGSEGV")
    tasks._hand_backs.work_off()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT failed_trials FROM devices WHERE id = 1")).scalar_one() == 2


def test_a_device_on_probation_takes_messages_of_its_own_queue_alone(served: int) -> None:
    class Consumer:
        def __init__(self) -> None:
            queues = {"gpu.cpu-test": None, "device.CPU-1": None}
            self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=queues)))
            self.asked = set(queues)

        def call_soon(self, change: Callable[[str], None], queue: str) -> None:
            change(queue)

        def add_task_queue(self, queue: str) -> None:
            self.asked.add(queue)

        def cancel_task_queue(self, queue: str) -> None:
            self.asked.discard(queue)

    consumer = Consumer()
    subscription = tasks._Subscription(consumer)
    for state, queues in (
        (DeviceState.PROBATION, {"device.CPU-1"}),
        (DeviceState.QUARANTINED, set()),
        (DeviceState.PROBATION, {"device.CPU-1"}),
        (DeviceState.ACTIVE, {"device.CPU-1", "gpu.cpu-test"}),
    ):
        subscription.follow(state)
        assert consumer.asked == queues
