"""A worker host that somebody took over: what its login cannot do to other hosts' devices, leases and results."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from psycopg import errors, sql
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from farm.broker.queues import queue_of_type
from farm.builds.stores import DatabaseStore
from farm.campaign import Campaign, plan
from farm.db import (
    batches,
    campaigns,
    device_sessions,
    devices,
    kernels,
    measurements,
    migrate,
    probation,
    roles,
    sentinels,
    worker_logins,
)
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.device_sessions import DeviceSession, Server
from farm.db.engine import make_engine
from farm.db.roles import FUNCTIONS, SESSIONS_OF_HOST, set_up_worker_role
from farm.db.service_roles import Service
from farm.db.states import DeviceState, FailureKind
from farm.errors import BadHostName, BadRole, DeviceContended, LeaseLost, NoSuchHost
from farm.gemm import Shape
from farm.kernels import Configuration
from farm.measurement import Source
from farm.services import ServiceUrls
from support.commands import called
from support.homes import environment, eventually
from support.samples import cpu, document, row
from support.shared_server import server_of_the_owner, urls_of_roles

PASSWORD = "of a/host%'s"
KEY = "A" * 43 + "="
MINE, THEIRS = "mine", "theirs"


@pytest.fixture(scope="module")
def farm_services() -> Iterator[ServiceUrls]:
    with server_of_the_owner() as urls:
        yield urls


def under(engine: Engine, login: str, password: str = PASSWORD) -> Engine:
    url = engine.url.set(username=login, password=password).render_as_string(hide_password=False)
    return make_engine(url, application="test", pool_size=1)


Hosts = dict[str, Engine]


@pytest.fixture
def hosts(engine: Engine) -> Iterator[Hosts]:
    """The database under the login of each of two hosts."""
    prefix = f"farm{uuid.uuid4().hex[:6]}"
    with engine.begin() as connection:
        logins = {
            host: worker_logins.add(connection, host, password=PASSWORD, prefix=prefix) for host in (MINE, THEIRS)
        }
    made = {host: under(engine, login) for host, login in logins.items()}
    yield made
    for host, one in made.items():
        one.dispose()
        with engine.begin() as connection:
            if roles.exists(connection, logins[host]):
                connection.execute(text("DELETE FROM worker_logins WHERE host = :host"), {"host": host})
                worker_logins.remove(connection, host, [logins[host]])


@pytest.fixture
def coordinator(engine: Engine, database_url: str) -> Iterator[Engine]:
    """The database under the coordinator's role."""
    made = make_engine(urls_of_roles(database_url)[Service.APPLICATION], application="test", pool_size=1)
    yield made
    made.dispose()


def begun(under_host: Engine, number: int, *, claims_to_be: str = "anything") -> DeviceSession:
    with under_host.begin() as connection:
        server = Server(host=claims_to_be, pid=number, lock=f"lock {number}")
        return device_sessions.begin(connection, cpu(number), server, host_facts={}, silent_after=20)


def announced(under_host: Engine, number: int, *, claims_to_be: str = "anything") -> int:
    return begun(under_host, number, claims_to_be=claims_to_be).device_id


@pytest.fixture
def my_device(hosts: Hosts) -> int:
    return announced(hosts[MINE], 1)


@pytest.fixture
def their_device(hosts: Hosts, my_device: int) -> int:
    return announced(hosts[THEIRS], 2)


@pytest.fixture
def campaign(engine: Engine, their_device: int) -> int:
    with engine.begin() as connection:
        asked = Campaign.from_document(document())
        known = campaigns.known_devices(connection)
        return campaigns.store(connection, asked, plan(asked, known, allow_missing=False).jobs()).campaign_id


def formed(engine: Engine, jobs: int) -> int:
    with engine.begin() as connection:
        work = batches.candidates(connection)[0]
        assert batches.lock(connection, work.lane_id)
        batch_id = batches.form(connection, work, queue=queue_of_type("cpu-test"), jobs=jobs)
    assert batch_id is not None
    return batch_id


