"""One coordinator leads: terms, fenced transactions, and who takes over from a leader that is frozen, cut off or stopped."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from farm.broker.celery_app import make_app
from farm.campaign import Campaign
from farm.coordinator import leading
from farm.coordinator.dispatch import form_batches, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.coordinator.leading import Lead, leadership
from farm.coordinator.loop import Coordinator
from farm.coordinator.metrics import Watch
from farm.db import leadership as rows
from farm.db.campaigns import Stored
from farm.db.engine import DISPATCHING, LEADING, make_engine
from farm.devices import DeviceIdentity
from farm.errors import NotLeading
from farm.services import ServiceUrls
from farm.settings import Settings
from support.batch_steps import counts
from support.cables import Cable, through
from support.homes import eventually
from support.programs import COORDINATOR, Program, Start, programs
from support.samples import cpu, document

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]

LONG_TERMS = (
    sys.executable,
    "-c",
    "import runpy; from farm.coordinator import leading; leading.TERM_SECONDS = 3600.0;"
    "runpy.run_module('farm.coordinator', run_name='__main__')",
)
"""A coordinator whose terms last an hour."""

TAKEOVER_SECONDS = 15.0
"""What docs/operating.md promises."""


def leader(engine: Engine) -> rows.Leader:
    with engine.connect() as connection:
        return rows.read(connection)


def expire(engine: Engine) -> None:
    """As if the leader had stood still for longer than a term."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE leadership SET expires_at = clock_timestamp()"))


@contextmanager
def leads(engine: Engine) -> Iterator[Lead]:
    with leadership(engine, threading.Event()) as lead:
        assert lead is not None
        yield lead


# --- terms -------------------------------------------------------------------------------------------


def test_one_coordinator_leads_and_the_other_takes_over_with_the_next_term(engine: Engine) -> None:
    over, terms = threading.Event(), list[int]()

    def second() -> None:
        with leads(engine) as lead:
            terms.append(lead.term.number)
            over.wait(120)

    with leads(engine) as first:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(3 * leading.CHECK_SECONDS)
        assert terms == []
        now = leader(engine)
        assert (now.leads, now.host, now.term) == (True, socket.gethostname(), first.term.number)
    eventually(lambda: terms)
    over.set()
    thread.join(120)
    assert terms == [first.term.number + 1]
    assert not leader(engine).leads


def test_a_leader_that_works_keeps_its_term(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "RENEW_SECONDS", 0.05)
    with leads(engine) as lead:
        before = leader(engine)
        eventually(lambda: leader(engine).expires_at > before.expires_at)
        lead.check()
        assert leader(engine).term == before.term


def test_a_coordinator_that_waits_can_be_stopped(engine: Engine) -> None:
    stop = threading.Event()
    with leads(engine):
        threading.Timer(0.2, stop.set).start()
        with leadership(engine, stop) as second:
            assert second is None


def test_a_leader_whose_connections_are_ended_makes_new_ones_and_leads_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "RENEW_SECONDS", 0.1)
    with leads(engine) as lead:
        with engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'farm coordinator term'"
                )
            )
        before = leader(engine)
        eventually(lambda: leader(engine).expires_at > before.expires_at)
        lead.check()


def test_a_term_of_before_the_database_clock_stepped_back_is_taken_and_fenced_out(
    engine: Engine, small: Stored
) -> None:
    with engine.begin() as connection:
        old = rows.take(connection, host="a", pid=1, seconds=600)
        assert old is not None
        assert rows.take(connection, host="b", pid=2, seconds=600) is None
    with engine.begin() as connection:  # what a step by an hour leaves of a term
        connection.execute(text("UPDATE leadership SET expires_at = expires_at + interval '1 hour'"))
    with engine.begin() as connection:
        new = rows.take(connection, host="b", pid=2, seconds=600)
    assert new is not None
    assert new.number == old.number + 1
    with engine.connect() as connection:
        assert not rows.renew(connection, old, seconds=600)
        connection.execute(text("UPDATE campaigns SET priority = 7"))
        assert not rows.may_commit(connection, old)
        assert rows.may_commit(connection, new)
    now = leader(engine)
    assert (now.leads, now.host, now.term) == (True, "b", new.number)


