"""Fixtures of every test that needs a service: real Postgres and Redis, from the wheels, in a folder of their own."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support")
from support import environment  # noqa: F401 - first: others read the environment when they are imported

# isort: split

import fcntl
import gc
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import redis

from farm.db import probation
from farm.db.batches import ending
from farm.registry import registry_client
from farm.services import ServiceUrls
from farm.services.server_binaries import redis_server
from support.databases import database
from support.homes import eventually
from support.programs import free_port, redis_answers
from support.servers import own_services
from support.shared_server import server_of_the_owner

# A busy machine is no error: neither an example nor drawing it has a time limit.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collects the tests without garbage collection, which was a quarter of the time: their objects all stay.

    Later collections do not look at these objects either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is `sampled`, all but one in n are long. Files with long tests come first.

    At the end, short ones keep all cores busy.
    """
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and zlib.crc32(item.name.encode()) % sampled.args[0]:
            item.add_marker(pytest.mark.long)
    long = {item.path for item in items if item.get_closest_marker("long") is not None}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed jobs and failed trials are tried again at once, by what runs in this process."""
    monkeypatch.setattr(ending, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(probation, "TRIAL_SECONDS", 0.0)


@pytest.fixture(scope="session")
def farm_services() -> Iterator[ServiceUrls]:
    """Postgres and Redis for the whole session."""
    with own_services() as urls:
        yield urls


@pytest.fixture(scope="session")
def services_of_the_owner() -> Iterator[ServiceUrls]:
    """A second Postgres and Redis for the whole session: those of `server_of_the_owner`."""
    with server_of_the_owner() as urls:
        yield urls


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
    with database(farm_services, migrated="engine" in request.fixturenames) as url:
        yield url


@pytest.fixture(scope="session")
def new_registry(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Makes a registry without models in a folder; its URI. MLflow takes seconds to make one, and a copy does as well.

    The processes of one test run copy the same one.
    """
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    file = folder / "registry.db"
    with (folder / "registry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            with registry_client(f"sqlite:///{own / 'registry-new.db'}") as client:
                client.search_registered_models()
            (own / "registry-new.db").rename(file)

    def made(folder: Path) -> str:
        shutil.copy(file, folder / "mlflow.db")
        return f"sqlite:///{folder / 'mlflow.db'}"

    return made
