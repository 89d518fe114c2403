"""A worker host that somebody took over: limits on the disk, the sessions and the locks of its login."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import sql
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from farm.db import migrate, roles, worker_logins
from farm.db.engine import make_engine
from farm.db.roles import SESSIONS_OF_HOST
from support.homes import eventually
from support.worker_hosts import MINE, THEIRS, Hosts, denied, is_denied, under, value


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