def leased(owner: Engine, under_host: Engine, device_id: int, *, jobs: int = 3, lease_seconds: float = 60) -> Lease:
    batch_id = formed(owner, jobs)
    with under_host.begin() as connection:
        lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=lease_seconds)
    assert lease is not None
    return lease


@pytest.fixture
def my_lease(engine: Engine, hosts: Hosts, my_device: int, campaign: int) -> Lease:
    return leased(engine, hosts[MINE], my_device)


@pytest.fixture
def their_lease(engine: Engine, hosts: Hosts, their_device: int, campaign: int) -> Lease:
    return leased(engine, hosts[THEIRS], their_device)


def is_denied(attacker: Engine, statement: str) -> bool:
    try:
        with attacker.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement.replace("%", "%%"))
    except ProgrammingError as error:
        return isinstance(error.orig, errors.InsufficientPrivilege)
    return False


def denied(attacker: Engine, attack: Callable[[Any], object]) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), attacker.begin() as connection:
        attack(connection)


def value(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one()


def state_of_the_farm(engine: Engine) -> list[Any]:
    tables = (
        "batches",
        "configurations",
        "devices",
        "environments",
        "failures",
        "hosts",
        "jobs",
        "measurements",
        "returned_jobs",
    )
    with engine.connect() as connection:
        return [
            connection.execute(
                text(f"SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)), '[]') FROM {table} t")
            ).scalar_one()
            for table in tables
        ]


# --- what a host does ------------------------------------------------------------------------------------


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


# --- what it cannot do -----------------------------------------------------------------------------------


def test_no_lease_token_can_be_read(hosts: Hosts, their_lease: Lease) -> None:
    attacks = (
        "SELECT lease_token FROM batches",
        "SELECT * FROM batches",
        "SELECT b FROM batches b",
        "SELECT to_jsonb(b) FROM batches b",
        f"SELECT id FROM batches WHERE lease_token = '{their_lease.token}'",
        "SELECT id FROM batches ORDER BY lease_token",
        "COPY batches (lease_token) TO STDOUT",
        "SELECT token FROM leadership",
        "SELECT sha256 FROM tokens",
        "SELECT most_common_vals FROM pg_stats WHERE attname = 'lease_token' AND 1 / (SELECT count(*) FROM batches WHERE lease_token IS NOT NULL) >= 0",
    )
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


_CATALOG = text("""
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) AND c.relkind IN ('r', 'v')
  AND has_table_privilege(c.oid, 'SELECT') ORDER BY 1
""")
_STATISTICS = "SELECT histogram_bounds::text FROM pg_stats WHERE tablename = 'batches' AND attname = 'lease_token'"


def readable(connection: Connection) -> dict[str, str]:
    """The content of each catalog and view of the server that the login can read."""
    relations = connection.execute(_CATALOG).scalars().all()
    functions = ("pg_stat_get_activity(NULL)", *(f"pg_stat_get_backend_activity({n})" for n in range(1, 21)))
    content = {}
    for relation in (*relations, *functions):
        try:
            with connection.begin_nested():
                found = connection.exec_driver_sql(f"SELECT t::text FROM {relation} t").scalars()
                content[relation] = "\n".join(line for line in found if line is not None)
        except ProgrammingError as error:
            if not isinstance(error.orig, errors.InsufficientPrivilege):
                raise
    return content


def test_no_catalog_shows_lease_tokens_and_statements_of_others(
    engine: Engine, hosts: Hosts, coordinator: Engine, my_lease: Lease, their_lease: Lease
) -> None:
    token, statement = str(their_lease.token), f"SELECT 'a statement of theirs {uuid.uuid4()}'"
    with engine.begin() as connection:
        connection.execute(text("ANALYZE batches"))
    with hosts[THEIRS].connect() as theirs:
        theirs.exec_driver_sql(statement)
        with coordinator.connect() as connection:
            assert statement in readable(connection)["pg_stat_activity"]
        assert token in value(engine, _STATISTICS)
        with hosts[MINE].begin() as connection:
            content = readable(connection)
    assert {"pg_stat_activity", "pg_stats", "pg_stat_get_activity(NULL)", "pg_locks"} <= set(content)
    assert str(hosts[THEIRS].url.username) in content["pg_stat_activity"]
    assert [name for name, shown in content.items() if token in shown or statement in shown] == []


def test_errors_and_reasons_of_other_hosts_are_not_read(hosts: Hosts, their_device: int) -> None:
    columns = ("state_reason", "claim_error", "session_lock", "contended_by", "measured")
    attacks = [f"SELECT {column} FROM devices" for column in columns]
    attacks += [
        "SELECT * FROM devices",
        "SELECT facts FROM hosts",
        "SELECT message FROM failures",
        "SELECT lane_id FROM jobs",
    ]
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


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


def test_a_host_changes_no_table_but_by_its_functions(
    engine: Engine, hosts: Hosts, my_device: int, campaign: int, my_lease: Lease
) -> None:
    with engine.connect() as connection:
        tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
    attacks = [
        attack
        for table in tables
        for attack in (
            f"INSERT INTO {table} DEFAULT VALUES",
            f"DELETE FROM {table}",
            f"TRUNCATE {table} CASCADE",
            f"DO $$ BEGIN LOCK TABLE {table} IN ROW EXCLUSIVE MODE; END $$",
            f"SELECT 1 FROM {table} FOR UPDATE",
        )
    ]
    attacks += [
        "UPDATE devices SET type = 'nvidia-h200', facts = '{}'",
        "UPDATE devices SET state = 'quarantined'",
        "UPDATE batches SET lease_token = gen_random_uuid()",
        "UPDATE jobs SET state = 'done'",
        "UPDATE hosts SET facts = '{}'",
        "UPDATE worker_logins SET host = NULL",
        "SELECT * FROM worker_logins",
        f"INSERT INTO measurements (device_id, configuration_id) SELECT {my_device}, id FROM configurations",
        "INSERT INTO configurations SELECT * FROM configurations",
    ]
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


def test_rows_without_a_job_and_rows_of_jobs_of_other_batches_do_not_land(
    engine: Engine, hosts: Hosts, my_lease: Lease, their_lease: Lease
) -> None:
    before = state_of_the_farm(engine)
    configuration = my_lease.jobs[0].configuration
    own = [(job, row()) for job in my_lease.jobs]
    for forged in (
        (their_lease.jobs[0], row()),
        (ClaimedJob(10**9, configuration), row()),
        (ClaimedJob(my_lease.jobs[0].id, my_lease.jobs[1].configuration), row()),
        (my_lease.jobs[0], row(source=Source.IMPORTED)),
        (my_lease.jobs[0], row(source=Source.SENTINEL)),
    ):
        results = [one for one in own if one[0].id != forged[0].id] + [forged]
        denied(hosts[MINE], lambda connection, results=results: batches.land(connection, my_lease, results, {}))
    rows = measurements.parameters_of([(None, my_lease.campaign_id, configuration.id, my_lease.device_id, row())])
    assert state_of_the_farm(engine) == before
    with hosts[MINE].begin() as connection:  # a row names no job, campaign or device of its own choice
        batches.land(connection, my_lease, own, {their_lease.jobs[0].id: Failure(FailureKind.INVALID, "mine")})
    assert value(engine, "SELECT count(*) FROM failures") == 0
    assert value(engine, "SELECT count(*) FROM measurements WHERE job_id IS NULL") == 0
    assert rows["contents"]


def test_the_environment_of_a_row_is_named_by_its_content(engine: Engine, hosts: Hosts, my_lease: Lease) -> None:
    parameters = batches.working._landing(my_lease, [(my_lease.jobs[0], row())], {}, {}, batches.working.BUILT_WITH)
    forged = {**parameters, "contents": ['{"library": "another"}']}
    denied(hosts[MINE], lambda connection: connection.execute(batches.working._LAND, forged))
    assert value(engine, "SELECT count(*) FROM environments") == 0


def small_under_the_id_of_a_large_one(engine: Engine) -> tuple[Configuration, Configuration]:
    large, small = (Configuration.parse(f"blas(threads=1) {n}x{n}x{n} f32") for n in (4096, 1))
    assert large.problem.shape == Shape(4096, 4096, 4096)
    return large, small


def test_a_configuration_is_stored_under_no_other_id_than_its_own(
    engine: Engine, hosts: Hosts, my_lease: Lease, campaign: int
) -> None:
    large, small = small_under_the_id_of_a_large_one(engine)
    columns = {**small.columns(), "parameters": json.dumps(small.columns()["parameters"])}
    sentinel = row(source=Source.SENTINEL)
    rows = measurements.parameters_of([(None, campaign, large.id, my_lease.device_id, sentinel)])
    forged = {**columns, **rows, "id": large.id, "batch_id": my_lease.batch_id, "token": my_lease.token}

    def land(connection: Any) -> None:
        batches.land(connection, my_lease, [], {})
        connection.execute(sentinels._LAND, forged)

    denied(hosts[MINE], land)
    assert value(engine, f"SELECT count(*) FROM configurations WHERE id = '{large.id}'") == 0
    with hosts[MINE].begin() as connection:
        batches.land(connection, my_lease, [], {})
        sentinels.land(connection, my_lease, large, sentinel)
    assert value(engine, f"SELECT m FROM configurations WHERE id = '{large.id}'") == 4096
    assert value(engine, "SELECT count(*) FROM measurements WHERE source = 'sentinel'") == 1
    # Later, and for a batch that another device landed, there is no sentinel.
    denied(
        hosts[MINE],
        lambda connection: connection.execute(
            sentinels._LAND, {**forged, **large.columns(), "parameters": columns["parameters"]}
        ),
    )


@pytest.mark.parametrize(
    "alpha", [1.0, 0.5, 1e-5, 1e-4, 0.1 + 0.2, 1e15, 1234567890123456.8, 1e16, 1e22, -2.0, 5e-324, 123456789.0]
)
def test_the_database_and_the_farm_name_a_configuration_alike(engine: Engine, alpha: float) -> None:
    for written in ("blas(threads=2) 64x32x16 f32", "cutlass(stages=3) 64x64x32 f16", "tiled(tile=16) 4096x1x7 f32 tn"):
        one = Configuration.parse(
            f"{written} alpha={alpha!r} beta={alpha!r}"
            if "tn" in written
            else f"{written} nn alpha={alpha!r} beta={alpha!r}"
        )
        columns = {**one.columns(), "parameters": json.dumps(one.columns()["parameters"])}
        statement = text("""
            SELECT configuration_id(:m, :n, :k, :ab, :cd, :acc, :layout, :alpha, :beta, :family, CAST(:parameters AS jsonb))
        """)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL extra_float_digits = 0"))
            assert connection.execute(statement, columns).scalar_one() == one.id


def test_leadership_cannot_be_taken(hosts: Hosts) -> None:
    attacks = (
        "SELECT * FROM leadership",
        "SELECT term FROM leadership FOR UPDATE",
        "UPDATE leadership SET expires_at = 'infinity'",
        "UPDATE leadership SET term = term + 1",
        "DO $$ BEGIN LOCK TABLE leadership IN ACCESS SHARE MODE; END $$",
    )
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


def test_a_host_makes_no_temporary_tables(hosts: Hosts) -> None:
    attacks = (
        "CREATE TEMPORARY TABLE large (a text)",
        "CREATE TEMPORARY SEQUENCE mine",
        "SELECT 1 AS a INTO TEMPORARY mine",
    )
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


def test_a_session_of_a_host_has_few_temporary_files(hosts: Hosts) -> None:
    with hosts[MINE].connect() as connection:
        with pytest.raises(OperationalError, match="temporary file size exceeds"):
            connection.execute(
                text("SELECT g, repeat('x', 100) FROM generate_series(1, 2000000) g ORDER BY 2, 1 OFFSET 1999999")
            )
        connection.rollback()
        assert connection.execute(text("SHOW temp_file_limit")).scalar_one() == roles.TEMP_FILE_LIMIT
    login = sql.Identifier(str(hosts[MINE].url.username)).as_string(None)
    attacks = ("SET temp_file_limit = -1", "RESET temp_file_limit", f"ALTER ROLE {login} SET temp_file_limit = -1")
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


@pytest.mark.parametrize("database", [None, "postgres", "template1"])
def test_a_host_fills_no_disk_with_large_objects_and_temporary_tables(hosts: Hosts, database: str | None) -> None:
    """Nor in the databases that every login of a server may connect to."""
    attacks = (
        "SELECT lo_create(0)",
        "SELECT lo_from_bytea(0, convert_to(repeat('x', 1000), 'UTF8'))",
        "DO $$ BEGIN PERFORM lo_put(lo_creat(-1), 0, 'mine'); END $$",
        "CREATE TEMPORARY TABLE large (a text)",
        "CREATE TABLE large (a text)",
    )
    url = hosts[MINE].url.set(database=database or hosts[MINE].url.database)
    attacker = make_engine(url.render_as_string(hide_password=False), application="test", pool_size=1)
    allowed = [attack for attack in attacks if not is_denied(attacker, attack)]
    attacker.dispose()
    assert allowed == []


def test_a_host_has_limits_on_the_server(engine: Engine, hosts: Hosts) -> None:
    with hosts[MINE].connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "1min"
    login = hosts[MINE].url.username
    assert value(engine, f"SELECT rolconnlimit FROM pg_roles WHERE rolname = '{login}'") == SESSIONS_OF_HOST
    with engine.begin() as connection:
        connection.execute(text(f"ALTER ROLE {login} CONNECTION LIMIT 1"))
    with hosts[MINE].connect():
        more = under(engine, str(login))
        with pytest.raises(OperationalError, match="too many connections for role"), more.connect():
            pass
        more.dispose()
    denied(hosts[MINE], lambda connection: connection.execute(text(f"ALTER ROLE {login} CONNECTION LIMIT -1")))


def test_a_transaction_without_end_is_ended_by_the_coordinator(hosts: Hosts, coordinator: Engine) -> None:
    with hosts[MINE].connect() as connection:
        for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET {limit} = 0"))  # which any login may, for itself
        time.sleep(0.3)
        with coordinator.begin() as leading:
            assert worker_logins.end_long_transactions(leading, longer_than=60) == []
            assert worker_logins.end_long_transactions(leading, longer_than=0.1) == [hosts[MINE].url.username]
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))
        connection.invalidate()


