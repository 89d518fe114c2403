"""Asking the database for the fleet_health of a fleet."""

from __future__ import annotations

from sqlalchemy import Engine

from farm.compare.health import fleet_query
from farm.compare.health.assessment import FleetReport, HealthQuery
from farm.compare.health.diagnosis import diagnose


def fleet_health(engine: Engine, question: HealthQuery) -> FleetReport:
    """The fleet_health of the devices that the question is about, from the database. Raises `BadInput`, `NotFound`."""
    with engine.connect() as connection:
        since, until = fleet_query.window(connection, question)
        members, question = fleet_query.members(connection, question, since=since)
    fleet = fleet_query.fleet(engine, members, question, since=since)
    return diagnose(members, fleet, question, since=since, until=until)
