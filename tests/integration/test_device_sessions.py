"""One `farm-worker` for each device: the second is refused, one that is taken over is fenced, and its rows are told."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.compare import row_query
from farm.db import batches, device_sessions, devices
from farm.db.batches import Lease
from farm.db.campaigns import Stored
from farm.db.device_sessions import DeviceSession, Server
from farm.errors import DeviceContended, LeaseLost, SessionLost
from farm.services import ServiceUrls
from support.batch_steps import form, land
from support.commands import farm_here
from support.homes import eventually
from support.programs import COORDINATOR, FARM_WORKER, Start, programs
from support.samples import cpu, document, row

Submit = Callable[[Campaign], Stored]

FIRST = Server(host="here", pid=11, lock="boot:1:1")
SECOND = Server(host="there", pid=22, lock="boot:1:2")


def begin(engine: Engine, server: Server, silent_after: float = 20) -> DeviceSession:
    with engine.begin() as connection:
        return device_sessions.begin(connection, cpu(), server, host_facts={}, silent_after=silent_after)


def refused(engine: Engine, server: Server) -> str:
    """Why the server may not serve the device. What is noted of it is committed."""
    with engine.begin() as connection, pytest.raises(DeviceContended) as error:
        device_sessions.begin(connection, cpu(), server, host_facts={}, silent_after=20)
    return str(error.value)


def age(engine: Engine, seconds: float) -> None:
    """The device was heard of, and its session began, so long ago."""
    with engine.begin() as connection:
        shift = "make_interval(secs => :s)"
        connection.execute(
            text(
                f"UPDATE devices SET last_seen_at = last_seen_at - {shift}, session_began_at = session_began_at - {shift}"
            ),
            {"s": seconds},
        )


def claim(engine: Engine, session: DeviceSession, batch_id: int) -> Lease | None:
    with engine.begin() as connection:
        return batches.claim(connection, batch_id, device_id=session.device_id, lease_seconds=60, session=session.epoch)


def beat(engine: Engine, session: DeviceSession) -> None:
    with engine.begin() as connection:
        devices.heartbeat(connection, session.device_id, session=session.epoch)


# --- beginning ---------------------------------------------------------------------------------------


def test_a_second_worker_is_refused_while_the_first_is_heard_of_and_both_are_named(engine: Engine) -> None:
    first = begin(engine, FIRST)
    why = refused(engine, SECOND)
    assert "process 11 on here sent a heartbeat" in why
    assert "Stop one of the two" in why
    beat(engine, first)
    with engine.connect() as connection:
        (one,) = device_sessions.contended(connection)
        host = connection.execute(text("SELECT h.name FROM devices d JOIN hosts h ON h.id = d.host_id")).scalar_one()
    assert (one.session_host, one.session_pid, one.contended_by) == ("here", 11, "process 22 on there")
    assert "process 22 on there wanted to serve it" in one.text
    assert host == "here"


def test_one_that_fell_silent_or_left_or_whose_lock_was_taken_is_taken_over(engine: Engine) -> None:
    first = begin(engine, FIRST)
    refused(engine, SECOND)
    age(engine, 21)
    second = begin(engine, SECOND)
    with engine.begin() as connection:
        devices.leave(connection, second.device_id, session=second.epoch)
    third = begin(engine, FIRST)
    again = begin(engine, Server(host="here", pid=12, lock=FIRST.lock))  # who holds its lock knows that it is gone
    assert [first.epoch, second.epoch, third.epoch, again.epoch] == [1, 2, 3, 4]
    with engine.connect() as connection:
        assert device_sessions.contended(connection) == []


def test_a_worker_that_began_no_session_is_no_obstacle(engine: Engine) -> None:
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
    assert begin(engine, FIRST).epoch == 1


def test_devices_status_and_doctor_say_who_was_refused(engine: Engine, tmp_path: Path, database_url: str) -> None:
    begin(engine, FIRST)
    refused(engine, SECOND)
    command = farm_here(tmp_path, database_url)
    for words in (("devices",), ("status",)):
        told = " ".join(command(*words).stderr.split())
        assert "contended: CPU-1: process 22 on there wanted to serve it" in told
        assert "process 11 on here does; stop one of the two" in told
    check = next(one for one in json.loads(command("doctor", "--json").stdout) if one["check"] == "sessions")
    assert check["state"] == "warning"
    assert "process 22 on there" in check["what"]


# --- fencing -----------------------------------------------------------------------------------------


def test_who_was_taken_over_claims_nothing_and_says_nothing_for_the_device(engine: Engine, submit: Submit) -> None:
    first = begin(engine, FIRST)
    submit(Campaign.from_document(document()))
    batch_id = form(engine, 4)
    assert batch_id is not None
    age(engine, 21)
    second = begin(engine, SECOND)
    age(engine, 7)
    with pytest.raises(SessionLost, match="process 22 on there serves it now"):
        claim(engine, first, batch_id)
    with pytest.raises(SessionLost):
        beat(engine, first)
    with engine.begin() as connection:
        devices.leave(connection, first.device_id, session=first.epoch)
        silent_s = connection.execute(
            text("SELECT extract(epoch FROM clock_timestamp() - last_seen_at) FROM devices")
        ).scalar_one()
    assert 7 <= silent_s < 600, "neither its heartbeat nor its farewell counts"
    assert claim(engine, second, batch_id) is not None
    assert claim(engine, second, batch_id) is None


# --- rows that two measured at the same time ---------------------------------------------------------


@pytest.fixture
def taken_over(engine: Engine, submit: Submit) -> tuple[DeviceSession, DeviceSession]:
    """A session that fell silent, and its successor, which measures."""
    first = begin(engine, FIRST)
    submit(Campaign.from_document(document()))
    age(engine, 21)
    return first, begin(engine, SECOND)


def next_lease(engine: Engine, session: DeviceSession, size: int) -> Lease:
    batch_id = form(engine, size)
    assert batch_id is not None
    lease = claim(engine, session, batch_id)
    assert lease is not None
    return lease


def note(engine: Engine, session: DeviceSession, began_s_ago: float, ended_s_ago: float) -> bool:
    with engine.begin() as connection:
        return device_sessions.note_overlap(
            connection, session.device_id, session.epoch, began_s_ago=began_s_ago, ended_s_ago=ended_s_ago
        )


def rows(engine: Engine) -> dict[str, int]:
    """How many rows the views and a comparison have, and whether there is a best kernel."""
    with engine.connect() as connection:
        found = {
            view: int(connection.execute(text(f"SELECT count(*) FROM {view}")).scalar_one())
            for view in ("v_measurements", "v_all_measurements")
        }
        found["best"] = int(connection.execute(text("SELECT count(*) > 0 FROM v_best_kernels")).scalar_one())
        asked = row_query.RowFilter(excluded=row_query.excluded_rows(connection))
        kinds = row_query.kinds(connection, row_query.devices(connection), row_query.environments(connection), asked)
    found["kinds"] = sum(kind.rows for kind in kinds)
    found["compared"] = len(row_query.rows(engine, kinds, asked).runtime_ms) if kinds else 0
    return found


def results(number: int, of: int) -> dict[str, int]:
    few = dict.fromkeys(("v_measurements", "kinds", "compared"), number)
    return {**few, "best": int(number > 0), "v_all_measurements": of}


def test_rows_beside_a_session_that_was_lost_are_no_results_and_others_are(
    engine: Engine, taken_over: tuple[DeviceSession, DeviceSession]
) -> None:
    first, second = taken_over
    land(engine, next_lease(engine, second, 3))
    in_hand = next_lease(engine, second, 3)
    assert rows(engine) == results(3, of=3)
    assert note(engine, first, began_s_ago=1000, ended_s_ago=0)  # it was at it all the time
    land(engine, in_hand)
    assert rows(engine) == results(0, of=6)
    eventually(lambda: number(engine, "SELECT count(*) FROM device_overlaps WHERE rows_until < clock_timestamp()"))
    land(engine, next_lease(engine, second, 3))
    assert rows(engine) == results(3, of=9)


def test_what_is_overlapped_is_counted_and_said(
    engine: Engine, taken_over: tuple[DeviceSession, DeviceSession]
) -> None:
    first, second = taken_over
    land(engine, next_lease(engine, second, 3))
    assert note(engine, first, began_s_ago=1000, ended_s_ago=0)
    with engine.connect() as connection:
        (one,) = device_sessions.contended(connection)
    assert (one.overlaps, one.overlapped_rows) == (1, 3)
    assert one.text.endswith("3 rows were measured while another worker used the device, and are left out of results")


def test_one_that_stood_still_or_did_nothing_beside_its_successor_spoils_no_row(
    engine: Engine, taken_over: tuple[DeviceSession, DeviceSession]
) -> None:
    first, second = taken_over
    land(engine, next_lease(engine, second, 3))
    age(engine, 60)
    assert not note(engine, first, began_s_ago=1000, ended_s_ago=100), "it ended before its successor began"
    assert not note(engine, second, began_s_ago=1000, ended_s_ago=0), "it is the present one"
    assert rows(engine) == results(3, of=3)


def test_what_the_first_one_measured_is_not_landed(engine: Engine, submit: Submit) -> None:
    first = begin(engine, FIRST)
    submit(Campaign.from_document(document()))
    lease = next_lease(engine, first, 3)
    age(engine, 21)
    second = begin(engine, SECOND)
    with engine.begin() as connection:  # as its worker does when it starts
        batches.release_all(connection, device_id=second.device_id, reason="its worker ended and was started again")
    with pytest.raises(LeaseLost), engine.begin() as connection:
        batches.land(connection, lease, [(job, row()) for job in lease.jobs], {})


# --- real processes ----------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path, database_url: str, farm_services: ServiceUrls) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    # On a busy machine a heartbeat of a live worker may be many seconds late.
    quick = {"FARM_HEARTBEAT_SECONDS": "0.5", "FARM_SILENT_AFTER_SECONDS": "40", "FARM_LEASE_SECONDS": "40"}
    with programs(tmp_path, **urls, **quick) as starting:
        yield starting


def number(engine: Engine, statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one() or 0)


def epoch(engine: Engine) -> int:
    return number(engine, "SELECT max(session_epoch) FROM devices WHERE last_seen_at > first_seen_at")


@pytest.mark.long
def test_a_second_worker_of_a_host_ends_and_says_who_serves_the_device(engine: Engine, start: Start) -> None:
    first = start(FARM_WORKER, "--devices", "cpu", name="first")
    eventually(lambda: epoch(engine) == 1)
    second = start(FARM_WORKER, "--devices", "cpu", name="second")
    assert second.wait() == 3
    assert f"is in use: process {first.pid} of this host" in second.log()
    assert "Traceback" not in second.log()
    assert epoch(engine) == 1
    first.kill()
    third = start(FARM_WORKER, "--devices", "cpu", name="third")
    eventually(lambda: epoch(engine) == 2)  # at once: it holds the lock of the first
    assert third.stop() == 0


@pytest.mark.long
def test_a_worker_of_another_container_waits_takes_over_and_the_first_ends_when_it_wakes_up(
    engine: Engine, submit: Submit, start: Start, tmp_path: Path
) -> None:
    start(COORDINATOR)
    first = start(FARM_WORKER, "--devices", "cpu", name="first")
    eventually(lambda: epoch(engine) == 1)
    second = start(FARM_WORKER, "--devices", "cpu", name="second", FARM_DEVICE_LOCKS=str(tmp_path / "elsewhere"))
    eventually(lambda: number(engine, "SELECT count(contended_at) FROM devices"))
    eventually(lambda: f"process {first.pid} on " in second.log())
    assert second.is_alive()
    tree = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
    for process in tree:
        process.send_signal(signal.SIGSTOP)
    eventually(lambda: epoch(engine) == 2)
    for process in reversed(tree):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    eventually(lambda: "Session 1 of device" in first.log() and "This worker ends" in first.log())
    assert first.is_alive(), "it waits for the device"
    kind = number(engine, "SELECT count(DISTINCT type) FROM devices")
    assert kind == 1
    submit(Campaign.from_document(document()))
    eventually(lambda: number(engine, "SELECT count(*) FROM campaigns WHERE state = 'done'"))
    assert epoch(engine) == 2
    second.stop()
    eventually(lambda: epoch(engine) == 3)  # now the first has it again
