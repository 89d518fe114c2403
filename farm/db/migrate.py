"""The revision of a database: which it has, which this version needs, which programs it serves, and the way up.

Programs of an older version may work with a newer database, so that a farm is upgraded without a stop: first the database,
then the coordinator, then its workers one by one. How far back is noted in the table `compatible_revisions`. A migration
that changes what workers of the version before use declares `workers_from`, its own revision. One that changes what other
programs use declares `services_from`. The last declaration on the way to a revision is in force there.

Views, functions and triggers are written once, in the files of `migrations/sql/`. A migration declares the files that it changes
as `sql`. They run after the last migration: `migrations/README.md` says how to change one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

import farm
from farm.db import audit
from farm.db.engine import Fault, fault_of
from farm.errors import DatabaseIsNewer, DatabaseIsOlder, DatabaseTooOld, MigrationBlocked, first_line

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

MIGRATIONS = Path(farm.__file__).parent.parent / "migrations"


def _config(engine: Engine | None = None) -> Config:
    # Every program asks for the revision, and few change it: alembic is an eighth of what a program imports.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    if engine is not None:
        config.attributes["engine"] = engine
    return config


def _revisions() -> list[str]:
    found = [path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py")]
    if not found:
        raise RuntimeError(f"there are no migrations in {MIGRATIONS}")
    return found


def head() -> str:
    """The revision that this version of the farm needs: the last one, as the files of migrations are in their order."""
    return max(_revisions())


def current(engine: Engine) -> str | None:
    """The revision that the database has; None where it has no tables of the farm."""
    with engine.connect() as connection:
        if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar_one() is None:
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


_MIGRATING = 0x6D69_6772  # "migr": the key of the advisory lock that a migration holds
_TRY_ALONE = text("SELECT pg_try_advisory_xact_lock(:key)")
_ALONE = text("SELECT pg_advisory_xact_lock(:key)")
_WAIT_BRIEFLY = text("SET LOCAL lock_timeout = '800ms'")

MAX_ATTEMPTS = 30
PAUSE_SECONDS = 1.0
"""Between two attempts. Each waits less than a second for a lock, so a busy farm is upgraded, or not, within a minute."""


def alone(connection: Connection, waiting: Callable[[], None] | None) -> None:
    """Until this transaction ends, no other migrates this database. `waiting` is called where another one does now.

    From then on, the transaction waits for no lock longer than Postgres waits before it looks for a deadlock (1 s). A migration
    locks tables in its own order, so it may meet workers that lock them in another. It gives way, and no worker is cancelled.
    """
    if not connection.execute(_TRY_ALONE, {"key": _MIGRATING}).scalar_one():
        if waiting is not None:
            waiting()
        connection.execute(_ALONE, {"key": _MIGRATING})
    connection.execute(_WAIT_BRIEFLY)


def _with_attempts(change: Callable[[], None]) -> None:
    """Runs a change, in a transaction of its own, until it gets its locks. Raises `MigrationBlocked`."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            return change()
        except DBAPIError as error:
            if fault_of(error) is not Fault.HELD:
                raise
            why = first_line(error.orig)
        if attempt == 0:
            log.warning("other sessions hold locks that the migration needs (%s); trying again for up to a minute", why)
        time.sleep(PAUSE_SECONDS)
    raise MigrationBlocked(why=why)


def upgrade(
    engine: Engine,
    revision: str = "head",
    *,
    waiting: Callable[[], None] | None = None,
    check: Callable[[Connection, Sequence[ModuleType]], None] | None = None,
) -> str | None:
    """Brings the database to a revision. What is there already stays.

    Of several at a time one goes on, and the others wait and then find nothing to do.

    Args:
        waiting: called where another migration is under way, which is waited for.
        check: called for a database that has tables, before the first migration and in its transaction, with all migrations
            up to the revision, the newest first. What it raises ends the upgrade.

    Returns:
        The revision that was found when it was this one's turn; None where there were no tables.

    Raises:
        MigrationBlocked: other sessions held locks that it needs. Nothing was changed.
    """
    from alembic import command

    config = _config(engine)
    config.attributes |= {"waiting": waiting, "check": check}
    _with_attempts(lambda: command.upgrade(config, revision))
    found: str | None = config.attributes["found"]
    return found


def first() -> str:
    """The first revision, from which this version of the farm has a way to its own."""
    return min(_revisions())


def create_tables(connection: Connection, revision: str) -> None:
    """Creates the tables of a revision in an empty database, without views, functions and triggers, and waits for other migrations.

    For rows of a backup, which no trigger may change. `complete` does the rest. The caller owns the transaction.
    """
    from alembic import command

    config = _config()
    config.attributes.update(connection=connection, tables_alone=True)
    command.upgrade(config, revision)


def complete(connection: Connection) -> None:
    """Brings tables of `create_tables` to this version's revision, and creates all views, functions and triggers."""
    from alembic import command

    config = _config()
    config.attributes.update(connection=connection, every_object=True)
    command.upgrade(config, "head")


