"""Connections to Postgres: engines, session settings, and the classification of errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from enum import Enum

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError

from farm.errors import (
    BadInput,
    BadServiceUrl,
    DatabaseUnreachable,
    FarmError,
    RightMissing,
    ServiceUnavailable,
    first_line,
)

_NOTICE_SILENCE: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}
"""A host that disappears is noticed within half a minute instead of hours."""

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
"""Postgres ends a session and its locks within about 9 s if the client's host cannot be reached, also during a statement."""

THINKING_SECONDS = 300
"""Maximum pause between two statements of a transaction in a person's program. Reports read in one snapshot for minutes."""

DURABLE: Mapping[str, str] = {
    **_ENDED_WHEN_CUT_OFF,
    "idle_in_transaction_session_timeout": f"{THINKING_SECONDS}s",
}
"""For the programs of people, trainers and builders. A commit is on disk when it returns."""

FROZEN_SECONDS = 5
"""Maximum pause between two statements of a transaction in workers and coordinators. A process that is stopped or suspended
holds its locks. After this time, Postgres ends its session."""

HASTY = {"synchronous_commit": "off", "idle_in_transaction_session_timeout": f"{FROZEN_SECONDS}s"}
"""Commits do not wait for the disk. A power cut can undo them, in order."""

MEASURING = {**HASTY, **_ENDED_WHEN_CUT_OFF, "lock_timeout": "2s"}
"""For the processes of a device. They try again after a lock timeout: see `workers.runner`."""

ANNOUNCING = {**DURABLE, "idle_in_transaction_session_timeout": f"{FROZEN_SECONDS}s", "lock_timeout": "5s"}
"""For `farm-worker`, which announces devices and tries again at its next check."""

LEADING = {**HASTY, **_ENDED_WHEN_CUT_OFF, "statement_timeout": "3s"}
"""For the session that takes and renews a coordinator's term."""

DISPATCHING = {
    **HASTY,
    **_ENDED_WHEN_CUT_OFF,
    "statement_timeout": "5min",
    "lock_timeout": "1s",
    "enable_bitmapscan": "off",
}
"""For the coordinator. It reads the front of long indexes. A bitmap scan would read all of an index, and only a plain index
scan marks dead entries. It skips what it cannot lock until a later turn."""

HOLDING_SECONDS = 10
"""Maximum pause of a person's program while it holds locks that coordinator and workers need."""


ASKING_SECONDS = 30
"""Statement timeout for HTTP requests. The client of a longer statement has given up."""

ASKING = {
    **_ENDED_WHEN_CUT_OFF,
    "statement_timeout": f"{ASKING_SECONDS}s",
    "idle_in_transaction_session_timeout": "60s",
}
"""For requests over HTTP."""


