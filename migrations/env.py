"""How alembic runs here: on the engine that farm.db.migrate hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, Engine

from farm.db import migrate
from farm.db.tables import Base


def run() -> None:
    given: Connection | None = context.config.attributes.get("connection")
    if given is not None:
        _run_on(given)
        return
    engine: Engine = context.config.attributes["engine"]
    with engine.connect() as connection:
        _run_on(connection)


def _run_on(connection: Connection) -> None:
    attributes = context.config.attributes
    context.configure(
        connection=connection, target_metadata=Base.metadata, compare_type=True, compare_server_default=True
    )
    with context.begin_transaction():
        migrate.alone(connection, attributes.get("waiting"))
        found = attributes["found"] = context.get_context().get_current_revision()
        migrate.require_known(found)
        context.run_migrations()
        reached = context.get_context().get_current_revision()
        if reached is not None and not attributes.get("tables_alone"):
            scripts = list(context.script.iterate_revisions(reached, "base"))
            every = found is None or bool(attributes.get("every_object"))
            new = [script.module for script in scripts if every or script.revision > str(found)]
            migrate.replace_objects(connection, new)
            migrate.note_workers_from(connection, (script.module for script in scripts))
            migrate.record_upgrade(connection, found, reached)


run()
