"""Asking the database for the health of a fleet."""

from __future__ import annotations

from sqlalchemy import Engine

from farm.compare.health import reading
from farm.compare.health.document import Health, Question
from farm.compare.health.judging import judge


def health(engine: Engine, question: Question) -> Health:
    """The health of the devices that the question is about, from the database. Raises `BadInput`, `NotFound`."""
    with engine.connect() as connection:
        since, until = reading.window(connection, question)
        members, question = reading.members(connection, question, since=since)
    fleet = reading.fleet(engine, members, question, since=since)
    return judge(members, fleet, question, since=since, until=until)
