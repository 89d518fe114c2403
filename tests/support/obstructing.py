"""What keeps a farm from moving: a database that takes no writes, and sessions that hold locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from sqlalchemy import Engine, make_url


@contextmanager
def read_only(engine: Engine) -> Iterator[None]:
    """Every session of the farm finds a database that takes no writes, as after a failover to a standby."""
    switch = "ALTER DATABASE {} SET default_transaction_read_only = {}"
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    writing = engine.execution_options(isolation_level="AUTOCOMMIT")

    def turn(to: str) -> None:
        with writing.connect() as connection:
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            connection.exec_driver_sql(switch.format(engine.url.database, to))
            connection.exec_driver_sql(others)

    turn("on")
    try:
        yield
    finally:
        turn("off")
        engine.dispose()


@contextmanager
def foreign(engine: Engine, *statements: str) -> Iterator[int]:
    """A session of somebody else's that ran these in a transaction and stands still; the pid of its server process."""
    url = make_url(engine.url.render_as_string(hide_password=False)).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), application_name="psql") as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection.info.backend_pid
        with suppress(psycopg.Error):  # somebody may have ended it
            connection.rollback()
