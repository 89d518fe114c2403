"""The revision of a database: which it has, which this version needs, and the way up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, text

import farm
from farm.errors import WrongRevision

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(farm.__file__).parent.parent / "migrations"


def _config(engine: Engine | None = None) -> Config:
    # Every program asks for the revision, and few change it: alembic is an eighth of what a program imports.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    if engine is not None:
        config.attributes["engine"] = engine
    return config


def head() -> str:
    """The revision that this version of the farm needs: the last one, as the files of migrations are in their order."""
    found = [path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py")]
    if not found:
        raise RuntimeError(f"there are no migrations in {MIGRATIONS}")
    return max(found)


def current(engine: Engine) -> str | None:
    """The revision that the database has; None where it has no tables of the farm."""
    with engine.connect() as connection:
        if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar_one() is None:
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


_MIGRATING = 0x6D69_6772  # "migr": the key of the advisory lock that a migration holds
_TRY_ALONE = text("SELECT pg_try_advisory_xact_lock(:key)")
_ALONE = text("SELECT pg_advisory_xact_lock(:key)")


def alone(connection: Connection, waiting: Callable[[], None] | None) -> None:
    """Until this transaction ends, no other migrates this database. `waiting` is called where another one does now."""
    if not connection.execute(_TRY_ALONE, {"key": _MIGRATING}).scalar_one():
        if waiting is not None:
            waiting()
        connection.execute(_ALONE, {"key": _MIGRATING})


def upgrade(engine: Engine, revision: str = "head", *, waiting: Callable[[], None] | None = None) -> str | None:
    """Brings the database to a revision. What is there already stays.

    Of several at a time one goes on, and the others wait and then find nothing to do.

    Args:
        waiting: called where another migration is under way, which is waited for.

    Returns:
        The revision that was found when it was this one's turn; None where there were no tables.
    """
    from alembic import command

    config = _config(engine)
    config.attributes["waiting"] = waiting
    command.upgrade(config, revision)
    found: str | None = config.attributes["found"]
    return found


def downgrade(engine: Engine, revision: str) -> None:
    """Takes the database back to a revision; `base` removes everything."""
    from alembic import command

    command.downgrade(_config(engine), revision)


def check_models_match(engine: Engine) -> None:
    """Raises where the tables in code and in the database differ (alembic check)."""
    from alembic import command

    command.check(_config(engine))


def require_head(engine: Engine) -> None:
    """Raises `WrongRevision` where the database is not at this version's revision."""
    found, needed = current(engine), head()
    if found != needed:
        raise WrongRevision(found=found or "none (it has no tables yet)", needed=needed)
