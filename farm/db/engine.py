"""One way to reach Postgres: the engine, and transactions on it."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from farm.errors import BadServiceUrl, DatabaseUnreachable


def make_engine(url: str, *, application: str, pool_size: int = 5, hasty: bool = False) -> Engine:
    """An engine on a `postgresql+psycopg://` URL. Nothing connects until it is used.

    `application` is what `pg_stat_activity` shows for its connections. A `hasty` engine commits each statement by
    itself and does not wait for the disk: one round trip, for what may be lost in a power cut.
    """
    options = "-c timezone=UTC" + (" -c synchronous_commit=off" if hasty else "")
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=5,
        pool_pre_ping=True,
        connect_args={"application_name": application, "connect_timeout": 10, "options": options},
        **({"isolation_level": "AUTOCOMMIT"} if hasty else {}),
    )


def check_reachable(engine: Engine) -> None:
    """Raises `DatabaseUnreachable`, without the password, where no connection can be made."""
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except OperationalError as error:
        why = str(error.orig).strip().splitlines()[0]
        raise DatabaseUnreachable(url=engine.url.render_as_string(hide_password=True), why=why) from None


def sqlalchemy_url(url: str) -> str:
    """Names the driver in a Postgres URL as people write it. Raises `BadServiceUrl` for anything else."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg") or not rest:
        raise BadServiceUrl(
            variable="FARM_DATABASE_URL", url=f"{scheme}://…", why="write postgresql://user:password@host:5432/database"
        )
    return f"postgresql+psycopg://{rest}"
