"""A farm at the last revision from before the first one goes on with this version; an older one learns the way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.db import batches, campaigns, migrate, worker_logins
from farm.db.engine import make_engine
from farm.errors import DatabaseIsNewer, DatabaseTooOld
from farm.services import ServiceUrls
from support import old_database
from support.commands import called
from support.homes import environment
from support.samples import row
from support.shared_server import server_of_the_owner


@pytest.fixture(scope="module")
def farm_services() -> Iterator[ServiceUrls]:
    with server_of_the_owner() as urls:
        engine = make_engine(urls.database_url, application="tests", pool_size=1)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {old_database.LOGIN} LOGIN")
        yield urls
        engine.dispose()


@pytest.fixture
def old(database_url: str) -> Iterator[Engine]:
    """The database of `old_database`, which nobody upgraded yet."""
    engine = make_engine(database_url, application="test", pool_size=2)
    old_database.load(engine)
    yield engine
    engine.dispose()


def farm_db(home: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return called(("db", *words), home, environment(home, FARM_DATABASE_URL=url))


def test_its_rows_stay_and_its_workers_go_on_with_their_logins(old: Engine, database_url: str, tmp_path: Path) -> None:
    upgraded = farm_db(tmp_path, database_url, "upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    assert farm_db(tmp_path, database_url, "check").returncode == 0
    migrate.require_for_worker(old)
    assert migrate.served_from(old, migrate.WORKERS) == "0035"
    with old.begin() as connection:
        states = campaigns.counts(connection, 1)
        assert {state: n for state, n in states.items() if n} == {"pending": 2, "queued": 4, "done": 6}
        assert connection.execute(text("SELECT count(*) FROM v_measurements")).scalar_one() == 6
        assert connection.execute(text("SELECT message FROM failures")).scalar_one() == "a hiccup"
        connection.exec_driver_sql(f"ALTER ROLE {old_database.LOGIN} PASSWORD 'worker'")
    login = old.url.set(username=old_database.LOGIN, password="worker").render_as_string(hide_password=False)
    worker = make_engine(login, application="test", pool_size=1)
    with worker.begin() as connection:
        lease = batches.claim(connection, 2, device_id=1, lease_seconds=60)
        assert lease is not None
        batches.land(connection, lease, [(job, row()) for job in lease.jobs], {})
    worker.dispose()
    with old.begin() as connection:
        assert campaigns.counts(connection, 1)["done"] == 10


def test_its_schema_becomes_that_of_a_new_database(
    old: Engine, database_url: str, farm_services: ServiceUrls, tmp_path: Path
) -> None:
    """With storage parameters, comments, rights and the order of columns."""
    migrate.upgrade(old)
    owner = make_engine(farm_services.database_url, application="tests", pool_size=1)
    outside_transactions = owner.execution_options(isolation_level="AUTOCOMMIT")
    with outside_transactions.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE new")
    url = owner.url.set(database="new").render_as_string(hide_password=False)
    new = make_engine(url, application="test", pool_size=1)
    migrate.upgrade(new)
    for engine in (old, new):
        with engine.begin() as connection:
            worker_logins.add(connection, "here", password=None)  # the rights of this version
    assert old_database.dump(database_url, "--schema-only") == old_database.dump(url, "--schema-only")
    new.dispose()
    with outside_transactions.connect() as connection:
        connection.exec_driver_sql("DROP DATABASE new")
    owner.dispose()


@pytest.mark.parametrize(
    ("revision", "error", "says"),
    [
        ("0024", DatabaseTooOld, f"with the farm of commit {migrate.LAST_BEFORE_FIRST}"),
        ("9999", DatabaseIsNewer, "Install the newer version"),
    ],
)
def test_a_revision_without_a_way_to_this_version_is_refused_and_stays(
    old: Engine, database_url: str, tmp_path: Path, revision: str, error: type[Exception], says: str
) -> None:
    with old.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    refused = farm_db(tmp_path, database_url, "upgrade")
    assert (refused.returncode, "Traceback" in refused.stderr) == (5, False)
    message = " ".join(refused.stderr.split())
    assert f"at revision {revision}" in message
    assert says in message
    assert migrate.current(old) == revision
    with pytest.raises(error):
        migrate.require_head(old)
