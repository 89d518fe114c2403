"""Locks that somebody holds for long: what goes on beside them, what ends them, and who is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.errors import DiskFull, LockNotAvailable
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from farm.broker.celery_app import make_app
from farm.broker.queues import queue_of_type
from farm.campaign import Campaign, plan
from farm.coordinator import leading
from farm.coordinator.estimates import Cause, estimates, read_farm_state
from farm.coordinator.leading import leadership
from farm.coordinator.loop import Coordinator
from farm.coordinator.metrics import StepFailure, Watch
from farm.db import batches, campaigns, devices, locks
from farm.db import engine as sessions
from farm.db import leadership as leaders
from farm.db.batches import Lease
from farm.db.campaigns import Stored
from farm.db.engine import DISPATCHING, DURABLE, MEASURING, Fault, fault_of, make_engine
from farm.db.states import DeviceState
from farm.devices import DeviceIdentity
from farm.errors import LeaseLost
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.services import ServiceUrls
from farm.settings import Settings
from support.batch_steps import counts, expire, form, land, leased, rows
from support.cables import Cable, through
from support.commands import farm_here
from support.homes import eventually
from support.obstructing import foreign
from support.samples import cpu, document, row
from support.scripted_device import Scripted
from workers import runner
from workers.runner import Runner

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
KINDS = ("cpu-held", "cpu-free")


@pytest.fixture
def dispatching(database_url: str) -> Iterator[Engine]:
    """An engine as coordinators have it."""
    made = make_engine(database_url, application="farm coordinator", session=DISPATCHING, pre_ping=False)
    yield made
    made.dispose()


@pytest.fixture
def coordinator(dispatching: Engine, farm_services: ServiceUrls) -> Iterator[Coordinator]:
    assert farm_services.broker_url is not None
    with make_app(farm_services.broker_url) as app:
        yield Coordinator(dispatching, app, Settings(outstanding_batches=1))
        with app.connection_for_write() as connection:
            for kind in (*KINDS, "cpu-test"):
                connection.default_channel.client.delete(queue_of_type(kind))


class Halves:
    """Two campaigns, each for a device type with one device, a batch that is over, and one whose lease has passed."""

    def __init__(self, engine: Engine, announce: Announce, submit: Submit) -> None:
        self.engine = engine
        self.devices = {kind: announce(cpu(n, kind=kind)) for n, kind in enumerate(KINDS)}
        self.campaigns = {
            kind: submit(Campaign.from_document(document(name=kind, targets=[{"type": kind}]))).campaign_id
            for kind in KINDS
        }
        self.over = {kind: leased(engine, self.devices[kind], 3, kind=kind) for kind in KINDS}
        for lease in self.over.values():
            land(engine, lease)
        self.passed = {kind: leased(engine, self.devices[kind], 3, kind=kind) for kind in KINDS}
        for lease in self.passed.values():
            expire(engine, lease)

    def one(self, sql: str, **parameters: object) -> object:
        with self.engine.connect() as connection:
            return connection.execute(text(sql), parameters).scalar_one()

    def row_of(self, table: str, kind: str) -> int:
        if table == "batches":
            return self.passed[kind].batch_id
        if table == "lanes":
            found = self.one("SELECT id FROM lanes WHERE campaign_id = :id", id=self.campaigns[kind])
            assert isinstance(found, int)
            return found
        return (self.devices if table == "devices" else self.campaigns)[kind]

    def settled(self, kind: str) -> bool:
        """Whether a coordinator did all that there was to do for that half."""
        folded = self.one("SELECT folded FROM batches WHERE id = :id", id=self.over[kind].batch_id)
        taken = self.one("SELECT state FROM batches WHERE id = :id", id=self.passed[kind].batch_id)
        formed = self.one(
            "SELECT count(*) FROM batches b JOIN lanes l ON l.id = b.lane_id "
            "WHERE l.campaign_id = :id AND b.state = 'queued'",
            id=self.campaigns[kind],
        )
        return (folded, taken, formed) == (True, "released", 1)


@pytest.fixture
def halves(engine: Engine, announce: Announce, submit: Submit) -> Halves:
    return Halves(engine, announce, submit)


@pytest.mark.parametrize("table", ["lanes", "campaigns", "devices", "batches"])
def test_a_row_that_a_foreign_session_holds_stops_no_other_campaign(
    engine: Engine, halves: Halves, coordinator: Coordinator, table: str
) -> None:
    held, free = KINDS
    with foreign(engine, f"SELECT 1 FROM {table} WHERE id = {halves.row_of(table, held)} FOR UPDATE"):
        coordinator.turn()
        assert halves.settled(free)
        assert not halves.settled(held)
        assert coordinator.watch.failing() == {}  # nothing waited until its time was over
    coordinator.turn()
    assert halves.settled(held)


def test_a_job_that_a_foreign_session_holds_stops_no_other_batch(
    engine: Engine, halves: Halves, coordinator: Coordinator
) -> None:
    held, free = KINDS
    ids = ", ".join(str(job.id) for job in halves.passed[held].jobs)
    with foreign(engine, f"SELECT 1 FROM jobs WHERE id IN ({ids}) FOR UPDATE"):
        coordinator.turn()
        assert halves.settled(free)
        assert halves.one("SELECT state FROM batches WHERE id = :id", id=halves.passed[held].batch_id) == "leased"
    coordinator.turn()
    assert halves.settled(held)


def test_a_batch_that_a_foreign_session_holds_is_not_sent_in_every_turn(
    engine: Engine, device: int, small: Stored
) -> None:
    batch_id = form(engine, 3)
    with foreign(engine, f"SELECT 1 FROM batches WHERE id = {batch_id} FOR UPDATE"), engine.connect() as connection:
        assert batches.unsent(connection, resend_after=60) == []
    with engine.connect() as connection:
        assert [found for found, _ in batches.unsent(connection, resend_after=60)] == [batch_id]


@pytest.mark.parametrize("table", ["hosts", "devices"])
def test_heartbeats_wait_for_nobody(engine: Engine, database_url: str, device: int, table: str) -> None:
    working = make_engine(database_url, application="farm worker", session=MEASURING)
    with foreign(engine, f"SELECT 1 FROM {table} FOR UPDATE"), working.begin() as connection:
        assert devices.heartbeat(connection, device) is DeviceState.ACTIVE
    working.dispose()


# --- submitting --------------------------------------------------------------------------------------


class Stopped:
    """A submission of one more target of a campaign, which stops in the middle of its COPY until it is let go."""

    def __init__(self, engine: Engine, campaign: Campaign) -> None:
        self._engine, self._campaign = engine, campaign
        self.copying, self._on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._submit)
        self._thread.start()

    def _submit(self) -> None:
        with self._engine.begin() as connection:
            made = plan(self._campaign, campaigns.known_devices(connection), allow_missing=False).jobs()

            def slowly() -> Iterator[object]:
                for n, job in enumerate(made):
                    if n == 5:
                        self.copying.set()
                        assert self._on.wait(120)
                    yield job

            campaigns.store(connection, self._campaign, slowly())  # type: ignore[arg-type]

    def go_on(self) -> None:
        self._on.set()
        self._thread.join(120)


def test_a_submission_that_stands_still_while_it_sends_its_jobs_holds_nothing(
    engine: Engine, announce: Announce, submit: Submit, coordinator: Coordinator
) -> None:
    announce(cpu(1, kind="cpu-held"))
    campaign = Campaign.from_document(document(targets=[{"each": "cpu-held"}]))
    stored = submit(campaign)
    announce(cpu(2, kind="cpu-held"))
    stopped = Stopped(engine, campaign)
    try:
        assert stopped.copying.wait(120)
        coordinator.turn()
        assert counts(engine, stored.campaign_id)["queued"] > 0
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            assert batches.pause(connection, stored.campaign_id)
            assert batches.resume(connection, stored.campaign_id)
            assert locks.holders(connection, longer_than=0) == []
    finally:
        stopped.go_on()
    assert sum(counts(engine, stored.campaign_id).values()) == 24


def test_the_server_ends_a_submission_that_stands_still_while_it_holds_locks(
    engine: Engine, database_url: str, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "HOLDING_SECONDS", 0.3)
    person = make_engine(database_url, application="farm", session=DURABLE)
    campaign = Campaign.from_document(document())

    def stands_still() -> None:
        with person.begin() as connection:
            planned = plan(campaign, campaigns.known_devices(connection), allow_missing=False).jobs()
            campaigns.store(connection, campaign, planned)
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            eventually(lambda: not lives(engine, pid))

    with pytest.raises(DBAPIError):
        stands_still()
    person.dispose()


def lives(engine: Engine, pid: int) -> bool:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid})
        return bool(found.scalar_one())


# --- landing -----------------------------------------------------------------------------------------


def test_a_landing_that_is_cut_off_in_the_middle_of_its_rows_holds_no_row(
    engine: Engine, announce: Announce, submit: Submit, cable: Cable, coordinator: Coordinator, database_url: str
) -> None:
    first, second = announce(cpu(1)), announce(cpu(2))
    stored = submit(Campaign.from_document(document()))
    lost, healthy = leased(engine, first, 3), leased(engine, second, 3)
    far = make_engine(through(cable, database_url), application="cut off", session=MEASURING, pre_ping=False)

    @event.listens_for(far, "before_cursor_execute")
    def cut(_: object, __: object, statement: str, *___: object) -> None:
        if "worker_land(" in statement:
            cable.cut_after(100_000)  # of 300,000

    outcome: list[BaseException] = []

    def land_it() -> None:
        try:
            with far.begin() as connection:
                results = [(job, row(details={"text": "x" * 100_000})) for job in lost.jobs]
                batches.land(connection, lost, results, {})
        except (DBAPIError, LeaseLost) as error:
            outcome.append(error)

    landing = threading.Thread(target=land_it)
    landing.start()
    try:
        eventually(lambda: cable.is_cut)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            connection.execute(
                text("UPDATE batches SET lease_expires_at = clock_timestamp() WHERE id = :id"), {"id": lost.batch_id}
            )
        coordinator.turn()
        assert counts(engine, stored.campaign_id)["running"] == 3
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            batches.land(connection, healthy, [(job, row()) for job in healthy.jobs], {})
        assert rows(engine) == 3
    finally:
        cable.mend()
        landing.join(120)
        far.dispose()
    assert len(outcome) == 1
    assert rows(engine) == 3


def test_a_landing_whose_lease_has_passed_leaves_nothing(engine: Engine, device: int, small: Stored) -> None:
    lease: Lease = leased(engine, device, 3)
    expire(engine, lease)
    with pytest.raises(LeaseLost):
        land(engine, lease)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM environments")).scalar_one() == 0
    assert counts(engine, small.campaign_id)["running"] == 3


def hasty_worker(database_url: str) -> Engine:
    """An engine as workers have it, which waits for a lock for a moment."""
    session = {**MEASURING, "lock_timeout": "50ms"}
    return make_engine(database_url, application="farm worker", session=session, pre_ping=False)


def test_a_device_gives_up_a_batch_whose_campaign_a_foreign_session_locks_and_measures_another(
    engine: Engine, database_url: str, device: int, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "HELD_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    made = [submit(Campaign.from_document(document(name=name, measure={"job_seconds": 3600}))) for name in "ab"]
    queued = [form(engine), form(engine)]
    with engine.connect() as connection:
        statement = text("SELECT l.campaign_id FROM batches b JOIN lanes l ON l.id = b.lane_id WHERE b.id = :id")
        held, free = (connection.execute(statement, {"id": id_}).scalar_one() for id_ in queued)
    assert {held, free} == {one.campaign_id for one in made}
    working = hasty_worker(database_url)
    measuring = Runner(
        working, Scripted(lambda n, _: row(1.0 + n)), device, lease_seconds=60, stopping=threading.Event()
    )
    ended: list[DBAPIError] = []

    def run() -> None:
        try:
            measuring.run_batch(queued[0] or 0)
        except DBAPIError as error:
            ended.append(error)

    device_thread = threading.Thread(target=run)
    with foreign(engine, f"SELECT 1 FROM campaigns WHERE id = {held} FOR UPDATE"):
        device_thread.start()
        eventually(lambda: ended)  # the patience for a database that is away is an hour
        assert fault_of(ended[0]) is Fault.HELD
        assert measuring.run_batch(queued[1] or 0) == 12
    device_thread.join(120)
    with engine.begin() as connection:
        assert batches.reap(connection) == [queued[0]]
    assert counts(engine, held) == {"pending": 12}
    assert counts(engine, free) == {"done": 12}
    with engine.connect() as connection:
        blamed = text("SELECT (SELECT sum(attempts) FROM jobs) + (SELECT count(*) FROM failures)")
        assert connection.execute(blamed).scalar_one() == 0
    working.dispose()


def test_rows_of_a_batch_that_a_foreign_session_locks_land_when_the_lock_is_gone(
    engine: Engine, database_url: str, device: int, small: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device may have no second lease, so giving the batch up would win nothing."""
    monkeypatch.setattr(runner, "HELD_PATIENCE_SECONDS", 0.0)
    refused: list[DBAPIError] = []
    abandon = batches.abandon

    def noted(*arguments: Any, **more: Any) -> bool:
        try:
            return abandon(*arguments, **more)
        except DBAPIError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(batches, "abandon", noted)
    batch_id = form(engine)
    assert batch_id is not None
    working = hasty_worker(database_url)
    with ExitStack() as held:

        def script(n: int, _: Configuration) -> Measurement:
            if n == 11:
                held.enter_context(foreign(engine, f"SELECT 1 FROM batches WHERE id = {batch_id} FOR UPDATE"))
            return row(1.0 + n)

        measuring = Runner(working, Scripted(script), device, lease_seconds=600, stopping=threading.Event())
        landing = threading.Thread(target=measuring.run_batch, args=(batch_id,))
        landing.start()
        eventually(lambda: len(refused) > 1)
    landing.join(120)
    assert counts(engine, small.campaign_id) == {"done": 12}
    working.dispose()