def take_time(connection: Connection) -> None:
    """Removes the statement timeout for this transaction, which may take minutes."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))


def hold_briefly(connection: Connection) -> None:
    """Lets Postgres end the session if this transaction pauses for `HOLDING_SECONDS`.

    Call it after the slow part of a transaction, before it takes locks that coordinator and workers need.
    """
    connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{HOLDING_SECONDS}s'"))


class Fault(Enum):
    """The cause of a database error, which decides how it is handled."""

    UNREACHABLE = "the database does not answer"
    """No statement works: the connection is gone, the server starts or ends, or has no connection left."""

    HELD = "another session is in the way"
    """Another transaction holds a lock. A retry may work at once."""

    UNAVAILABLE = "the database cannot do this now"
    """The database is read-only, or out of disk, memory or time. A retry may work later."""

    ROW = "the database refuses these values"
    """A value violates the type of a column or a constraint."""

    FARM = "the farm and its database do not fit together"
    """A defect of the farm or its setup, such as a missing right, table or column."""

    @property
    def passes(self) -> bool:
        """Whether a retry may work without a change of the farm or the values."""
        return self in (Fault.UNREACHABLE, Fault.HELD, Fault.UNAVAILABLE)


_FAULTS: Mapping[str, Fault] = {
    "08": Fault.UNREACHABLE,  # connection exceptions
    "22": Fault.ROW,  # a value that cannot be stored or computed
    "23": Fault.ROW,  # a constraint
    "25006": Fault.UNAVAILABLE,  # read-only
    "25P03": Fault.UNAVAILABLE,  # this transaction stood still, and its session was ended
    "25P04": Fault.UNAVAILABLE,  # transaction_timeout
    "28": Fault.UNREACHABLE,  # the server does not let this user in
    "40": Fault.HELD,  # a deadlock, or another transaction came first
    "53": Fault.UNAVAILABLE,  # disk or memory is full
    "53300": Fault.UNREACHABLE,  # too many connections
    "55P03": Fault.HELD,  # lock_timeout
    "57014": Fault.UNAVAILABLE,  # statement_timeout
    "57P": Fault.UNREACHABLE,  # the server starts, ends or ended the session
    "58": Fault.UNAVAILABLE,  # the server's disk or operating system
}
"""By prefix of the SQLSTATE. The longest match counts. All others are `Fault.FARM`."""


def fault_of(error: BaseException) -> Fault:
    """Classifies an error by its SQLSTATE. An error that is not from the database is `Fault.FARM`."""
    if not isinstance(error, DBAPIError):
        return Fault.FARM
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        if error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)):
            return Fault.UNREACHABLE
        return Fault.ROW if isinstance(error, DataError) else Fault.FARM
    found = max((known for known in _FAULTS if state.startswith(known)), key=len, default=None)
    fault = Fault.FARM if found is None else _FAULTS[found]
    return Fault.UNREACHABLE if error.connection_invalidated and not fault.passes else fault


SILENT = "The database does not answer. Try again."


def refusal_of(error: DBAPIError) -> FarmError | None:
    """The error to report where the database refuses a right or a value, or cannot work now; None: a defect of the farm."""
    from psycopg.errors import InsufficientPrivilege, QueryCanceled  # programs without a database do not load psycopg

    if isinstance(error.orig, InsufficientPrivilege):
        return RightMissing(why=first_line(error.orig))
    if isinstance(error.orig, QueryCanceled):
        return ServiceUnavailable(detail=f"The database stopped a statement: {first_line(error.orig)}.")
    if isinstance(error, DataError):
        return BadInput(detail=f"The database cannot take a value: {first_line(error.orig)}.")
    return DatabaseUnreachable.received(SILENT) if fault_of(error).passes else None


class FaultLog:
    """Logs a database error once, and again when its cause changes. Not thread-safe."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last_cause: tuple[Fault, str] | None = None

    def fails(self, error: BaseException, then: str, **ids: int) -> None:
        """Logs the error and the next step (`then`), unless the last error had the same cause."""
        fault, why = fault_of(error), first_line(getattr(error, "orig", None) or error)
        cause = fault, getattr(getattr(error, "orig", None), "sqlstate", None) or type(error).__name__
        if cause == self._last_cause:
            return
        self._last_cause = cause
        hint = "" if fault is not Fault.FARM else f". {_WHAT_TO_DO}"
        self._log.log(
            logging.WARNING if fault.passes else logging.ERROR, "%s (%s); %s%s", fault.value, why, then, hint, extra=ids
        )

    def works(self) -> None:
        """Logs that the database works again after an error."""
        if self._last_cause is not None:
            self._last_cause = None
            self._log.info("the database works again")


_WHAT_TO_DO = "No job is blamed for it. `farm doctor` checks the database's revision, `farm db worker-role` grants a worker's rights again"


def make_engine(
    url: str,
    *,
    application: str,
    pool_size: int = 5,
    session: Mapping[str, str] = DURABLE,
    client: Mapping[str, int] = _NOTICE_SILENCE,
    pre_ping: bool = True,
) -> Engine:
    """Creates an engine for a `postgresql+psycopg://` URL. It connects when it is first used.

    Args:
        application: name of its connections in `pg_stat_activity`.
        session: settings of each connection.
        client: settings of libpq.
        pre_ping: test pooled connections before use. Without it, the caller handles broken connections.
    """
    options = " ".join(f"-c {name}={value}" for name, value in {"timezone": "UTC", **session}.items())
    arguments = {"application_name": application, "options": options, **client}
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=5,
        pool_pre_ping=pre_ping,
        # For connections that are made past this engine: see `farm.db.arrow_columns`.
        execution_options={"connect_args": arguments},
        connect_args=arguments,
    )


def check_reachable(engine: Engine) -> None:
    """Raises `DatabaseUnreachable`, without the password, if the database does not accept a connection."""
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except OperationalError as error:
        why = first_line(error.orig)
        shown = engine.url.difference_update_query(["password", "sslpassword"])  # only the one before the @ is hidden
        raise DatabaseUnreachable(url=shown.render_as_string(hide_password=True), why=why) from None


def sqlalchemy_url(url: str) -> str:
    """Adds the driver to a Postgres URL. Raises `BadServiceUrl` for any other URL."""
    scheme, _, rest = url.partition("://")
    scheme = scheme if re.fullmatch(r"[a-z0-9+]{1,30}", scheme) else ""  # else it may be anything, a password too
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg") or not rest:
        raise BadServiceUrl(
            variable="FARM_DATABASE_URL", url=f"{scheme}://…", why="write postgresql://user:password@host:5432/database"
        )
    return f"postgresql+psycopg://{rest}"
