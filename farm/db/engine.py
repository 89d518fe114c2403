"""One way to reach Postgres: the engine, and transactions on it."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg.errors import IdleInTransactionSessionTimeout, LockNotAvailable
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from farm.errors import BadServiceUrl, DatabaseUnreachable, first_line

_NOTICE_SILENCE: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}
"""A host that is gone without a word is noticed within half a minute, not within hours."""

PROMPT: Mapping[str, int] = {
    "connect_timeout": 3,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 4_000,  # ms
}
"""For the coordinator: it must notice within its term that the database is out of reach."""


_ENDED_WHEN_CUT_OFF = {
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "5s",
    "client_connection_check_interval": "2s",
}
"""Postgres ends a session within some 9 s, and with it its locks, when the client's host is out of reach: one that is idle, one
that is sending, and one in the middle of a statement."""

THINKING_SECONDS = 300
"""How long a person's program may think between two statements of a transaction. Reports and comparisons read in one
snapshot, for minutes at a million rows."""

DURABLE: Mapping[str, str] = {
    **_ENDED_WHEN_CUT_OFF,
    "idle_in_transaction_session_timeout": f"{THINKING_SECONDS}s",
}
"""For the programs of people, trainers and builders. A commit is on disk when it returns."""

FROZEN_SECONDS = 5
"""A process that stands still in the middle of a transaction (stopped, swapped out, its host suspended) holds its locks.
Workers and coordinators never think that long between two statements: then Postgres ends their session."""

HASTY = {"synchronous_commit": "off", "idle_in_transaction_session_timeout": f"{FROZEN_SECONDS}s"}
"""A commit does not wait for the disk: for what may be undone by a power cut, though never out of order."""

MEASURING = {**HASTY, **_ENDED_WHEN_CUT_OFF, "lock_timeout": "2s"}
"""For the processes of a device. What they cannot lock in time is tried again: see `workers.runner`."""

ANNOUNCING = {**DURABLE, "idle_in_transaction_session_timeout": f"{FROZEN_SECONDS}s", "lock_timeout": "5s"}
"""For `farm-worker`, which announces devices and tries again at its next look."""

LEADING = {**HASTY, **_ENDED_WHEN_CUT_OFF, "statement_timeout": "3s"}
"""For the session in which a coordinator takes and renews its term."""

DISPATCHING = {
    **HASTY,
    **_ENDED_WHEN_CUT_OFF,
    "statement_timeout": "5min",
    "lock_timeout": "1s",
    "enable_bitmapscan": "off",
}
"""For the coordinator: it reads the front of long indexes, where a bitmap would read all of it, and where only a plain
index scan remembers which entries are dead. What it cannot lock it leaves for another turn."""

HOLDING_SECONDS = 10
"""How long a person's program may stand still while it holds what the coordinator and workers need."""


ASKING_SECONDS = 30
"""How long a statement may take where people ask over HTTP: one that nobody waits for any more must not go on for ever."""

ASKING = {
    **_ENDED_WHEN_CUT_OFF,
    "statement_timeout": f"{ASKING_SECONDS}s",
    "idle_in_transaction_session_timeout": "60s",
}
"""For requests over HTTP."""


def take_time(connection: Connection) -> None:
    """A change that may rightly take minutes: no statement of this transaction is ended for how long it takes."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))


def hold_briefly(connection: Connection) -> None:
    """From now on Postgres ends the session where this transaction stands still for `HOLDING_SECONDS`.

    Called before a transaction takes locks that the coordinator and workers need, and after all that takes long.
    """
    connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{HOLDING_SECONDS}s'"))


def is_held(error: BaseException) -> bool:
    """Whether a statement gave up because another session holds a lock that it needs."""
    return isinstance(error, DBAPIError) and isinstance(error.orig, LockNotAvailable)


def out_of_reach(error: DBAPIError) -> bool:
    """Whether the database could not be asked, as opposed to an error with which it answered."""
    if isinstance(error.orig, IdleInTransactionSessionTimeout):
        return False  # it answers: this transaction stood still
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or state is None or state.startswith(("08", "57P", "53300"))


def make_engine(
    url: str,
    *,
    application: str,
    pool_size: int = 5,
    session: Mapping[str, str] = DURABLE,
    client: Mapping[str, int] = _NOTICE_SILENCE,
    pre_ping: bool = True,
) -> Engine:
    """An engine on a `postgresql+psycopg://` URL. Nothing connects until it is used.

    `application` is what `pg_stat_activity` shows for its connections; `session` are settings of each of them, and
    `client` libpq's own. Without `pre_ping` the caller tries again itself where a connection of the pool turns out to be broken.
    """
    options = " ".join(f"-c {name}={value}" for name, value in {"timezone": "UTC", **session}.items())
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=5,
        pool_pre_ping=pre_ping,
        # For connections that are made past this engine: see `farm.db.columns.read`.
        execution_options={"session": dict(session)},
        connect_args={"application_name": application, "options": options, **client},
    )


def check_reachable(engine: Engine) -> None:
    """Raises `DatabaseUnreachable`, without the password, where no connection can be made."""
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except OperationalError as error:
        why = first_line(error.orig)
        shown = engine.url.difference_update_query(["password", "sslpassword"])  # only the one before the @ is hidden
        raise DatabaseUnreachable(url=shown.render_as_string(hide_password=True), why=why) from None


def unanswered(error: DBAPIError) -> bool:
    """Whether the database did not answer, or ended the session: the same may work on another connection."""
    return isinstance(error, (OperationalError, InterfaceError)) or isinstance(
        error.orig, IdleInTransactionSessionTimeout
    )


def sqlalchemy_url(url: str) -> str:
    """Names the driver in a Postgres URL as people write it. Raises `BadServiceUrl` for anything else."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg") or not rest:
        raise BadServiceUrl(
            variable="FARM_DATABASE_URL", url=f"{scheme}://…", why="write postgresql://user:password@host:5432/database"
        )
    return f"postgresql+psycopg://{rest}"
