"""What each database role may do, as a table that is held to the database: every statement is tried on every table.

A migration that adds a table fails here until the table has a line in `EXPECTED`, and the rights themselves one in
`farm.db.service_roles.TABLES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from psycopg import errors, sql
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import OperationalError

import farm
from farm.db import worker_logins
from farm.db.engine import make_engine
from farm.db.roles import FUNCTIONS, set_up_reader_role
from farm.services import ServiceUrls
from support.shared_server import PASSWORDS, SUPERUSER, urls_of_roles

READER = "farm_reader"
HOST = "host"
ROLES = ("application", "web", "trainer", "reader", HOST)
NAMES = {role: f"farm_{role}" for role in ROLES} | {HOST: "farm_host_NAME"}
EXPECTED = {
    line.split()[0]: dict(zip(ROLES, line.split()[1:], strict=True))
    for line in """
        alembic_version       S     S     S     -  S
        audit                 SI    SI    -     -  -
        batches               SIUD  SIUD  S     -  s
        builders              SIUD  S     -     -  -
        campaigns             SIUD  SIUD  Su    -  -
        compatible_revisions  S     S     S     -  S
        configurations        SI    SI    SI    -  S
        deleted_rows          SID   SID   -     -  -
        deletions             SIUD  SIUD  -     -  -
        device_overlaps       SIUD  S     S     -  -
        devices               SIUD  SIUD  S     -  s
        environments          SI    SI    S     -  -
        failures              SID   SID   SI    -  s
        fair_shares           SIUD  S     -     -  -
        hosts                 SIU   SI    S     -  s
        jobs                  SIUD  SIUD  SIU   -  s
        kernel_code           SID   SD    -     -  S
        kernel_definitions    SI    SI    S     -  s
        kernels               SIUD  SiuD  Siu   -  s
        lanes                 SIUD  SIUD  SIU   -  -
        leadership            SIU   S     S     -  -
        measurements          SIUD  SIuD  S     -  s
        model_signatures      SIU   S     SIU   -  -
        oidc_users            -     SI    -     -  -
        pools                 SI    SI    SI    -  -
        programs              S     S     S     -  -
        quotas                SIUD  SIUD  -     -  -
        returned_jobs         SIUD  SIUD  SIU   -  -
        tokens                -     Su    -     -  -
        trainings             SIU   SI    Su    -  -
        waiting_jobs          SIUD  SIUD  SIU   -  -
        web_sessions          -     SIUD  -     -  -
        worker_logins         S     -     -     -  -
        worker_versions       SI    S     S     -  -
        v_all_measurements    S     S     S     S  -
        v_best_kernels        S     S     S     S  -
        v_campaign_progress   S     S     S     S  -
        v_device_health       S     S     S     S  -
        v_measurements        S     S     S     S  -
        v_sentinels           S     S     S     S  -
    """.strip().splitlines()
}
"""SELECT, INSERT, UPDATE and DELETE by their first letters; a small letter: on some columns only. Nothing else is allowed.

