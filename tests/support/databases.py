"""Databases for tests: empty ones, and copies of one that was migrated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.errors import InsufficientPrivilege, ObjectInUse
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from farm.db import migrate
from farm.db.engine import make_engine
from farm.services import ServiceUrls


@contextmanager
def database(server: ServiceUrls, *, migrated: bool) -> Iterator[str]:
    """The URL of a new database, which is dropped after the block, whoever is connected."""
    name = f"test_{uuid.uuid4().hex}"
    engine = make_engine(server.database_url, application="tests", pool_size=1)
    outside_transactions = engine.execution_options(isolation_level="AUTOCOMMIT")
    try:
        if migrated:
            _copy_migrated(outside_transactions, name)
        else:
            _execute(outside_transactions, f"CREATE DATABASE {name} STRATEGY FILE_COPY")
        yield _url(engine, name)
        _drop(outside_transactions, name)
    finally:
        engine.dispose()


def _copy_migrated(engine: Engine, name: str) -> None:
    """Migrations take as long as many a test: a server carries them out once."""
    with engine.connect() as connection:
        there = connection.execute(text("SELECT count(*) FROM pg_database WHERE datname = 'migrated'")).scalar_one()
    if not there:
        _execute(engine, f"CREATE DATABASE {name} STRATEGY FILE_COPY")
        made = make_engine(_url(engine, name), application="tests", pool_size=1)
        migrate.upgrade(made)
        made.dispose()
        _execute(engine, f"ALTER DATABASE {name} RENAME TO migrated")
    _execute(engine, f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY FILE_COPY")


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