# --- the fence ---------------------------------------------------------------------------------------


def test_a_leader_whose_term_was_taken_writes_nothing(
    engine: Engine, announce: Announce, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "RENEW_SECONDS", 3600.0)  # it does not ask
    announce(cpu(kind="cpu-fence"))
    stored = submit(Campaign.from_document(document()))
    settings = Settings(outstanding_batches=1)
    watch = Watch()
    with leadership(engine, threading.Event(), watch) as old, make_app("redis://127.0.0.1:1/0") as nowhere:
        assert old is not None
        assert watch.leading
        schedule = read_schedule(old.engine, settings)
        expire(engine)
        with leads(engine) as new:
            with pytest.raises(NotLeading, match=f"Term {old.term.number} "):
                form_batches(old.engine, schedule, CostBook(), settings)
            assert counts(engine, stored.campaign_id) == {"pending": 12}
            assert not watch.leading
            with pytest.raises(NotLeading):  # now it knows, and does not even begin
                Coordinator(old.engine, nowhere, settings).turn()
            assert Coordinator(new.engine, nowhere, settings).turn() == 1
    assert counts(engine, stored.campaign_id) == {"pending": 11, "queued": 1}


def test_a_term_that_expired_and_that_nobody_took_is_over_as_well(
    engine: Engine, small: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "RENEW_SECONDS", 3600.0)
    with leads(engine) as lead:
        expire(engine)
        with pytest.raises(NotLeading), lead.engine.begin() as connection:
            connection.execute(text("UPDATE campaigns SET priority = 7"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT priority FROM campaigns")).scalars().all() == [0]
    assert small


@contextmanager
def committing(engine: Engine) -> Iterator[rows.Term]:
    """Inside the block, the leader of that term has written something, and may commit it."""
    with engine.begin() as connection:
        term = rows.take(connection, host="a", pid=1, seconds=3600)
    assert term is not None
    with engine.begin() as writing:
        writing.execute(text("INSERT INTO hosts (name) VALUES ('written')"))
        assert rows.may_commit(writing, term)
        yield term


def test_a_new_term_waits_for_what_the_last_one_is_committing(engine: Engine) -> None:
    """Between the check of its term and the end of its commit, a leader cannot be overtaken."""
    with committing(engine):
        expire(engine)
        with engine.begin() as connection:
            assert rows.take(connection, host="b", pid=2, seconds=3600) is None
    with engine.begin() as connection:
        assert rows.take(connection, host="b", pid=2, seconds=3600) is not None


def test_renewing_does_not_wait_for_a_long_transaction_of_the_leader(engine: Engine) -> None:
    with committing(engine) as term, engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert rows.renew(connection, term, seconds=3600)


def test_a_transaction_that_only_reads_leaves_nothing_to_write(engine: Engine) -> None:
    with leads(engine) as lead, lead.engine.begin() as connection:
        connection.execute(text("SELECT count(*) FROM jobs"))
        assert rows.may_commit(connection, lead.term)
        assert connection.execute(text("SELECT pg_current_xact_id_if_assigned()")).scalar_one() is None


# --- leaders that stand still ------------------------------------------------------------------------


@pytest.fixture
def start(database_url: str, farm_services: ServiceUrls, tmp_path: Path) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    with programs(tmp_path, **urls) as started:
        yield started


@contextmanager
def kept(engine: Engine) -> Iterator[None]:
    """Inside the block the term goes on, as if its leader renewed it."""
    over = threading.Event()

    def keep() -> None:
        renewed = text("UPDATE leadership SET expires_at = clock_timestamp() + make_interval(secs => :seconds)")
        while True:
            with engine.begin() as connection:
                connection.execute(renewed, {"seconds": leading.TERM_SECONDS})
            if over.wait(0.5):
                return

    keeping = threading.Thread(target=keep)
    keeping.start()
    try:
        yield
    finally:
        over.set()
        keeping.join(120)


def pid_that_leads(engine: Engine) -> int | None:
    found = leader(engine)
    return found.pid if found.leads else None


def started_to_lead(start: Start, engine: Engine, **variables: str) -> Program:
    program = start(COORDINATOR, name="first", **variables)
    eventually(lambda: pid_that_leads(engine) == program.pid)
    return program


def started_to_wait(start: Start, command: Sequence[str] = COORDINATOR) -> Program:
    program = start(command, name="second")
    eventually(lambda: "waiting to take over" in program.log())
    return program


def takes_over(program: Program, engine: Engine) -> float:
    """Waits until it leads; how long that took, in seconds."""
    began = time.monotonic()
    eventually(lambda: pid_that_leads(engine) == program.pid)
    return time.monotonic() - began


def formed(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM batches")).scalar_one())


@pytest.mark.long
def test_a_frozen_leader_is_replaced_and_when_it_wakes_up_it_writes_nothing_and_waits(
    engine: Engine, start: Start, announce: Announce, submit: Submit
) -> None:
    first = started_to_lead(start, engine)
    second = started_to_wait(start)
    first.signal(signal.SIGSTOP)
    try:
        assert takes_over(second, engine) < TAKEOVER_SECONDS
        term = leader(engine).term
        second.signal(signal.SIGSTOP)  # so that whatever is formed now would be the first one's
        announce(cpu())
        submit(Campaign.from_document(document()))
        with kept(engine):
            first.signal(signal.SIGCONT)
            eventually(lambda: "waiting to take over" in first.log())
            assert "is over" in first.log()
            assert (formed(engine), leader(engine).term) == (0, term)
    finally:
        first.signal(signal.SIGCONT)
        second.signal(signal.SIGCONT)
    assert second.stop() == 0
    expire(engine)
    eventually(lambda: pid_that_leads(engine) == first.pid)
    assert first.stop() == 0


@pytest.mark.long
def test_a_leader_that_is_cut_off_steps_down_and_is_replaced(
    engine: Engine, start: Start, cable: Cable, database_url: str
) -> None:
    first = started_to_lead(start, engine, FARM_DATABASE_URL=through(cable, database_url))
    second = started_to_wait(start)
    cable.cut()
    assert takes_over(second, engine) < TAKEOVER_SECONDS
    eventually(lambda: "is over" in first.log())
    cable.mend()
    eventually(lambda: "waiting to take over" in first.log())
    assert pid_that_leads(engine) == second.pid
    assert first.stop() == 0
    assert second.stop() == 0


def test_a_leader_that_ends_in_good_order_is_followed_at_once(
    engine: Engine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "TERM_SECONDS", 3600.0)
    with leads(engine):
        second = started_to_wait(start, LONG_TERMS)
    takes_over(second, engine)
    assert second.stop() == 0
    assert not leader(engine).leads


def test_a_turn_that_waits_for_an_answer_that_never_comes_is_given_up(
    cable: Cable, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy confirms every byte: to TCP the link is whole."""
    monkeypatch.setattr(leading, "TERM_SECONDS", 2.0)
    monkeypatch.setattr(leading, "RENEW_SECONDS", 0.2)
    far = make_engine(through(cable, database_url), application="test", pre_ping=False)
    with ExitStack() as held:
        held.callback(far.dispose)
        lead = held.enter_context(leads(far))
        connection = held.enter_context(lead.engine.connect())
        connection.execute(text("SELECT 1"))
        cable.cut()
        mending = threading.Timer(100.0, cable.mend)  # so that a test that fails ends all the same
        mending.start()
        held.callback(mending.cancel)
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 2"))
        with pytest.raises(NotLeading):
            lead.check()
    eventually(lambda: not leader(engine).leads)  # this process gave up before its term was over


@pytest.mark.parametrize("session", [LEADING, DISPATCHING])
def test_the_server_ends_statements_of_coordinators_that_are_cut_off(
    database_url: str, session: dict[str, str]
) -> None:
    made = make_engine(database_url, application="test", session=session)
    with made.connect() as connection:
        for name in ("client_connection_check_interval", "idle_in_transaction_session_timeout", "statement_timeout"):
            assert connection.execute(text(f"SHOW {name}")).scalar_one() == session[name]
    made.dispose()
