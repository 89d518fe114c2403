"""How alembic runs here: on the engine that farm.db.migrate hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Engine

from farm.db import migrate
from farm.db.tables import Base


def run() -> None:
    engine: Engine = context.config.attributes["engine"]
    with engine.connect() as connection:
        context.configure(
            connection=connection, target_metadata=Base.metadata, compare_type=True, compare_server_default=True
        )
        with context.begin_transaction():
            migrate.alone(connection, context.config.attributes.get("waiting"))
            found = context.config.attributes["found"] = context.get_context().get_current_revision()
            migrate.require_known(found)
            context.run_migrations()
            reached = context.get_context().get_current_revision()
            if reached is not None:
                scripts = list(context.script.iterate_revisions(reached, "base"))
                new = [script.module for script in scripts if found is None or script.revision > found]
                migrate.replace_objects(connection, new)
                migrate.note_workers_from(connection, (script.module for script in scripts))
                migrate.record_upgrade(connection, found, reached)


run()
