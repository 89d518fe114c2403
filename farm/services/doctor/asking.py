"""How a check of `farm doctor` reaches the database, which it never starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from farm.db.engine import make_engine
from farm.errors import FarmError, WrongRevision
from farm.services import urls
from farm.services.doctor.check import Check, CheckState
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.settings import Settings

T = TypeVar("T")


def asked(settings: Settings, name: str, ask: Callable[[Connection], T], *, idle: str) -> T | Check:
    """What the database answers. The check of that name where it cannot be asked; `idle` is what an embedded one that does
    not run means for it."""
    from farm.db import migrate

    try:
        with database(settings) as engine:
            if engine is None:
                return Check(name, CheckState.OK, f"{idle}: the embedded database does not run")
            try:
                migrate.require_for_service(engine)
            except WrongRevision:
                return Check(name, CheckState.WARNING, "the database is of another revision", "see revision")
            with engine.connect() as connection:
                return ask(connection)
    except (FarmError, SQLAlchemyError):
        return Check(name, CheckState.WARNING, "the database cannot be queried", "see database")


@contextmanager
def database(settings: Settings) -> Iterator[Engine | None]:
    """An engine on the database, or None for an embedded one that does not run."""
    if settings.database_url is not None:
        url = urls.database_url(settings.database_url.get_secret_value())
    elif (postgres := EmbeddedPostgres(Home.of(settings))).running():
        url = postgres.url
    else:
        yield None
        return
    engine = make_engine(url, application="farm doctor", pool_size=1)
    try:
        yield engine
    finally:
        engine.dispose()
