"""The database roles of workers and readers: enough for all that they do, and not a right more.

Workers measure a campaign to its end, whatever happens. Readers read the documented views.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import errors
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import NotSupportedError, OperationalError, ProgrammingError

import farm
from farm.campaign import Campaign, load
from farm.db import batches, campaigns, migrate, roles, trainings
from farm.db.campaigns import Stored
from farm.db.engine import ANNOUNCING, MEASURING, make_engine
from farm.db.roles import READER_RIGHTS, RIGHTS, VIEWS, set_up_reader_role, set_up_worker_role
from farm.devices import DeviceIdentity
from farm.errors import BadRole, RoleRefused
from farm.services import ServiceUrls
from farm.variables import WORKER_DEVICE_ID
from support import worker_role
from support.batch_steps import form, land, leased
from support.commands import called
from support.homes import environment, eventually
from support.kernel_builds import awaited, binary_of, build, leased_of, let_go, source, wanted
from support.logins import logs_in
from support.own_kernels import block_of, defined
from support.programs import COORDINATOR, FARM_WORKER, kill_in_a_batch, programs
from support.samples import ahead, card, cpu, document
from support.sql_document import statements
from support.worker_role import PASSWORD, remove

farm_services, name, url, worker = worker_role.farm_services, worker_role.name, worker_role.url, worker_role.worker

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"


def number(engine: Engine, statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one() or 0)


# --- enough --------------------------------------------------------------------------------------------


def unfit_recording(folder: Path) -> Path:
    """A recording whose first row, the canary, has a time that cannot be."""
    table, column = pq.read_table(RECORDING), "runtime_q1_ms"
    wrong = pa.array([float("inf"), *table.column(column).to_pylist()[1:]], type=pa.float64())
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, wrong), folder / "unfit.parquet")
    return folder / "unfit.parquet"


@pytest.mark.long
def test_under_the_role_a_campaign_is_measured_to_its_end_though_a_child_dies_and_a_device_is_unfit(
    engine: Engine, submit: Callable[[Campaign], Stored], url: str, name: str, tmp_path: Path, database_url: str,
    farm_services: ServiceUrls,
) -> None:  # fmt: skip
    devices = f"recorded:{RECORDING}?scale=0.04,recorded:{unfit_recording(tmp_path)}"
    with programs(tmp_path, FARM_BROKER_URL=str(farm_services.broker_url)) as start:
        start(COORDINATOR, FARM_DATABASE_URL=database_url, FARM_RESEND_AFTER_SECONDS="1")
        worker = start(FARM_WORKER, "--devices", devices, FARM_DATABASE_URL=url)
        beating = "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"
        eventually(lambda: number(engine, beating) == 2)
        connected = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename"
        assert number(engine, f"{connected} = '{name}'") >= 2
        submit(load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000))
        quarantined = "SELECT count(*) FROM devices WHERE state = 'quarantined' AND state_reason LIKE '%canary%runtime_q1_ms is inf'"
        eventually(lambda: number(engine, quarantined) == 1)
        kill_in_a_batch(
            engine, lambda: [p for p in worker.children_that_measure() if p.environ()[WORKER_DEVICE_ID] == "1"]
        )
        eventually(lambda: number(engine, "SELECT count(*) FROM failures WHERE kind = 'killed'"))
        eventually(lambda: number(engine, "SELECT count(*) FROM campaigns WHERE state = 'done'"))
        assert number(engine, "SELECT count(*) FROM measurements") == 270
        assert number(engine, "SELECT count(*) FROM batches WHERE end_reason LIKE '%SIGKILL%'") == 1
        assert worker.stop() == 0
        assert number(engine, "SELECT count(*) FROM devices WHERE last_seen_at = '-infinity'") == 2
        assert "denied" not in worker.log()


def test_under_the_role_kernels_are_fetched_and_asked_for(
    engine: Engine, worker: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored],
    tmp_path: Path,
) -> None:  # fmt: skip
    device_id = announce(card())
    stored = submit(Campaign.from_document(ahead()))
    built = build(engine, wanted(engine)[0])
    assert let_go(engine) == 6
    assert source(worker, tmp_path).get(built.record.binary) == built
    lease = leased_of(engine, device_id)
    with worker.begin() as connection:
        missing = {job.id: binary_of(job) for job in lease.jobs}
        batches.land(connection, lease, [], {}, missing)
    assert awaited(engine, stored) == (2, 0, 12)


def test_under_the_role_own_kernels_come_with_a_batch(
    engine: Engine, worker: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device_id, definition = announce(card()), defined()
    kernels = block_of(definition, BM=32, BN=[16, 32])
    submit(Campaign.from_document(ahead(problems={"shapes": "64x64x64", "types": "f32"}, kernels=kernels)))
    batch_id = form(engine, kind="nvidia-test")
    assert batch_id is not None
    with worker.begin() as connection:
        lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
    assert lease is not None
    assert len(lease.jobs) == 2
    assert [one.to_json() for one in lease.definitions] == [definition.to_json()]


# --- and no more ---------------------------------------------------------------------------------------

FORBIDDEN = """
CREATE TABLE mine (id int)
CREATE TABLE mine AS SELECT * FROM jobs
CREATE SCHEMA mine
CREATE VIEW mine AS SELECT 1
CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'
CREATE INDEX ON jobs (solo)
CREATE TRIGGER mine BEFORE INSERT ON measurements EXECUTE FUNCTION refuse_change()
ALTER TABLE jobs ADD COLUMN mine int
ALTER TABLE measurements DISABLE TRIGGER ALL
ALTER TABLE measurements OWNER TO CURRENT_USER
ALTER VIEW v_measurements RENAME TO mine
ALTER DATABASE {database} SET statement_timeout = 1
DROP TABLE measurements CASCADE
DROP VIEW v_measurements
DROP DATABASE {database}
TRUNCATE returned_jobs
INSERT INTO campaigns (name, digest, owner, document, rules) VALUES ('mine', 'd', 'me', '{{}}', '{{}}')
UPDATE campaigns SET state = 'cancelled'
UPDATE campaigns SET rules = '{{}}'
DELETE FROM campaigns
SELECT document FROM campaigns
INSERT INTO lanes (campaign_id, pool_id) VALUES (1, 1)
UPDATE lanes SET done = jobs
SELECT id FROM lanes FOR UPDATE
DELETE FROM lanes
INSERT INTO pools (name, device_uuid) VALUES ('mine', 'CPU-1')
UPDATE configurations SET m = 1
DELETE FROM configurations
INSERT INTO jobs (lane_id, configuration_id) SELECT lane_id, configuration_id FROM jobs
UPDATE jobs SET lane_id = 1
UPDATE jobs SET configuration_id = gen_random_uuid()
DELETE FROM jobs
INSERT INTO batches (lane_id, queue, jobs, job_ids) VALUES (1, 'gpu.cpu-test', 1, '{{1}}')
UPDATE batches SET job_ids = '{{}}'
UPDATE batches SET folded = true
UPDATE batches SET lane_id = 1
UPDATE batches SET queue = 'elsewhere'
DELETE FROM batches
UPDATE measurements SET runtime_ms = 1
DELETE FROM measurements
SELECT runtime_ms FROM measurements
SELECT count(*) FROM v_measurements
INSERT INTO measurements (id) VALUES (1)
INSERT INTO measurements (measured_at) VALUES ('2000-01-01')
UPDATE environments SET content = '{{}}'
DELETE FROM environments
UPDATE failures SET message = ''
DELETE FROM failures
INSERT INTO failures (id) VALUES (1)
UPDATE returned_jobs SET solo = false
DELETE FROM returned_jobs
INSERT INTO kernels (hash, description, toolchain, record) VALUES ('a', '{{}}', '1', '{{}}')
UPDATE kernels SET record = '{{}}'
UPDATE kernels SET description = '{{}}'
UPDATE kernels SET final = true
DELETE FROM kernels
INSERT INTO kernel_code (hash, code) VALUES ('a', 'b')
UPDATE kernel_code SET code = 'b'
DELETE FROM kernel_code
INSERT INTO kernel_definitions (id, file, definition) VALUES (1, 'a.cu', '{{}}')
UPDATE kernel_definitions SET definition = '{{}}'
DELETE FROM kernel_definitions
SELECT submitted_by FROM kernel_definitions
DELETE FROM waiting_jobs
INSERT INTO builders (name, toolchains, slots) VALUES ('mine', '{{}}', 1)
UPDATE devices SET uuid = 'mine'
UPDATE devices SET measured = 0
DELETE FROM devices
UPDATE hosts SET name = 'mine'
DELETE FROM hosts
SELECT * FROM audit
INSERT INTO audit (who, role, way, origin, operation, kind, name) VALUES ('a', 'read', 'cli', 'b', 'c', 'd', 'e')
SELECT * FROM quotas
INSERT INTO quotas (owner, min_priority, max_priority) VALUES ('ann', 0, 100)
INSERT INTO trainings (device_type) VALUES ('cpu-test')
UPDATE trainings SET state = 'done'
SELECT * FROM trainings
UPDATE alembic_version SET version_num = '0000'
DELETE FROM alembic_version
SELECT nextval('jobs_id_seq')
SELECT setval('batches_id_seq', 1)
SELECT rolpassword FROM pg_authid
CREATE ROLE mine
ALTER ROLE CURRENT_USER CREATEDB
ALTER ROLE CURRENT_USER SUPERUSER
ALTER ROLE {owner} PASSWORD 'mine'
ALTER ROLE {owner} SET statement_timeout = 1
DROP ROLE {owner}
GRANT {owner} TO CURRENT_USER
SET ROLE {owner}
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{owner}'
SELECT pg_read_file('PG_VERSION')
COPY jobs TO PROGRAM 'cat'
"""


def is_denied(worker: Engine, statement: str) -> bool:
    try:
        with worker.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement)
    except ProgrammingError as error:
        return isinstance(error.orig, errors.InsufficientPrivilege)
    return False


def test_the_role_may_do_nothing_else(
    engine: Engine, worker: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    submit(Campaign.from_document(document()))
    leased(engine, device, 5)
    owner, database = engine.url.username, engine.url.database
    statements = FORBIDDEN.format(owner=owner, database=database).strip().splitlines()
    assert [statement for statement in statements if not is_denied(worker, statement)] == []


def test_the_farms_own_functions_that_are_not_for_workers_are_denied_to_them(
    engine: Engine, worker: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    stored = submit(Campaign.from_document(document()))
    land(engine, leased(engine, device))
    again = Campaign.from_document(document(name="mine"))
    for forbidden in (
        lambda connection: campaigns.store(connection, again, []),
        lambda connection: batches.cancel(connection, stored.campaign_id),
        lambda connection: batches.pause(connection, stored.campaign_id),
        batches.fold,
        lambda connection: trainings.request(connection, device_type="cpu-test"),
        lambda connection: set_up_worker_role(connection, "another", password="mine"),
    ):
        with pytest.raises((ProgrammingError, RoleRefused)) as refused, worker.begin() as connection:
            forbidden(connection)
        assert "denied" in str(refused.value)


def rights(engine: Engine, name: str) -> dict[str, dict[str, set[str]]]:
    """By table and privilege: the columns on which the role has it, as the catalogue has it; `*` for all of a table."""
    statement = text("""
        SELECT c.relname, a.privilege_type, '*' AS attname
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
        WHERE r.rolname = :name
        UNION ALL
        SELECT c.relname, a.privilege_type, t.attname
        FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid
        CROSS JOIN LATERAL aclexplode(t.attacl) a JOIN pg_roles r ON r.oid = a.grantee
        WHERE r.rolname = :name
    """)
    found: dict[str, dict[str, set[str]]] = {}
    with engine.connect() as connection:
        for table, privilege, column in connection.execute(statement, {"name": name}):
            found.setdefault(table, {}).setdefault(privilege, set()).add(column)
    return found


EXACTLY = {table: {p: set(columns or "*") for p, columns in named.items()} for table, named in RIGHTS.items()}
READING = {view: {"SELECT": {"*"}} for view in READER_RIGHTS}


def test_run_again_it_takes_away_what_was_added_and_changes_nothing_else(engine: Engine, url: str, name: str) -> None:
    assert rights(engine, name) == EXACTLY
    with engine.begin() as connection:
        for more in ("DELETE ON jobs", "SELECT (document), UPDATE ON campaigns", "USAGE ON SEQUENCE jobs_id_seq"):
            connection.execute(text(f"GRANT {more} TO {name}"))
    assert rights(engine, name) != EXACTLY
    for _ in range(2):
        with engine.begin() as connection:
            set_up_worker_role(connection, name, password=None)
        assert rights(engine, name) == EXACTLY
    again = make_engine(url, application="test", pool_size=1)
    with again.connect():
        pass  # with the password that it had
    again.dispose()


def test_a_role_can_have_the_settings_of_workers_behind_a_pooler_that_drops_them(
    engine: Engine, url: str, name: str
) -> None:
    scale = (Path(farm.__file__).parent.parent / "docs" / "scale.md").read_text()
    (block,) = re.findall(r"^```sql\n(.*?)^```", scale, flags=re.MULTILINE | re.DOTALL)
    with engine.begin() as connection:
        for statement in block.replace("farm_worker", name).split(";\n")[:-1]:
            connection.execute(text(statement))
        stored = connection.execute(text("SELECT rolconfig FROM pg_roles WHERE rolname = :name"), {"name": name})
        settings = dict(line.split("=") for line in stored.scalar_one())
    del settings["statement_timeout"]  # the role's own: see `SESSION_LIMITS`
    assert settings == {key: value for key, value in MEASURING.items() if key != "synchronous_commit"}
    assert settings == {**settings, **{key: ANNOUNCING[key] for key in ANNOUNCING if key != "lock_timeout"}}

    # The pooler watches the workers' hosts as Postgres does otherwise.
    (block,) = re.findall(r"^```ini\n\[pgbouncer\]\n(.*?)^```", scale, flags=re.MULTILINE | re.DOTALL)
    pooler = dict(line.split(" = ") for line in block.splitlines())
    assert (pooler["tcp_keepidle"], pooler["tcp_keepintvl"], pooler["tcp_keepcnt"]) == tuple(
        MEASURING[f"tcp_keepalives_{what}"] for what in ("idle", "interval", "count")
    )
    assert pooler["tcp_user_timeout"] == MEASURING["tcp_user_timeout"].replace("s", "000")


def test_a_role_that_is_more_than_a_workers_is_left_alone(engine: Engine, name: str) -> None:
    def refused(which: str) -> str:
        with pytest.raises(BadRole) as error, engine.begin() as connection:
            set_up_worker_role(connection, which, password=PASSWORD)
        return str(error.value)

    assert "is the role that FARM_DATABASE_URL names" in refused(str(engine.url.username))
    assert "may do more than log in" in refused("postgres")
    assert "a name has from 1 to 63 bytes" in refused("")
    assert "a name has from 1 to 63 bytes" in refused("ä" * 32)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} CREATEDB"))
    assert "may do more than log in" in refused(name)
    with engine.begin() as connection:
        connection.execute(text(f"ALTER ROLE {name} NOCREATEDB"))
        connection.execute(text(f"CREATE ROLE {name}_group"))
        connection.execute(text(f"GRANT {name}_group TO {name}"))
    assert f"a member of {name}_group" in refused(name)
    with engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {name}_group"))
        connection.execute(text(f"GRANT {name} TO current_user"))
        connection.execute(text("CREATE TABLE theirs ()"))
        connection.execute(text(f"GRANT CREATE ON SCHEMA public TO {name}"))
        connection.execute(text(f"ALTER TABLE theirs OWNER TO {name}"))
    assert "owns a database or something in one" in refused(name)
    assert rights(engine, name).keys() <= {"theirs"}


def test_what_everybody_may_do_is_said_and_nothing_is_changed(engine: Engine, name: str) -> None:
    for given, told in (("CREATE ON SCHEMA", "CREATE on the schema public"), ("DELETE ON", "DELETE on jobs")):
        what = f"{given} {'public' if 'SCHEMA' in given else 'jobs'}"
        with engine.begin() as connection:
            connection.execute(text(f"GRANT {what} TO PUBLIC"))
        with (
            pytest.raises(BadRole, match=f"it would have {told}, which PUBLIC has"),
            engine.begin() as connection,
        ):
            set_up_worker_role(connection, name, password=None)
        with engine.begin() as connection:
            connection.execute(text(f"REVOKE {what} FROM PUBLIC"))
            assert not roles.exists(connection, name)


def test_a_name_that_postgres_keeps_for_itself_is_refused(engine: Engine) -> None:
    with pytest.raises(RoleRefused, match="pg_mine could not be made or changed"), engine.begin() as connection:
        set_up_worker_role(connection, "pg_mine", password=None)


def test_the_server_is_not_told_the_password(engine: Engine, url: str, name: str) -> None:
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        told = [
            statement.as_string(driver) for statement in roles._statements(connection, name, PASSWORD, roles._WORKERS)
        ]
    assert any("PASSWORD 'SCRAM-SHA-256$" in statement for statement in told)
    assert not any("pass%word" in statement for statement in told)


# --- readers -------------------------------------------------------------------------------------------


@pytest.fixture
def reader(engine: Engine, name: str, database_url: str) -> Iterator[Engine]:
    with engine.begin() as connection:
        set_up_reader_role(connection, name, password=PASSWORD)
    url = make_url(database_url).set(username=name, password=PASSWORD).render_as_string(hide_password=False)
    made = make_engine(url, application="test", pool_size=1)
    yield made
    made.dispose()


def test_a_reader_reads_every_view_and_asks_what_the_document_asks(
    engine: Engine, reader: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    submit(Campaign.from_document(document()))
    land(engine, leased(engine, device, 5))
    with reader.connect() as connection:
        found = {view: len(connection.exec_driver_sql(f"SELECT * FROM {view}").all()) for view in VIEWS}
        for statement in statements():
            connection.exec_driver_sql(statement.replace("%", "%%")).all()
    assert found == {
        **{"v_measurements": 5, "v_all_measurements": 5, "v_sentinels": 0},
        **{"v_best_kernels": found["v_best_kernels"], "v_device_health": 1, "v_campaign_progress": 1},
    }
    assert 0 < found["v_best_kernels"] <= 5


def test_a_reader_may_do_nothing_else(
    engine: Engine, reader: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    submit(Campaign.from_document(document()))
    leased(engine, device, 5)
    with engine.connect() as connection:
        tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
    owner, database = engine.url.username, engine.url.database
    reading = [f"SELECT 1 FROM {table}" for table in tables]
    changing = [f"UPDATE {view} SET m = 1" for view in ("v_measurements", "v_best_kernels")]
    claiming = [
        "INSERT INTO failures (job_id, lane_id, kind, message) VALUES (1, 1, 'failed', '')",
        "UPDATE jobs SET state = 'done'",
        "UPDATE devices SET state = 'drained'",
        "SELECT currval('jobs_id_seq')",
    ]
    forbidden = FORBIDDEN.format(owner=owner, database=database).strip().splitlines()
    forbidden.remove("SELECT count(*) FROM v_measurements")
    tried = [*forbidden, *reading, *claiming]
    assert [statement for statement in tried if not is_denied(reader, statement)] == []
    for statement in changing:
        with pytest.raises((ProgrammingError, NotSupportedError, OperationalError)), reader.begin() as connection:
            connection.exec_driver_sql(statement)


def test_a_readers_role_is_made_again_as_it_should_be(engine: Engine, reader: Engine, name: str) -> None:
    assert rights(engine, name) == READING
    with engine.begin() as connection:
        for more in ("SELECT ON jobs", "SELECT (document) ON campaigns", "UPDATE ON lanes"):
            connection.execute(text(f"GRANT {more} TO {name}"))
        set_up_reader_role(connection, name, password=None)
    assert rights(engine, name) == READING
    with reader.connect():
        pass  # with the password that it had


def test_the_roles_of_workers_and_readers_are_not_taken_for_each_other(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        set_up_worker_role(connection, name, password=None)
    with (
        pytest.raises(BadRole, match=r"cannot be the role of readers: .* that of workers"),
        engine.begin() as connection,
    ):
        set_up_reader_role(connection, name, password=None)
    assert rights(engine, name) == EXACTLY
    remove(engine, name)
    with engine.begin() as connection:
        set_up_reader_role(connection, name, password=None)
    with (
        pytest.raises(BadRole, match=r"cannot be the role of workers: .* that of readers"),
        engine.begin() as connection,
    ):
        set_up_worker_role(connection, name, password=None)
    assert rights(engine, name) == READING


def test_what_everybody_may_read_is_said(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("GRANT SELECT ON v_measurements, campaigns TO PUBLIC"))
    with pytest.raises(BadRole, match="it would have SELECT on campaigns, which PUBLIC"), engine.begin() as connection:
        set_up_reader_role(connection, name, password=None)


# --- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, database_url: str, name: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, role: str = "worker-role", **variables: str) -> subprocess.CompletedProcess[str]:
        changed = environment(tmp_path / ".farm", **{"FARM_DATABASE_URL": database_url, **variables})
        return called(("db", role, *words), tmp_path, changed)

    return run


Command = Callable[..., subprocess.CompletedProcess[str]]


def test_the_command_sets_the_password_that_it_is_given(
    engine: Engine, command: Command, database_url: str, name: str
) -> None:
    for password in (PASSWORD, "changed"):
        done = command(name, FARM_WORKER_PASSWORD=password)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert password not in done.stderr
        assert logs_in(database_url, name, password)
    assert not logs_in(database_url, name, PASSWORD)
    kept = command(name, "--json")
    assert json.loads(kept.stdout) == {"role": name, "new": False, "password": None}
    assert logs_in(database_url, name, "changed")


def test_the_command_makes_a_password_and_prints_it_once(
    engine: Engine, command: Command, database_url: str, name: str
) -> None:
    first, second = command(name), command(name)
    assert first.returncode == second.returncode == 0, first.stderr
    password = first.stdout.strip()
    assert len(password) == 32
    assert second.stdout == ""
    assert logs_in(database_url, name, password)


def test_the_command_names_what_is_missing_for_a_limit_on_temporary_files(
    engine: Engine, command: Command, name: str
) -> None:
    """The server's superuser did not run deploy/postgres-roles.sh. The role works."""
    for words in ([name], [name, "--json"]):
        done = command(*words)
        assert done.returncode == 0
        assert f"Sessions of {name} have no limit of their own on temporary files" in done.stderr
        assert "Run deploy/postgres-roles.sh on the Postgres host" in done.stderr
    reader = command(f"{name}_reader", role="reader-role")
    assert (reader.returncode, "temporary files" in reader.stderr) == (0, False)
    remove(engine, f"{name}_reader")