HELD, FULL = LockNotAvailable, DiskFull


@pytest.mark.parametrize(
    ("errors", "given_up"),
    [((HELD, HELD, HELD), True), ((FULL, FULL, FULL), False), ((HELD, HELD, FULL, HELD, HELD), False)],
    ids=["held", "full", "held with a break"],
)
def test_only_a_lock_that_is_held_without_a_break_ends_the_patience_of_a_worker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, errors: tuple[type[psycopg.Error], ...], given_up: bool
) -> None:
    measuring = Runner(engine, Scripted(lambda n, _: row()), 1, lease_seconds=60, stopping=threading.Event())
    clock, left = [0.0], list(errors)

    def sleep(_: float) -> None:
        clock[0] += 0.6 * runner.HELD_PATIENCE_SECONDS

    def action() -> str:
        if left:
            raise DBAPIError("SELECT 1", {}, left.pop(0)())
        return "done"

    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    with pytest.raises(DBAPIError) if given_up else nullcontext():
        assert measuring._patiently(action, 1000.0, batch_id=1) == "done"
    assert left == []


# --- saying why --------------------------------------------------------------------------------------


def test_a_session_that_holds_a_lane_is_named_with_how_to_end_it_and_what_waits_for_it(
    engine: Engine, device: int, small: Stored
) -> None:
    with engine.connect() as connection:
        lane = connection.execute(text("SELECT id FROM lanes")).scalar_one()
    with foreign(engine, "UPDATE campaigns SET priority = priority") as pid, engine.connect() as connection:
        with foreign(engine, "SELECT 1 FROM campaigns FOR KEY SHARE"):  # so that two transactions hold the row
            (holder,) = [one for one in locks.holders(connection, longer_than=0) if one.pid == pid]
            assert (holder.program, holder.idle, holder.tables, holder.groups) == (
                "psql",
                True,
                ("campaigns",),
                (lane,),
            )
            assert connection.execute(text(holder.how_to_end)).scalar_one() is True
        eventually(lambda: not lives(engine, pid))