A host's login changes tables by the functions of `farm.db.roles.FUNCTIONS` alone: see tests/security/hosts.
"""

FORBIDDEN = """
TRUNCATE {table} CASCADE
CREATE TABLE mine (id int)
CREATE SCHEMA mine
CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'
CREATE LANGUAGE mine HANDLER plpgsql_call_handler
CREATE EVENT TRIGGER mine ON ddl_command_start EXECUTE FUNCTION refuse_change()
CREATE TRIGGER mine BEFORE INSERT ON measurements EXECUTE FUNCTION refuse_change()
CREATE RULE mine AS ON SELECT TO jobs DO INSTEAD NOTHING
ALTER TABLE measurements DISABLE TRIGGER ALL
ALTER TABLE tokens OWNER TO CURRENT_USER
ALTER FUNCTION refuse_change() RENAME TO mine
ALTER DATABASE {database} SET statement_timeout = 1
DROP TABLE measurements CASCADE
DROP VIEW v_measurements
DROP DATABASE {database}
ALTER SYSTEM SET log_statement = 'all'
SET session_replication_role = 'replica'
SET log_statement = 'all'
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO PUBLIC
GRANT pg_read_server_files TO CURRENT_USER
GRANT pg_execute_server_program TO CURRENT_USER
GRANT {owner} TO CURRENT_USER
SET ROLE {owner}
SET ROLE postgres
SET SESSION AUTHORIZATION postgres
CREATE ROLE mine
CREATE ROLE mine SUPERUSER
ALTER ROLE CURRENT_USER SUPERUSER
ALTER ROLE CURRENT_USER CREATEROLE
ALTER ROLE {owner} PASSWORD 'mine'
ALTER ROLE postgres PASSWORD 'mine'
DROP ROLE {owner}
CREATE DATABASE mine
SELECT rolpassword FROM pg_authid
SELECT passwd FROM pg_shadow
SELECT * FROM pg_hba_file_rules
SELECT pg_read_file('PG_VERSION')
SELECT pg_read_binary_file('/etc/passwd')
SELECT pg_ls_dir('.')
SELECT pg_stat_file('PG_VERSION')
SELECT lo_import('/etc/passwd')
SELECT lo_export(1, '/tmp/mine')
SELECT lo_create(0)
SELECT lo_creat(-1)
SELECT lo_from_bytea(0, 'mine')
SELECT lo_put(1, 0, 'mine')
SELECT lo_truncate(0, 1)
SELECT lo_truncate64(0, 1)
SELECT lowrite(0, 'mine')
COPY pg_class TO '/tmp/mine'
COPY pg_class TO PROGRAM 'cat'
CREATE TEMPORARY TABLE mine (t text); COPY mine FROM PROGRAM 'id'
CREATE TEMPORARY TABLE mine (t text); COPY mine FROM '/etc/passwd'
SELECT pg_reload_conf()
SELECT pg_rotate_logfile()
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{owner}'
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = '{owner}'
SELECT setval('jobs_id_seq', 1)
CREATE PUBLICATION mine FOR ALL TABLES
CREATE SUBSCRIPTION mine CONNECTION 'host=nowhere' PUBLICATION mine WITH (connect = false)
""".strip().splitlines()


_ALONE = ("ALTER SYSTEM", "CREATE DATABASE", "DROP DATABASE", "CREATE SUBSCRIPTION")
"""What Postgres does not do in a transaction."""


@pytest.fixture(scope="session")
def farm_services(services_of_the_owner: ServiceUrls) -> ServiceUrls:
    return services_of_the_owner


@pytest.fixture
def by_role(engine: Engine, database_url: str) -> Iterator[Mapping[str, Engine]]:
    """The database under each role of `ROLES`."""
    urls = {service.value: url for service, url in urls_of_roles(database_url).items()}
    with engine.begin() as connection:
        set_up_reader_role(connection, READER, password="reading")
    reading = make_url(database_url).set(username=READER, password="reading")
    urls["reader"] = reading.render_as_string(hide_password=False)
    with engine.begin() as connection:
        login = worker_logins.add(connection, "tested", password="measuring")
    measuring = make_url(database_url).set(username=login, password="measuring")
    urls[HOST] = measuring.render_as_string(hide_password=False)
    made = {role: make_engine(url, application="test", pool_size=1) for role, url in urls.items()}
    yield made
    for one in made.values():
        one.dispose()


def is_refused(engine: Engine, statement: str, *, alone: bool = False) -> bool:
    """Whether Postgres refuses it for a right that is missing, and for nothing else. What works is undone, unless it must be `alone`."""
    connection = engine.raw_connection()
    try:
        connection.driver_connection.autocommit = alone
        connection.cursor().execute(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
    except errors.InsufficientPrivilege:
        return True
    except errors.Error:
        return False
    finally:
        connection.rollback()
        connection.driver_connection.autocommit = False
        connection.close()
    return False


_TABLES = text("""
SELECT c.relname, c.relkind IN ('v', 'm') AS view, array_agg(a.attname::text ORDER BY a.attnum) AS columns
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
GROUP BY c.relname, c.relkind ORDER BY c.relname
""")


def statements_on(table: str, columns: list[str]) -> dict[str, str]:
    """By letter of `EXPECTED`, a statement that needs that right on the whole table, and changes nothing."""
    defaults = ", ".join(f"{sql.Identifier(one).as_string(None)} = DEFAULT" for one in columns)
    return {
        "S": f"SELECT * FROM {table} LIMIT 0",
        "I": f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT (NULL::{table}).* WHERE false",
        "U": f"UPDATE {table} SET {defaults} WHERE false",
        "D": f"DELETE FROM {table} WHERE false",
    }


_ON_SOME = text("SELECT has_any_column_privilege(:role, :table, :privilege)")
_PRIVILEGES = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE"}


def found(owner: Engine, role: Engine, table: str, view: bool, columns: list[str]) -> str:
    """What `EXPECTED` would have for a role and table, from statements that are tried."""
    letters = ""
    with owner.connect() as connection:
        for letter, statement in statements_on(table, columns).items():
            asked = {"role": role.url.username, "table": table, "privilege": _PRIVILEGES[letter]}
            on_some = letter != "D" and connection.execute(_ON_SOME, asked).scalar_one()
            if view and letter != "S":  # Postgres refuses to change these views before it looks at rights
                letters += letter if on_some else ""
            elif not is_refused(role, statement):
                letters += letter
            elif on_some:
                letters += letter.lower()
    return letters or "-"


def test_each_role_may_do_with_each_table_what_the_table_says_and_no_more(
    engine: Engine, by_role: Mapping[str, Engine]
) -> None:
    with engine.connect() as connection:
        tables = connection.execute(_TABLES).all()
    actual = {
        one.relname: {role: found(engine, by_role[role], one.relname, one.view, one.columns) for role in ROLES}
        for one in tables
    }
    assert actual == EXPECTED


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reaches_what_is_the_owners_or_the_servers(
    engine: Engine, by_role: Mapping[str, Engine], role: str
) -> None:
    names = {"owner": engine.url.username, "database": engine.url.database}
    tables = [table for table in EXPECTED if not table.startswith("v_")]
    tried = [
        statement.format(table=table, **names)
        for statement in FORBIDDEN
        for table in (tables if "{table}" in statement else [""])
    ]
    if role in ("reader", HOST):
        tried += ["CREATE TEMPORARY TABLE mine (id int)"]
    assert [
        statement for statement in tried if not is_refused(by_role[role], statement, alone=statement.startswith(_ALONE))
    ] == []


def test_no_role_but_the_web_reads_the_hashes_of_tokens(by_role: Mapping[str, Engine]) -> None:
    refused = {role: is_refused(under, "SELECT sha256 FROM tokens") for role, under in by_role.items()}
    assert refused == {"application": True, "web": False, "trainer": True, "reader": True, HOST: True}


def test_whoever_is_in_the_web_server_makes_no_token_and_no_kernel(by_role: Mapping[str, Engine]) -> None:
    attacks = (
        "INSERT INTO tokens (name, role, sha256, created_by) VALUES ('mine', 'operate', '', 'me')",
        "UPDATE tokens SET role = 'operate'",
        "UPDATE tokens SET revoked_at = NULL",
        "UPDATE tokens SET sha256 = ''",
        "INSERT INTO kernel_code (hash, code) VALUES ('mine', '')",
        "UPDATE kernels SET record = '{}', signature = ''",
        "UPDATE measurements SET runtime_ms = 1",
        "UPDATE leadership SET term = term + 1",
    )
    assert [attack for attack in attacks if not is_refused(by_role["web"], attack)] == []


def test_each_role_may_call_only_its_functions_that_work_with_their_owners_rights(
    engine: Engine, by_role: Mapping[str, Engine]
) -> None:
    statement = text("""
        SELECT proname FROM pg_proc
        WHERE prosecdef AND pronamespace = 'public'::regnamespace AND has_function_privilege(:role, oid, 'EXECUTE') ORDER BY 1
    """)
    with engine.connect() as connection:
        found = {
            name: list(connection.execute(statement, {"role": role.url.username}).scalars())
            for name, role in by_role.items()
        }
    announcing = ["program_announce", "program_leave"]
    allowed = {
        "application": ["end_long_worker_transactions", *announcing],
        "web": announcing,
        "trainer": announcing,
        HOST: sorted(FUNCTIONS),
    }
    assert found == {role: allowed.get(role, []) for role in by_role}


def test_nobody_who_logs_in_from_elsewhere_is_a_superuser(engine: Engine, by_role: Mapping[str, Engine]) -> None:
    statement = text("""
        SELECT rolname FROM pg_roles WHERE rolcanlogin AND rolname <> :superuser
          AND (rolsuper OR rolreplication OR rolbypassrls)
    """)
    with engine.connect() as connection:
        assert connection.execute(statement, {"superuser": SUPERUSER}).scalars().all() == []
    superuser = make_engine(
        engine.url.set(username=SUPERUSER, password=PASSWORDS[SUPERUSER]).render_as_string(hide_password=False),
        application="test",
        pool_size=1,
    )
    rules = text("SELECT type, user_name, auth_method FROM pg_hba_file_rules WHERE error IS NULL ORDER BY rule_number")
    with superuser.connect() as connection:
        first = connection.execute(rules).first()
    superuser.dispose()
    assert tuple(first or ()) == ("host", [SUPERUSER], "reject")


def test_mlflow_and_the_farm_do_not_reach_each_others_databases(engine: Engine, by_role: Mapping[str, Engine]) -> None:
    at = engine.url.set(username="mlflow", password=PASSWORDS["mlflow"])
    outside = [at, *(one.url.set(database="mlflow") for one in by_role.values()), engine.url.set(database="mlflow")]
    for url in outside:
        tried = make_engine(url.render_as_string(hide_password=False), application="test", pool_size=1)
        with pytest.raises(OperationalError, match="permission denied for database"), tried.connect():
            pass
        tried.dispose()


def test_the_documented_table_is_this_one() -> None:
    lines = [
        f"| table or view | {' | '.join(f'`{name}`' for name in NAMES.values())} |",
        "| --- " * (1 + len(NAMES)) + "|",
    ]
    lines += [f"| `{table}` | {' | '.join(of[role] for role in ROLES)} |" for table, of in EXPECTED.items()]
    document = Path(farm.__file__).parent.parent / "docs" / "security.md"
    assert "\n".join(lines) in document.read_text()
