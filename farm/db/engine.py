"""One way to reach Postgres: the engine, and transactions on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from farm.errors import BadServiceUrl, DatabaseUnreachable


def make_engine(url: str, *, application: str, pool_size: int = 5) -> Engine:
    """An engine on a `postgresql+psycopg://` URL. Nothing connects until it is used.

    `application` is what `pg_stat_activity` shows for its connections.
    """
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=5,
        pool_pre_ping=True,
        connect_args={"application_name": application, "connect_timeout": 10, "options": "-c timezone=UTC"},
    )


def check_reachable(engine: Engine) -> None:
    """Raises `DatabaseUnreachable`, without the password, where no connection can be made."""
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except OperationalError as error:
        why = str(error.orig).strip().splitlines()[0]
        raise DatabaseUnreachable(url=engine.url.render_as_string(hide_password=True), why=why) from None


@contextmanager
def quick_commit(connection: Connection) -> Iterator[None]:
    """Statements whose loss in a power cut does no harm: their commit does not wait for the disk."""
    connection.execute(text("SET LOCAL synchronous_commit TO off"))
    yield


def libpq_url(url: str) -> str:
    """The same URL for programs that do not know SQLAlchemy's `+psycopg`."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def sqlalchemy_url(url: str) -> str:
    """Names the driver in a Postgres URL as people write it. Raises `BadServiceUrl` for anything else."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg") or not rest:
        raise BadServiceUrl(
            variable="FARM_DATABASE_URL", url=f"{scheme}://…", why="write postgresql://user:password@host:5432/database"
        )
    return f"postgresql+psycopg://{rest}"
