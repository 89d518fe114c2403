"""Fixtures of every test that needs a service: real Postgres and Redis, from the wheels, in a folder of their own."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support")
from support import environment  # noqa: F401 - first: others read the environment when they are imported

# isort: split

import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import redis
from psycopg.errors import InsufficientPrivilege, ObjectInUse
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from farm.db import migrate, probation
from farm.db.batches import ending
from farm.db.engine import make_engine
from farm.registry import registry_client
from farm.services import ServiceUrls, services
from farm.services.binaries import redis_server
from farm.services.cluster import remove_cluster
from farm.services.home import Home
from support.homes import embedded_settings, eventually, need_embedded_services
from support.programs import free_port, redis_answers

hypothesis.settings.register_profile("patient", deadline=None)  # a busy machine is no error
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed jobs and failed trials are tried again at once, by what runs in this process."""
    monkeypatch.setattr(ending, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(probation, "TRIAL_SECONDS", 0.0)


@pytest.fixture(scope="session")
def farm_services() -> Iterator[ServiceUrls]:
    """Postgres and Redis for the whole session. The folder is short, and open to the account that Postgres runs as."""
    need_embedded_services()
    folder = Path(tempfile.mkdtemp(prefix="farm-", dir="/tmp"))
    folder.chmod(0o755)
    farm_settings = embedded_settings(folder / ".farm")
    try:
        with services(farm_settings, broker=True) as urls:
            yield urls
    finally:
        remove_cluster(Home.of(farm_settings))
        shutil.rmtree(folder)


@pytest.fixture
def redis_port() -> int:
    return free_port()


@pytest.fixture
def broker(redis_port: int, tmp_path: Path) -> Iterator[redis.Redis]:
    """A Redis of the test's own."""
    listening = ["--port", str(redis_port), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--save", ""]
    process = subprocess.Popen([str(redis_server()), *listening], stdout=subprocess.DEVNULL)
    with redis.Redis(port=redis_port) as client:
        eventually(lambda: redis_answers(client))
        yield client
    process.kill()
    process.wait()


@pytest.fixture
def database_url(request: pytest.FixtureRequest, farm_services: ServiceUrls) -> Iterator[str]:
    """A database for one test: with the farm's tables where the test has an `engine`, and empty where it has none.

    Connections that the test leaves open are ended.
    """
    name = f"test_{uuid.uuid4().hex}"
    engine = make_engine(farm_services.database_url, application="tests", pool_size=1)
    outside_transactions = engine.execution_options(isolation_level="AUTOCOMMIT")
    try:
        if "engine" in request.fixturenames:
            _copy_migrated(outside_transactions, name)
        else:
            _execute(outside_transactions, f"CREATE DATABASE {name}")
        yield _url(engine, name)
        _drop(outside_transactions, name)
    finally:
        engine.dispose()


def _copy_migrated(engine: Engine, name: str) -> None:
    """Migrations take as long as many a test: a server carries them out once."""
    with engine.connect() as connection:
        there = connection.execute(text("SELECT count(*) FROM pg_database WHERE datname = 'migrated'")).scalar_one()
    if not there:
        _execute(engine, f"CREATE DATABASE {name}")
        made = make_engine(_url(engine, name), application="tests", pool_size=1)
        migrate.upgrade(made)
        made.dispose()
        _execute(engine, f"ALTER DATABASE {name} RENAME TO migrated")
    _execute(engine, f"CREATE DATABASE {name} TEMPLATE migrated")


def _url(engine: Engine, name: str) -> str:
    return engine.url.set(database=name).render_as_string(hide_password=False)


def _execute(engine: Engine, statement: str) -> None:
    """Where somebody is still in a database that it needs for itself, as autovacuum for a moment, it is tried again."""
    give_up = time.monotonic() + 30
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
            return
        except OperationalError as error:
            if not isinstance(error.orig, ObjectInUse) or time.monotonic() > give_up:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def new_registry(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Makes a registry without models in a folder; its URI. MLflow takes seconds to make one, and a copy does as well."""
    file = tmp_path_factory.mktemp("registry") / "mlflow.db"
    with registry_client(f"sqlite:///{file}") as client:
        client.search_registered_models()

    def made(folder: Path) -> str:
        shutil.copy(file, folder / "mlflow.db")
        return f"sqlite:///{folder / 'mlflow.db'}"

    return made


def _drop(engine: Engine, name: str) -> None:
    """Drops it, whoever is connected. Autovacuum may be at work in it for a moment, which only a superuser may end."""
    give_up = time.monotonic() + 30
    while True:
        try:
            _execute(engine, f"DROP DATABASE {name} WITH (FORCE)")
            return
        except ProgrammingError as error:
            if not isinstance(error.orig, InsufficientPrivilege) or time.monotonic() > give_up:
                raise
            time.sleep(0.1)
