"""A worker host that somebody took over: what its login does to its own devices and leases, and cannot do to those of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from farm.builds.stores import DatabaseStore
from farm.db import batches, device_sessions, devices, kernels, migrate, probation
from farm.db.batches import Failure, Lease
from farm.db.device_sessions import DeviceSession, Server
from farm.db.states import DeviceState, FailureKind
from farm.errors import DeviceContended, LeaseLost
from support.samples import cpu, row
from support.worker_hosts import MINE, THEIRS, Hosts, announced, begun, denied, formed, leased, state_of_the_farm, value


def test_a_host_measures_on_its_own_devices_whatever_it_calls_itself(
    engine: Engine, hosts: Hosts, my_device: int, my_lease: Lease
) -> None:
    with hosts[MINE].begin() as connection:
        assert batches.mark(connection, my_lease, my_lease.jobs[0], lease_seconds=60)
        assert batches.renew(connection, my_lease.batch_id, device_id=my_device, lease_seconds=60)
        assert devices.heartbeat(connection, my_device) is DeviceState.ACTIVE
        failures = {my_lease.jobs[2].id: Failure(FailureKind.FAILED, "no reason")}
        batches.land(connection, my_lease, [(job, row()) for job in my_lease.jobs[:2]], failures)
    assert value(engine, "SELECT count(*) FROM measurements") == 2
    assert value(engine, "SELECT count(*) FROM failures") == 1
    assert (
        value(engine, f"SELECT h.name FROM devices d JOIN hosts h ON h.id = d.host_id WHERE d.id = {my_device}") == MINE
    )
    assert value(engine, f"SELECT done FROM batches WHERE id = {my_lease.batch_id}") == 2


def test_a_host_reads_all_that_a_worker_asks_for(
    hosts: Hosts, my_device: int, their_device: int, my_lease: Lease, their_lease: Lease
) -> None:
    with hosts[THEIRS].begin() as connection:
        batches.land(connection, their_lease, [(job, row()) for job in their_lease.jobs], {})
    mine = hosts[MINE]
    migrate.require_for_worker(mine)
    with mine.begin() as connection:
        assert devices.identity(connection, my_device).type == "cpu-test"
        assert devices.of_host(connection, MINE) == [("CPU-1", "cpu")]
        assert [one[0] for one in devices.live(connection, silent_after=60)] == [my_device, their_device]
        device_sessions.check(connection, my_device, 1)
        assert batches.held_by(connection, my_device) == my_lease.batch_id
        assert batches.was_claimed(connection, my_lease.batch_id, device_id=my_device)
        assert not probation.is_on_probation(connection, my_device)
        assert not probation.dies_in_a_row(connection, my_device)
        assert probation.known_good(connection, my_device) in [job.configuration for job in their_lease.jobs]
        assert kernels.find(connection, "of no kernel") is None
    assert DatabaseStore(mine).get("of no kernel") is None


def test_rows_for_a_device_of_another_host_do_not_land_even_with_its_token(
    engine: Engine, hosts: Hosts, their_lease: Lease
) -> None:
    before = state_of_the_farm(engine)
    results = [(job, row(1e-6)) for job in their_lease.jobs]
    denied(hosts[MINE], lambda connection: batches.land(connection, their_lease, results, {}))
    denied(hosts[MINE], lambda connection: batches.mark(connection, their_lease, their_lease.jobs[0], lease_seconds=60))
    assert state_of_the_farm(engine) == before


def test_nothing_of_another_hosts_device_can_be_done(
    engine: Engine, hosts: Hosts, their_device: int, my_device: int, my_lease: Lease, their_lease: Lease
) -> None:
    batch, device = their_lease.batch_id, their_device
    another = formed(engine, 3)
    before = state_of_the_farm(engine)
    attacks: tuple[Callable[[Any], object], ...] = (
        lambda c: batches.claim(c, another, device_id=device, lease_seconds=60),
        lambda c: batches.renew(c, batch, device_id=device, lease_seconds=1e6),
        lambda c: batches.abandon(c, batch, device_id=device, reason="mine"),
        lambda c: batches.release(c, batch, device_id=device, reason="mine", suspect=True),
        lambda c: batches.release_all(c, device_id=device, reason="mine"),
        lambda c: devices.heartbeat(c, device),
        lambda c: devices.leave(c, device),
        lambda c: devices.unfit(c, device, "mine"),
        lambda c: devices.note_claim_error(c, device, "mine"),
        lambda c: probation.begin(c, device, "mine", tried=True),
        lambda c: probation.failed_trial(c, device, "mine"),
        lambda c: probation.passed_trial(c, device),
        lambda c: device_sessions.note_overlap(c, device, 0, began_s_ago=1e6, ended_s_ago=0),
        lambda c: devices.register(c, host=THEIRS, host_facts={}, device=cpu(2, kind="nvidia-h200")),
        lambda c: devices.register(c, host=MINE, host_facts={}, device=cpu(2, kind="nvidia-h200")),
        lambda c: device_sessions.begin(
            c, cpu(2), Server(host=THEIRS, pid=1, lock="mine"), host_facts={}, silent_after=0
        ),
    )
    for attack in attacks:
        denied(hosts[MINE], attack)
    with hosts[MINE].begin() as connection:
        server = Server(host=THEIRS, pid=1, lock="mine")
        with pytest.raises(DeviceContended):
            device_sessions.begin(connection, cpu(2), server, host_facts={}, silent_after=3600)
    with hosts[MINE].begin() as connection:  # the host is that of the login
        assert devices.vanish(connection, host=THEIRS, uuids=["CPU-2"]) == []
        assert devices.of_host(connection, THEIRS) == [("CPU-1", "cpu")]
        # The batch of another device is not this one's.
        assert batches.renew(connection, batch, device_id=my_device, lease_seconds=60) is None
        assert not batches.abandon(connection, batch, device_id=my_device, reason="mine")
        assert not batches.release(connection, batch, device_id=my_device, reason="mine", suspect=True)
    assert state_of_the_farm(engine) == before


@pytest.mark.parametrize("last_seen_at", ["clock_timestamp()", "'-infinity'"])
def test_no_session_of_a_device_of_another_host_begins_nor_is_noted(
    engine: Engine, hosts: Hosts, their_device: int, last_seen_at: str
) -> None:
    """Whatever the host calls itself, with the lock of the device's own worker too, and whether or not that is heard of."""
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE devices SET last_seen_at = {last_seen_at} WHERE id = {their_device}"))
    before = state_of_the_farm(engine)
    waits = (0, 3600, 1e308, float("nan"), float("inf"), float("-inf"))
    for name, lock, silent_after in itertools.product((THEIRS, MINE), ("lock 2", "mine"), waits):
        server = Server(host=name, pid=2, lock=lock)
        with hosts[MINE].connect() as connection:
            with pytest.raises((DeviceContended, ProgrammingError)):
                device_sessions.begin(connection, cpu(2), server, host_facts={"a": 1}, silent_after=silent_after)
            connection.commit()
    assert state_of_the_farm(engine) == before
    assert begun(hosts[THEIRS], 2) == DeviceSession(their_device, 2)