_TAKE_MIGRATIONS_LOCK = text("SELECT pg_advisory_lock(:key)")


def test_a_session_that_has_an_advisory_lock_is_ended_by_the_coordinator(
    engine: Engine, hosts: Hosts, coordinator: Engine
) -> None:
    """The lock outlives the transaction that takes it, and `farm db upgrade` would wait for it."""
    waiting = text("SELECT pg_try_advisory_xact_lock(:key)")
    with hosts[MINE].connect() as connection:
        connection.execute(_TAKE_MIGRATIONS_LOCK, {"key": migrate._MIGRATING})
        connection.commit()
        with engine.begin() as upgrading:
            assert not upgrading.execute(waiting, {"key": migrate._MIGRATING}).scalar_one()
        with hosts[THEIRS].connect() as another, coordinator.begin() as leading:
            another.execute(text("SELECT 1"))
            assert worker_logins.end_long_transactions(leading, longer_than=60) == [hosts[MINE].url.username]
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))
        connection.invalidate()
    with engine.begin() as upgrading:
        upgrading.execute(text("SET LOCAL lock_timeout = '30s'"))
        migrate.alone(upgrading, None)


def test_a_session_that_waits_for_an_advisory_lock_of_the_farm_is_ended_too(
    engine: Engine, hosts: Hosts, coordinator: Engine
) -> None:
    """Whoever waits is served in turn, and makes those behind it wait."""
    queued = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

    def wait() -> None:
        with pytest.raises(OperationalError), hosts[MINE].connect() as connection:
            connection.execute(_TAKE_MIGRATIONS_LOCK, {"key": migrate._MIGRATING})

    with ThreadPoolExecutor() as pool:
        with engine.begin() as upgrading:
            migrate.alone(upgrading, None)
            attack = pool.submit(wait)
            eventually(lambda: value(engine, queued) == 1)
            with coordinator.begin() as leading:
                assert worker_logins.end_long_transactions(leading, longer_than=60) == [hosts[MINE].url.username]
        attack.result(timeout=60)


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


