"""A key of a farm's database, by which programs that know it agree on the ids of traces."""

from __future__ import annotations

from sqlalchemy import Connection, text

_KEY = text("SELECT system_identifier || '/' || current_database() FROM pg_control_system()")


def farm_key(connection: Connection) -> str:
    """The key: the same for every program and role, and another one for another farm."""
    found: str = connection.execute(_KEY).scalar_one()
    return found
