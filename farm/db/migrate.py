"""The revision of a database: which it has, which this version needs, and the way up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine, text

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


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Brings the database to a revision. What is there already stays."""
    from alembic import command

    command.upgrade(_config(engine), revision)


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
