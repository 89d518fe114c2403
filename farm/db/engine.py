"""One way to reach Postgres: the engine, transactions on it, and whose fault its errors are."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from enum import Enum

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError

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


class Fault(Enum):
    """Whose fault an error of the database is, and so what is done about it."""

    UNREACHABLE = "the database does not answer"
    """No statement works: the connection is gone, the server starts or ends, or has no connection left."""

    HELD = "another session is in the way"
    """This transaction gave way to another one's lock. The same may work at once."""

    UNAVAILABLE = "the database cannot do this now"
    """It answers, and is read-only, out of disk, memory or time. The same may work later."""

    ROW = "the database refuses these values"
    """What was to be stored is at fault: a value that a column, or a constraint, does not take."""

    FARM = "the farm and its database do not fit together"
    """A defect of the farm, or of how it is set up: a right, table or column that is missing."""

    @property
    def passes(self) -> bool:
        """Whether the same may work later, without anybody changing the farm or what it stores."""
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
"""By SQLSTATE or how it begins; the longest that fits. All others are `Fault.FARM`."""


def fault_of(error: BaseException) -> Fault:
    """Whose fault an error of the database is, by its SQLSTATE. What is no error of the database is the farm's."""
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


class FaultLog:
    """Logs an error of the database once, and again when its cause changes. Used from one thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: tuple[Fault, str] | None = None

    def fails(self, error: BaseException, then: str, **ids: int) -> None:
        """Logs the error and `then`, what is done about it, unless the last error had the same cause."""
        fault, why = fault_of(error), first_line(getattr(error, "orig", None) or error)
        cause = fault, getattr(getattr(error, "orig", None), "sqlstate", None) or type(error).__name__
        if cause == self._said:
            return
        self._said = cause
        hint = "" if fault is not Fault.FARM else f". {_WHAT_TO_DO}"
        self._log.log(
            logging.WARNING if fault.passes else logging.ERROR, "%s (%s); %s%s", fault.value, why, then, hint, extra=ids
        )

    def works(self) -> None:
        """Logs that the database works again, where it did not."""
        if self._said is not None:
            self._said = None
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
        # For connections that are made past this engine: see `farm.db.arrow_columns.read`.
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


def sqlalchemy_url(url: str) -> str:
    """Names the driver in a Postgres URL as people write it. Raises `BadServiceUrl` for anything else."""
    scheme, _, rest = url.partition("://")
    scheme = scheme if re.fullmatch(r"[a-z0-9+]{1,30}", scheme) else ""  # else it may be anything, a password too
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg") or not rest:
        raise BadServiceUrl(
            variable="FARM_DATABASE_URL", url=f"{scheme}://…", why="write postgresql://user:password@host:5432/database"
        )
    return f"postgresql+psycopg://{rest}"
