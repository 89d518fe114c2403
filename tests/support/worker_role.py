"""Fixtures of a server whose roles have passwords, and of the workers' role on it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, make_url, text

from farm.db import roles
from farm.db.engine import make_engine
from farm.db.roles import set_up_worker_role
from farm.services import ServiceUrls, postgres
from support.servers import WITH_PASSWORDS, own_services

PASSWORD = "a/pass%word:of'workers"


@pytest.fixture(scope="module")
def farm_services() -> Iterator[ServiceUrls]:
    """Servers as a fleet shares them: every role may log in with its password, and the farm's may create roles."""
    with own_services(
        hba=WITH_PASSWORDS, create=postgres._CREATE.replace(" CREATEDB ", " CREATEDB CREATEROLE ")
    ) as urls:
        yield urls


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    """A name for the role, which is removed after the test: roles belong to the server, not to a database."""
    made = f"worker_{uuid.uuid4().hex[:8]}"
    yield made
    remove(engine, made)


def remove(engine: Engine, role: str) -> None:
    with engine.begin() as connection:
        if roles.exists(connection, role):
            connection.execute(text(f"GRANT {role} TO current_user"))
            connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"))
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


@pytest.fixture
def url(engine: Engine, name: str, database_url: str) -> str:
    """The database's URL under the workers' role."""
    with engine.begin() as connection:
        set_up_worker_role(connection, name, password=PASSWORD)
    return make_url(database_url).set(username=name, password=PASSWORD).render_as_string(hide_password=False)


@pytest.fixture
def worker(url: str) -> Iterator[Engine]:
    made = make_engine(url, application="test", pool_size=1)
    yield made
    made.dispose()
