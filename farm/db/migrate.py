"""The revision of a database: which it has, which this version needs, and the way up."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

import farm
from farm.errors import WrongRevision

MIGRATIONS = Path(farm.__file__).parent.parent / "migrations"


def _config(engine: Engine | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    if engine is not None:
        config.attributes["engine"] = engine
    return config


def head() -> str:
    """The revision that this version of the farm needs."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise RuntimeError(f"there are no migrations in {MIGRATIONS}")
    return found


def current(engine: Engine) -> str | None:
    """The revision that the database has; None where it has no tables of the farm."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Brings the database to a revision. What is there already stays."""
    command.upgrade(_config(engine), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Takes the database back to a revision; `base` removes everything."""
    command.downgrade(_config(engine), revision)


def check_models_match(engine: Engine) -> None:
    """Raises where the tables in code and in the database differ (alembic check)."""
    command.check(_config(engine))


def require_head(engine: Engine) -> None:
    """Raises `WrongRevision` where the database is not at this version's revision."""
    found, needed = current(engine), head()
    if found != needed:
        raise WrongRevision(found=found or "none (it has no tables yet)", needed=needed)
