"""How alembic runs here: on the engine that farm.db.migrate hands over."""

from __future__ import annotations

from types import ModuleType

from alembic import context
from sqlalchemy import Connection, Engine

from farm.db import migrate
from farm.db.tables import Base


def _modules(reached: str) -> list[ModuleType]:
    """The migrations up to a revision, the newest first."""
    return [script.module for script in context.script.iterate_revisions(reached, "base")]


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
        if found is not None and (check := attributes.get("check")) is not None:
            check(connection, _modules(str(context.get_revision_argument())))
        context.run_migrations()
        reached = context.get_context().get_current_revision()
        if reached is not None and not attributes.get("tables_alone"):
            modules = _modules(reached)
            every = found is None or bool(attributes.get("every_object"))
            migrate.replace_objects(connection, [one for one in modules if every or one.revision > str(found)])
            migrate.note_served_from(connection, modules)
            migrate.record_upgrade(connection, found, reached)


run()
