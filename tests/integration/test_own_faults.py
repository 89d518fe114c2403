"""What the database or the farm itself is to blame for: no job counts an attempt, and no device holds two leases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from farm.campaign import Campaign
from farm.db import batches
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.errors import KernelUnreachable, LeaseLost
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.services import ServiceUrls
from support.batch_steps import claim, counts, form, land, leased
from support.homes import eventually
from support.obstructing import foreign, read_only
from support.programs import COORDINATOR, FARM_WORKER, Start, programs
from support.samples import cpu, document, row
from support.scripted_device import Measure, Scripted
from workers import runner, tasks
from workers.runner import Runner
from workers.watchdog import Watchdog

Submit = Callable[[Campaign], Stored]

REFUSE = """
CREATE SEQUENCE tries;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('tries') <= {times} THEN
        RAISE EXCEPTION 'so the test has it' USING ERRCODE = '{sqlstate}';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON measurements FOR EACH STATEMENT EXECUTE FUNCTION refuse()
"""


def refuse_rows(engine: Engine, sqlstate: str, *, times: int = 2**62) -> None:
    """From now on Postgres refuses to store measurements, so many times, with that error."""
    with engine.begin() as connection:
        connection.exec_driver_sql(REFUSE.format(sqlstate=sqlstate, times=times))


@pytest.fixture
def device_id(announce: Callable[[DeviceIdentity], int]) -> int:
    return announce(cpu())


@pytest.fixture
def small(device_id: int, submit: Submit) -> Stored:
    return submit(Campaign.from_document(document(measure={"job_seconds": 1})))


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANDING_SECONDS", "CLAIM_PATIENCE_SECONDS", "RETRY_SECONDS", "UNREACHABLE_PAUSE_SECONDS"):
        monkeypatch.setattr(runner, name, 0.01)


def run(engine: Engine, device_id: int, script: Measure) -> int:
    batch_id = form(engine)
    assert batch_id is not None
    measuring = Runner(engine, Scripted(script), device_id, lease_seconds=60, stopping=threading.Event())
    return measuring.run_batch(batch_id)


def blamed(engine: Engine) -> int:
    """Attempts and failures that jobs were charged with."""
    with engine.connect() as connection:
        charged = text("SELECT (SELECT coalesce(sum(attempts), 0) FROM jobs) + (SELECT count(*) FROM failures)")
        return int(connection.execute(charged).scalar_one())


# --- landing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sqlstate", ["25006", "53100", "55P03", "40P01", "42501", "XX000"])
def test_a_landing_that_the_database_refuses_for_a_while_is_tried_again(
    engine: Engine, device_id: int, small: Stored, sqlstate: str
) -> None:
    refuse_rows(engine, sqlstate, times=3)
    assert run(engine, device_id, lambda n, _: row(1.0 + n)) == 12
    assert counts(engine, small.campaign_id) == {"done": 12}
    assert blamed(engine) == 0


@pytest.mark.parametrize("sqlstate", ["25006", "53100", "42501", "42P01", "XX000"])
def test_a_batch_that_cannot_land_goes_back_and_no_job_is_blamed(
    engine: Engine, device_id: int, small: Stored, sqlstate: str
) -> None:
    refuse_rows(engine, sqlstate)
    with pytest.raises(DBAPIError, match="so the test has it"):
        run(engine, device_id, lambda n, _: row(1.0 + n))
    with engine.begin() as connection:
        assert batches.held_by(connection, device_id) is None
        assert len(batches.reap(connection)) == 1
        (reason,) = connection.execute(text("SELECT end_reason FROM batches")).scalars()
    assert reason == "its worker could not go on: so the test has it"
    assert counts(engine, small.campaign_id) == {"pending": 12}
    assert blamed(engine) == 0


def test_who_holds_the_lane_of_an_abandoned_batch_does_not_hold_up_its_device(
    engine: Engine, device_id: int, small: Stored
) -> None:
    held, other = leased(engine, device_id, size=4), form(engine, size=4)
    assert other is not None
    with foreign(engine, "SELECT 1 FROM lanes FOR UPDATE"):
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '2s'"))
            assert batches.abandon(connection, held.batch_id, device_id=device_id, reason="?")
            assert not batches.abandon(connection, held.batch_id, device_id=device_id, reason="?")
        with engine.begin() as connection:
            assert batches.reap(connection) == []
        assert claim(engine, other, device_id) is not None
        with pytest.raises(LeaseLost):
            land(engine, held)
    with engine.begin() as connection:
        assert batches.reap(connection) == [held.batch_id]


# --- kernels -----------------------------------------------------------------------------------------


def unreachable(configuration: Configuration) -> KernelUnreachable:
    return KernelUnreachable(binary=configuration, why="the store does not answer")


def test_a_job_whose_kernel_cannot_be_fetched_waits_and_its_neighbours_are_measured(
    engine: Engine, device_id: int, small: Stored
) -> None:
    def script(n: int, configuration: Configuration) -> Measurement:
        if n in (2, 5):
            raise unreachable(configuration)
        return row()

    assert run(engine, device_id, script) == 10
    assert counts(engine, small.campaign_id) == {"done": 10, "pending": 2}
    assert blamed(engine) == 0


def test_where_no_kernel_can_be_fetched_the_batch_soon_goes_back(engine: Engine, device_id: int, small: Stored) -> None:
    asked = []

    def script(n: int, configuration: Configuration) -> Measurement:
        asked.append(configuration)
        raise unreachable(configuration)

    assert run(engine, device_id, script) == 0
    assert len(asked) == runner.UNREACHABLE_KERNELS
    assert counts(engine, small.campaign_id) == {"pending": 12}
    assert blamed(engine) == 0


# --- the worker's parent process ---------------------------------------------------------------------


class Parent:
    """What the parent process of a device's worker sees: its database, and the task that its child has."""

    def __init__(self, engine: Engine, device_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: set[SimpleNamespace] = set()
        self.killed: list[int] = []
        self.children = [SimpleNamespace(pid=4711)]
        self.hand_backs = tasks._HandBacks()
        monkeypatch.setenv("FARM_WORKER_DEVICE_ID", str(device_id))
        monkeypatch.setattr(tasks, "engine", lambda: engine)
        monkeypatch.setattr(tasks, "_hand_backs", self.hand_backs)
        monkeypatch.setattr(tasks, "_ended_hung_child", threading.Event())
        monkeypatch.setattr(tasks.state, "reserved_requests", self.requests)
        monkeypatch.setattr(tasks, "active_children", lambda: self.children)
        monkeypatch.setattr(tasks.os, "kill", lambda pid, _: self.killed.append(pid))

    def gives(self, batch_id: int, pid: int | None = 4711) -> None:
        self.requests.clear()
        self.requests.add(Request(id=f"task {batch_id}", args=(batch_id,), worker_pid=pid))


class Request(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def parent(engine: Engine, device_id: int, monkeypatch: pytest.MonkeyPatch) -> Parent:
    return Parent(engine, device_id, monkeypatch)


def expires(engine: Engine, batch_id: int) -> float:
    """In how many seconds the lease passes."""
    with engine.connect() as connection:
        left = text(
            "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM batches WHERE id = :id"
        )
        return float(connection.execute(left, {"id": batch_id}).scalar_one())


def test_only_the_batch_in_hand_is_renewed_and_judged(
    engine: Engine, device_id: int, small: Stored, parent: Parent
) -> None:
    held = leased(engine, device_id, size=4, lease_seconds=5)
    with engine.begin() as connection:  # as good as over, and not what the child has
        batches.mark(connection, held, held.jobs[0], lease_seconds=5, busy_seconds=5)
    parent.gives(held.batch_id + 1)
    tasks._watch(Watchdog(overdue_s=8, unleased_s=150))
    assert expires(engine, held.batch_id) <= 5
    assert parent.killed == []
    parent.gives(held.batch_id)
    tasks._watch(Watchdog(overdue_s=8, unleased_s=150))
    assert parent.killed == [4711]
    parent.hand_backs.work_off()
    assert blamed(engine) == 2, "one attempt, one failure: it stood still with this job"


def test_the_child_that_took_the_place_of_one_that_stood_still_is_not_ended(
    engine: Engine, device_id: int, small: Stored, parent: Parent
) -> None:
    held = leased(engine, device_id, size=4, lease_seconds=5)
    parent.gives(held.batch_id, pid=4710)
    tasks._watch(Watchdog(overdue_s=1000, unleased_s=150))
    assert parent.killed == []


def test_a_batch_that_the_child_gave_up_is_handed_back_without_blame(
    engine: Engine, device_id: int, small: Stored, parent: Parent
) -> None:
    held = leased(engine, device_id, size=4)
    with engine.begin() as connection:
        batches.mark(connection, held, held.jobs[0], lease_seconds=60)
    left_behind = tasks._LeftBehind()
    parent.gives(held.batch_id)
    left_behind.hand_back()
    left_behind.hand_back()
    parent.requests.clear()
    left_behind.hand_back()
    with engine.connect() as connection:
        assert batches.held_by(connection, device_id) == held.batch_id, "its child may just have died"
    left_behind.hand_back()
    with engine.connect() as connection:
        assert batches.held_by(connection, device_id) is None
    assert blamed(engine) == 0
    other = form(engine)
    assert other is not None
    assert claim(engine, other, device_id) is not None


def test_a_batch_of_a_child_that_died_is_left_to_who_hands_it_back(
    engine: Engine, device_id: int, small: Stored, parent: Parent
) -> None:
    held = leased(engine, device_id, size=4)
    with engine.begin() as connection:
        batches.mark(connection, held, held.jobs[0], lease_seconds=60)
    parent.hand_backs.add(held.batch_id, "its process was killed by signal SIGKILL")
    left_behind = tasks._LeftBehind()
    left_behind.hand_back()
    left_behind.hand_back()
    parent.hand_backs.work_off()
    assert blamed(engine) == 2, "one attempt, one failure"


# --- real processes ----------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path, database_url: str, farm_services: ServiceUrls) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    with programs(tmp_path, **urls) as starting:
        yield starting


@pytest.mark.long
def test_a_database_that_is_read_only_for_a_while_costs_no_job_an_attempt(
    engine: Engine, submit: Submit, start: Start
) -> None:
    times = {"FARM_LEASE_SECONDS": "7", "FARM_HEARTBEAT_SECONDS": "3"}
    start(COORDINATOR, **times)
    worker = start(FARM_WORKER, "--devices", "cpu", **times)

    def number(statement: str) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text(statement)).scalar_one())

    eventually(lambda: number("SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
    with engine.connect() as connection:
        kind = connection.execute(text("SELECT type FROM devices")).scalar_one()
    problems = {"m": [64, 128, 256, 512], "n": [64, 128, 256, 512], "k": [32, 64, 128], "types": ["f32"]}
    submit(Campaign.from_document(document(targets=[{"type": kind}], problems=problems)))

    def refused_with_a_job_in_hand() -> bool:
        eventually(lambda: number("SELECT count(*) FROM batches WHERE current_job_id IS NOT NULL"))
        with read_only(engine):
            if not number("SELECT count(*) FROM batches WHERE current_job_id IS NOT NULL"):
                return False  # the batch ended meanwhile
            threading.Event().wait(11)  # longer than the lease and the coordinator's term
            return True

    eventually(refused_with_a_job_in_hand)
    eventually(lambda: number("SELECT count(*) FROM campaigns WHERE state = 'done'"))
    assert blamed(engine) == 0
    assert number("SELECT count(*) FROM measurements WHERE job_id IS NOT NULL") == 96
    assert "read-only" in worker.log()
