"""Moves the embedded database of a home to a server, row by row, without a copy on disk.

No program may write to the old database meanwhile: the rows would be lost. So the move is the only user of the embedded server, as
its lock shows, and refuses sessions of programs that have its URL. Its tables are locked until the server has stopped. A note in the
home then refuses each later start of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from farm.backup import database
from farm.backup.errors import CannotMove, StillInUse
from farm.backup.restore import load_tables, require_empty
from farm.backup.tables import AS_FILES
from farm.db import audit, migrate
from farm.db.engine import check_reachable, make_engine
from farm.errors import ServiceInUse
from farm.services.cluster import find_cluster
from farm.services.home import Home
from farm.services.moved import note_move, require_not_moved
from farm.services.postgres import EmbeddedPostgres
from farm.services.urls import safe_url
from farm.services.usage import sole_use
from farm.settings import Settings

OPERATION = "move"
"""In the audit log of the new database: it came from the embedded one."""

LOCK_SECONDS = 5
"""How long to wait for transactions that write."""

_OTHERS = text("""
SELECT application_name || ' (process ' || pid || ')' FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY pid
""")


@dataclass(frozen=True, slots=True)
class Moved:
    """A move. `url` has no password."""

    url: str
    rows: dict[str, int]


def move(settings: Settings, target_url: str, *, report: Callable[[str], None] = lambda _: None) -> Moved:
    """Moves the embedded database to an empty one.

    Args:
        target_url: The SQLAlchemy URL of the new database.

    Raises:
        CannotMove: There is no embedded database to move.
        HomeMoved: It was moved before.
        StillInUse: Another program uses the database.
        TargetNotEmpty, RestoreDiffers, DatabaseUnreachable: The new database cannot be used.
        In each case nothing was changed.
    """
    if not settings.embedded_database:
        raise CannotMove(
            why="FARM_DATABASE_URL names a server. Unset it: farm move moves the embedded database of FARM_HOME."
        )
    home = Home.of(settings)
    cluster = find_cluster(home)
    if cluster is None or not cluster.data.is_dir():
        raise CannotMove(why=f"{home.path} has no embedded database. Set FARM_HOME to the home that has one.")
    require_not_moved(home)
    target = make_engine(target_url, application="farm move")
    try:
        check_reachable(target)
        with target.connect() as connection:
            require_empty(connection)
        with _alone(EmbeddedPostgres(home), home) as (postgres, source):
            rows = _copy(source, target, report)
            note_move(home, safe_url(target_url))
            postgres.stop()  # while its tables are locked
    finally:
        target.dispose()
    return Moved(safe_url(target_url), rows)


@contextmanager
def _alone(postgres: EmbeddedPostgres, home: Home) -> Iterator[tuple[EmbeddedPostgres, Connection]]:
    """The embedded server, started, and a snapshot of its database in which no other session can write."""
    try:
        with sole_use(postgres, home):
            engine = make_engine(postgres.url, application="farm move", pool_size=1)
            try:
                migrate.upgrade(engine)  # the embedded database belongs to this version
                with _locked(engine) as connection:
                    yield postgres, connection
            finally:
                engine.dispose()
    except ServiceInUse:
        raise StillInUse(who="a program of this home holds it") from None


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection]:
    connection = engine.connect().execution_options(isolation_level="REPEATABLE READ")
    try:
        connection.begin()
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        database.wait_long(connection)
        listed = ", ".join(_tables())
        try:
            connection.execute(text(f"LOCK TABLE {listed} IN SHARE MODE"))  # first: the snapshot is taken after it
        except OperationalError:
            raise StillInUse(who="a session writes to its tables") from None
        others = list(connection.execute(_OTHERS).scalars())
        if others:
            raise StillInUse(who=", ".join(others))
        yield connection
    finally:
        connection.invalidate()  # the server has stopped
        connection.close()


def _tables() -> list[str]:
    return [*database.kept_tables(), *AS_FILES]


def _copy(source: Connection, target: Engine, report: Callable[[str], None]) -> dict[str, int]:
    layouts = [database.layout_of(source, name) for name in _tables()]

    def rows(layout: database.Layout) -> Callable[[], Iterator[bytes]]:
        return lambda: database.rows_of(source, layout)

    with target.begin() as connection:
        migrate.alone(connection, None)
        require_empty(connection)
        loading = [(layout.table, list(layout.columns), rows(layout)) for layout in layouts]
        tallies = load_tables(connection, migrate.head(), loading, report)
        for layout in layouts:
            new = database.layout_of(connection, layout.table)
            database.set_last(connection, new, database.last_of(source, layout))
        migrate.complete(connection)
        moved = {name: tally.rows for name, tally in tallies.items()}
        change = audit.Change(connection, audit.local_actor(), OPERATION)
        change.record("database", safe_url(str(source.engine.url)), after={"rows": sum(moved.values())})
    return moved