def test_the_functions_are_for_workers_alone(engine: Engine, hosts: Hosts) -> None:
    statement = text("""
        SELECT proname FROM pg_proc
        WHERE prosecdef AND pronamespace = 'public'::regnamespace AND has_function_privilege(:role, oid, 'EXECUTE') ORDER BY 1
    """)
    with engine.connect() as connection:
        mine = connection.execute(statement, {"role": hosts[MINE].url.username}).scalars().all()
        everybody = connection.execute(statement, {"role": "mlflow"}).scalars().all()
        unsafe = value(
            engine,
            "SELECT count(*) FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
            " AND NOT proconfig @> ARRAY['search_path=pg_catalog, public, pg_temp']",
        )
    assert (mine, everybody, unsafe) == (sorted(FUNCTIONS), [], 0)


def test_a_login_that_no_host_has_does_nothing(engine: Engine, hosts: Hosts, my_device: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM worker_logins"))
    denied(hosts[MINE], lambda connection: devices.heartbeat(connection, my_device))
    denied(hosts[MINE], lambda connection: devices.register(connection, host=MINE, host_facts={}, device=cpu(1)))


# --- the logins ------------------------------------------------------------------------------------------


def test_a_revoked_host_is_out_at_once_and_its_batch_goes_back(
    engine: Engine, hosts: Hosts, my_device: int, campaign: int, their_lease: Lease
) -> None:
    mine = leased(engine, hosts[MINE], my_device, lease_seconds=1e6)
    login = str(hosts[MINE].url.username)
    with hosts[MINE].connect() as connected:
        connected.execute(text("SELECT 1"))
        connected.commit()
        with engine.begin() as connection:
            logins = worker_logins.shut_out(connection, MINE)
        with engine.begin() as connection:
            assert batches.reap(connection) == [mine.batch_id]
        with pytest.raises(DBAPIError, match="permission denied"):
            devices.heartbeat(connected, my_device)
        connected.rollback()
        with engine.begin() as connection:
            worker_logins.remove(connection, MINE, logins)
        with pytest.raises(DBAPIError):
            connected.execute(text("SELECT 1"))
    with engine.begin() as connection:
        assert not roles.exists(connection, login)
        assert [one.host for one in worker_logins.list_logins(connection)] == [THEIRS]
        with pytest.raises(NoSuchHost):
            worker_logins.shut_out(connection, MINE)
    again = under(engine, login)
    with pytest.raises(OperationalError, match="authentication failed"), again.connect():
        pass
    again.dispose()
    assert announced(hosts[THEIRS], 1) == my_device  # the operator gave it away


def test_a_host_that_locks_its_batch_and_device_does_not_delay_its_revocation(
    engine: Engine, hosts: Hosts, my_device: int, my_lease: Lease
) -> None:
    with hosts[MINE].connect() as connected:
        assert batches.mark(connected, my_lease, my_lease.jobs[0], lease_seconds=60)
        devices.heartbeat(connected, my_device)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            logins = worker_logins.shut_out(connection, MINE)
        with engine.begin() as connection:
            assert batches.reap(connection) == []
            worker_logins.remove(connection, MINE, logins)
        with engine.begin() as connection:
            assert batches.reap(connection) == [my_lease.batch_id]
        connected.invalidate()
    assert announced(hosts[THEIRS], 1) == my_device


def test_a_login_of_every_host_acts_for_all_and_keeps_its_limits(engine: Engine, hosts: Hosts, my_lease: Lease) -> None:
    name = f"shared_{uuid.uuid4().hex[:6]}"
    with engine.begin() as connection:
        set_up_worker_role(connection, name, password=PASSWORD)
    shared = under(engine, name)
    with shared.begin() as connection:
        batches.land(connection, my_lease, [(job, row()) for job in my_lease.jobs], {})
    assert is_denied(shared, "SELECT lease_token FROM batches")
    assert is_denied(shared, "CREATE TEMPORARY TABLE mine (id int)")
    shared.dispose()
    with engine.begin() as connection:
        worker_logins.remove(connection, None, [name])


def test_a_name_that_no_host_has_is_refused(engine: Engine) -> None:
    for name in ("", "a b", "-x", "x" * 60, "a';--"):
        with pytest.raises(BadHostName), engine.begin() as connection:
            worker_logins.add(connection, name, password=PASSWORD)


def test_a_role_of_somebody_else_is_not_taken_for_a_hosts(engine: Engine) -> None:
    name = worker_logins.login_of(f"other-{uuid.uuid4().hex[:6]}")
    with engine.begin() as connection:
        with measurements.cursor_of(connection) as cursor:
            cursor.execute(sql.SQL("CREATE ROLE {} CREATEDB").format(sql.Identifier(name)))
        with pytest.raises(BadRole):
            worker_logins.add(connection, name.removeprefix("farm_host_"), password=PASSWORD)
        connection.rollback()


def test_a_lost_lease_lands_nothing(engine: Engine, hosts: Hosts, my_lease: Lease, my_device: int) -> None:
    with engine.begin() as connection:
        batches.release(connection, my_lease.batch_id, device_id=my_device, reason="it was taken", suspect=False)
    with pytest.raises(LeaseLost), hosts[MINE].begin() as connection:
        batches.land(connection, my_lease, [(job, row()) for job in my_lease.jobs], {})


def test_the_command_makes_lists_and_ends_a_login(engine: Engine, database_url: str, tmp_path: Path) -> None:
    host = f"gpu-{uuid.uuid4().hex[:6]}"

    def farm_hosts(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = environment(tmp_path / ".farm", **{"FARM_DATABASE_URL": database_url, **variables})
        return called(("hosts", *words), tmp_path, given)

    assert farm_hosts("add", host, FARM_BROKER_URL="amqp://x").returncode == 2  # and no login is made
    added = farm_hosts("add", host, FARM_WORKER_PASSWORD="of every host", FARM_REDIS_WORKER_PASSWORD="of workers")
    assert added.returncode == 0, added.stderr
    assert "temporary files" not in added.stderr
    assert "of every host" not in added.stdout + added.stderr
    lines = dict(line.split("=", 1) for line in shlex.split(added.stdout))
    assert list(lines) == ["FARM_DATABASE_URL", "FARM_BROKER_URL", "FARM_KERNEL_KEYS"]
    assert lines["FARM_BROKER_URL"] == "redis://farm_worker:of%20workers@HOST:6379/0"
    url = make_url(lines["FARM_DATABASE_URL"])
    assert url.username == f"farm_host_{host}"
    assert url.password not in ("of every host", make_url(database_url).password)
    login = make_engine(lines["FARM_DATABASE_URL"].replace("://", "+psycopg://"), application="test", pool_size=1)
    announced(login, 7)
    login.dispose()
    (listed,) = json.loads(farm_hosts("--json").stdout)
    assert (listed["host"], listed["devices"]) == (host, 1)
    again = json.loads(farm_hosts("add", host, "--json", FARM_KERNEL_KEYS=KEY).stdout)
    settings = {one["variable"]: one for one in again.pop("settings")}
    assert again == {"host": host, "login": f"farm_host_{host}", "new": False, "password": None, "warning": None}
    assert make_url(settings["FARM_DATABASE_URL"]["value"]).password == "PASSWORD"
    assert settings["FARM_KERNEL_KEYS"] == {"variable": "FARM_KERNEL_KEYS", "value": KEY, "notes": []}
    assert farm_hosts("revoke", host).returncode == 0
    assert farm_hosts("revoke", host).returncode == 4
    assert farm_hosts("add", "a b").returncode == 2
    embedded = farm_hosts("add", host, FARM_DATABASE_URL="")
    assert embedded.returncode == 2
    assert "Set FARM_DATABASE_URL to a Postgres that worker hosts reach" in " ".join(embedded.stderr.split())
