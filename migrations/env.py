"""How alembic runs here: on the engine that farm.db.migrate hands over, or on FARM_DATABASE_URL."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Engine

from farm.db.engine import make_engine
from farm.db.tables import Base
from farm.settings import settings


def _engine() -> Engine:
    given: Engine | None = context.config.attributes.get("engine")
    if given is not None:
        return given
    url = settings().database_url
    if url is None:
        raise SystemExit("FARM_DATABASE_URL is not set. `farm db upgrade` also serves the embedded database.")
    return make_engine(url.get_secret_value(), application="farm migrate")


def run() -> None:
    with _engine().connect() as connection:
        context.configure(
            connection=connection, target_metadata=Base.metadata, compare_type=True, compare_server_default=True
        )
        with context.begin_transaction():
            context.run_migrations()


run()