def downgrade(engine: Engine, revision: str) -> None:
    """Takes the database back to a revision; `base` removes everything. Raises `MigrationBlocked`."""
    from alembic import command

    config = _config(engine)
    _with_attempts(lambda: command.downgrade(config, revision))


def check_models_match(engine: Engine) -> None:
    """Raises where the tables in code and in the database differ (alembic check)."""
    from alembic import command

    command.check(_config(engine))


LAST_BEFORE_FIRST = "4a5fb10"
"""The commit that brings a database from before the first revision to it."""


def require_known(found: str | None) -> None:
    """Raises `DatabaseTooOld` or `DatabaseIsNewer` for a revision from which this version of the farm has no way to its own."""
    if found is None:
        return
    first, needed = min(_revisions()), head()
    if found < first:
        raise DatabaseTooOld(found=found, needed=needed, first=first, commit=LAST_BEFORE_FIRST)
    if found > needed:
        raise DatabaseIsNewer(found=found, needed=needed, hint="")


def require_head(engine: Engine) -> None:
    """Raises `DatabaseIsOlder` or `DatabaseIsNewer` where the database is not at this version's revision."""
    found, needed = current(engine), head()
    require_known(found)
    if found is None or found < needed:
        raise DatabaseIsOlder(found=found or "none (it has no tables yet)", needed=needed)


def require_for_worker(engine: Engine) -> None:
    """As `_require_served`, for workers and builders."""
    _require_served(engine, WORKERS)


def require_for_service(engine: Engine) -> None:
    """As `_require_served`, for coordinators, trainers, `farm serve` and commands."""
    _require_served(engine, SERVICES)


def _require_served(engine: Engine, program: str) -> None:
    """Raises `DatabaseIsOlder` or `DatabaseIsNewer` where programs of this version cannot work with the database.

    They can where it is at this version's revision, or at a newer one that serves them.
    """
    try:
        require_head(engine)
    except DatabaseIsNewer:
        oldest = served_from(engine, program)
        if oldest is None or head() < oldest:
            hint = f" It serves {program} from revision {oldest} on." if oldest is not None else ""
            raise DatabaseIsNewer(found=current(engine), needed=head(), hint=hint) from None


def sql_files() -> tuple[str, ...]:
    """The files of views, functions and triggers, below `migrations/`, in the order in which they run."""
    return tuple(sorted(str(path.relative_to(MIGRATIONS)) for path in (MIGRATIONS / "sql").rglob("*.sql")))


def run_sql(connection: Connection, file: Path) -> None:
    """Executes the statements of a file unchanged, without parameters."""
    connection.exec_driver_sql(file.read_text(), execution_options={"no_parameters": True})


def replace_objects(connection: Connection, modules: Iterable[ModuleType]) -> None:
    """Runs the files that these migrations declare as `sql`, each once. A file that a later migration removed is left out."""
    declared = {name for module in modules for name in getattr(module, "sql", ())}
    for name in sql_files():
        if name in declared:
            run_sql(connection, MIGRATIONS / name)


_HAS_AUDIT = text("SELECT to_regclass('audit') IS NOT NULL, current_database()")


def record_upgrade(connection: Connection, found: str | None, reached: str) -> None:
    """Records that this account brought the database from one revision to another, where that is kept yet."""
    has_audit, database = connection.execute(_HAS_AUDIT).one()
    if has_audit and found != reached:
        change = audit.Change(connection, audit.local_actor(), "db_upgrade")
        change.record("database", database, before={"revision": found}, after={"revision": reached})


WORKERS = "workers"
SERVICES = "services"
DECLARATIONS = {WORKERS: "workers_from", SERVICES: "services_from"}
"""By row of `compatible_revisions`, what a migration declares for it."""

_OLDEST = text("SELECT oldest FROM compatible_revisions WHERE program = :program")
_STORE_OLDEST = text("""
INSERT INTO compatible_revisions (program, oldest) VALUES (:program, :oldest)
ON CONFLICT (program) DO UPDATE SET oldest = excluded.oldest
""")


def served_from(engine: Engine, program: str) -> str | None:
    """The oldest revision whose programs the database serves, for a row of `compatible_revisions`; None where it does not say."""
    try:
        with engine.connect() as connection:
            oldest: str | None = connection.execute(_OLDEST, {"program": program}).scalar_one_or_none()
    except ProgrammingError:  # it has no such table
        return None
    return oldest


def declared_oldest(modules: Iterable[ModuleType], program: str) -> str | None:
    """What the newest of these migrations, which come newest first, declares for a row of `compatible_revisions`."""
    declared = (getattr(module, DECLARATIONS[program], None) for module in modules)
    return next((one for one in declared if one is not None), None)


def note_served_from(connection: Connection, modules: Sequence[ModuleType]) -> None:
    """Stores which programs the database serves after these migrations, which come newest first."""
    for program in DECLARATIONS:
        if (oldest := declared_oldest(modules, program)) is not None:
            connection.execute(_STORE_OLDEST, {"program": program, "oldest": oldest})
