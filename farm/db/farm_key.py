"""A key of a farm's database, by which programs that know it agree on the ids of traces."""

from __future__ import annotations

import logging

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from farm.errors import first_line

log = logging.getLogger(__name__)

_KEY = text("SELECT system_identifier || '/' || current_database() FROM pg_control_system()")

_KNOWN: dict[str, str] = {}
"""The key of the farm behind each engine, by its URL."""


def farm_key(engine: Engine) -> str | None:
    """The key: the same for every program and role, and another one for another farm. A program reads it once.

    None while it cannot be read, which is logged: work goes on without spans.
    """
    url = str(engine.url)
    if url not in _KNOWN:
        try:
            with engine.connect() as connection:
                _KNOWN[url] = connection.execute(_KEY).scalar_one()
        except SQLAlchemyError as error:
            log.warning("the key of the farm cannot be read, so there are no spans: %s", first_line(error))
            return None
    return _KNOWN[url]