def test_reading_and_copying_into_a_table_of_ones_own_is_holding_nothing(engine: Engine, small: Stored) -> None:
    with (
        foreign(
            engine,
            "CREATE TEMPORARY TABLE mine (a int)",
            "COMMIT",
            "SELECT * FROM campaigns",
            "INSERT INTO mine VALUES (1)",
        ),
        engine.connect() as connection,
    ):
        assert locks.holders(connection, longer_than=0) == []


@pytest.mark.long
def test_status_and_doctor_say_who_holds_what_and_which_jobs_wait(
    engine: Engine, device: int, small: Stored, tmp_path: object, database_url: str
) -> None:
    command = farm_here(tmp_path, database_url)  # type: ignore[arg-type]

    def stuck() -> list[Cause]:
        with engine.connect() as connection:
            ahead = estimates(connection, read_farm_state(connection, Settings()), [small.campaign_id])[
                small.campaign_id
            ]
            return [one.cause for one in ahead.stuck]

    with foreign(engine, "SELECT 1 FROM lanes FOR UPDATE") as pid:
        eventually(lambda: stuck() == [Cause.HELD], 10)
        ends = f"SELECT pg_terminate_backend({pid}) ends it"
        assert ends in command("status").stderr
        assert command("status", "small").stdout.count(ends) == 2  # of the farm, and why jobs are stuck
        assert ends in command("doctor").stdout
    assert Cause.HELD not in stuck()


def test_a_step_that_fails_is_told_with_the_renewal_of_the_term(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "RENEW_SECONDS", 0.05)
    watch = Watch()

    def told() -> list[str]:
        with engine.connect() as connection:
            return [f"{one.step}: {one.error}" for one in leaders.read(connection).failing]

    with leadership(engine, threading.Event(), watch) as lead:
        assert lead is not None
        watch.fails(StepFailure(step="fold", error="lock timeout", since_s=0.0))
        eventually(lambda: told() == ["fold: lock timeout"])
        watch.works_again("fold")
        eventually(lambda: told() == [])
        watch.fails(StepFailure(step="fold", error="lock timeout", since_s=0.0))
        eventually(told)
    assert told() == []  # nobody leads