def test_the_command_refuses_a_database_without_tables_and_an_embedded_one(
    command: Command, database_url: str, name: str
) -> None:
    engine = make_engine(database_url, application="test", pool_size=1)
    migrate.downgrade(engine, "base")
    engine.dispose()
    assert command(name).returncode == 5
    embedded = command(name, FARM_DATABASE_URL="")
    assert embedded.returncode == 2
    assert "has one role, and only this machine reaches it" in " ".join(embedded.stderr.split())


def test_the_command_makes_a_reader_with_the_password_that_it_is_given_or_makes(
    engine: Engine, command: Command, database_url: str, name: str
) -> None:
    done = command(name, role="reader-role", FARM_READER_PASSWORD=PASSWORD, FARM_WORKER_PASSWORD="another")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert PASSWORD not in done.stderr
    assert logs_in(database_url, name, PASSWORD)
    assert rights(engine, name) == READING
    kept = command(name, "--json", role="reader-role")
    assert json.loads(kept.stdout) == {"role": name, "new": False, "password": None}
    remove(engine, name)
    made = json.loads(command(name, "--json", role="reader-role").stdout)
    assert made["new"]
    assert logs_in(database_url, name, made["password"])
    refused = command(name, role="worker-role")
    assert refused.returncode == 2
    assert "that of readers" in " ".join(refused.stderr.split())
    embedded = command(name, role="reader-role", FARM_DATABASE_URL="")
    assert embedded.returncode == 2
    assert "Set FARM_DATABASE_URL to a Postgres that readers reach" in " ".join(embedded.stderr.split())


@pytest.mark.parametrize("set_up", [set_up_worker_role, set_up_reader_role])
def test_neither_workers_nor_readers_reach_tokens(engine: Engine, name: str, set_up: Callable[..., None]) -> None:
    asked = "SELECT has_any_column_privilege(:name, 'tokens', :what)"
    with engine.begin() as connection:
        set_up(connection, name, password=None)
        for what in ("SELECT", "INSERT", "UPDATE", "REFERENCES"):
            assert not connection.execute(text(asked), {"name": name, "what": what}).scalar_one()
        for what in ("DELETE", "TRUNCATE", "TRIGGER"):
            of_all = asked.replace("has_any_column_privilege", "has_table_privilege")
            assert not connection.execute(text(of_all), {"name": name, "what": what}).scalar_one()