def test_a_session_that_is_refused_does_not_silence_the_device(
    engine: Engine, hosts: Hosts, my_device: int, their_device: int
) -> None:
    """A heartbeat leaves out rows that another transaction has locked."""
    heard = f"SELECT last_seen_at FROM devices WHERE id = {their_device}"
    before = value(engine, heard)
    server = Server(host=MINE, pid=1, lock="mine")
    with hosts[MINE].connect() as attacking:
        with pytest.raises(DeviceContended):
            device_sessions.begin(attacking, cpu(2), server, host_facts={}, silent_after=3600)
        with hosts[THEIRS].begin() as connection:
            devices.heartbeat(connection, their_device)
        assert value(engine, heard) > before


def test_a_device_goes_to_another_host_once_its_own_host_says_that_it_is_gone(
    engine: Engine, hosts: Hosts, my_device: int
) -> None:
    with hosts[MINE].begin() as connection:
        devices.vanish(connection, host=MINE, uuids=["CPU-1"])
    assert announced(hosts[THEIRS], 1) == my_device
    denied(hosts[MINE], lambda connection: devices.heartbeat(connection, my_device))


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("lost", ["device", "login"])
def test_a_transaction_that_sees_the_past_does_not_act_for_what_the_host_had_then(
    engine: Engine, hosts: Hosts, my_device: int, campaign: int, isolation: str, lost: str
) -> None:
    batch_id = formed(engine, 3)
    with hosts[MINE].connect().execution_options(isolation_level=isolation) as attacking:
        attacking.execute(text("SELECT FROM devices"))
        with engine.begin() as connection:
            if lost == "device":
                devices.vanish(connection, host=MINE, uuids=["CPU-1"])
            else:
                connection.execute(text("DELETE FROM worker_logins WHERE host = :host"), {"host": MINE})
        if lost == "device":
            assert announced(hosts[THEIRS], 1) == my_device
        with pytest.raises(ProgrammingError, match="permission denied"):
            batches.claim(attacking, batch_id, device_id=my_device, lease_seconds=60)
    assert value(engine, f"SELECT state FROM batches WHERE id = {batch_id}") == "queued"


def test_a_device_of_a_host_that_has_no_login_is_not_taken_over(engine: Engine, hosts: Hosts) -> None:
    """Such as that of a worker which logs in as `farm_worker`."""
    announced(engine, 3, claims_to_be="a host without a login")
    denied(hosts[MINE], lambda c: devices.register(c, host=MINE, host_facts={}, device=cpu(3, kind="nvidia-h200")))


def test_a_lease_lasts_two_hours_at_most_whatever_the_host_asks_for(
    engine: Engine, hosts: Hosts, my_device: int, campaign: int
) -> None:
    def lasts() -> list[float]:
        columns = ("lease_expires_at", "busy_until")
        seconds = (f"SELECT extract(epoch FROM {one} - clock_timestamp())::float8 FROM batches" for one in columns)
        return [value(engine, one) for one in seconds]

    lease = leased(engine, hosts[MINE], my_device, lease_seconds=1e9)
    assert all(7000 < one <= 7200 for one in lasts())
    with hosts[MINE].begin() as connection:
        assert batches.mark(connection, lease, lease.jobs[0], lease_seconds=1e9, busy_seconds=float("nan"))
    assert all(7000 < one <= 7200 for one in lasts())
    with hosts[MINE].begin() as connection:
        assert batches.renew(connection, lease.batch_id, device_id=my_device, lease_seconds=1e9)
    assert all(7000 < one <= 7200 for one in lasts())


def test_a_lost_lease_lands_nothing(engine: Engine, hosts: Hosts, my_lease: Lease, my_device: int) -> None:
    with engine.begin() as connection:
        batches.release(connection, my_lease.batch_id, device_id=my_device, reason="it was taken", suspect=False)
    with pytest.raises(LeaseLost), hosts[MINE].begin() as connection:
        batches.land(connection, my_lease, [(job, row()) for job in my_lease.jobs], {})
