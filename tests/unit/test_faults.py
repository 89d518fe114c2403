"""Whose fault an error of the database is."""

from __future__ import annotations

import logging

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError, ProgrammingError

from farm.coordinator.loop import Outage
from farm.db.engine import Fault, FaultLog, fault_of


def answered(sqlstate: str) -> DBAPIError:
    return DBAPIError("SELECT 1", {}, errors.lookup(sqlstate)("as the server has it"))


@pytest.mark.parametrize(
    ("sqlstate", "fault"),
    [
        ("08006", Fault.UNREACHABLE),
        ("57P01", Fault.UNREACHABLE),
        ("57P03", Fault.UNREACHABLE),
        ("53300", Fault.UNREACHABLE),
        ("53100", Fault.UNAVAILABLE),
        ("53200", Fault.UNAVAILABLE),
        ("58030", Fault.UNAVAILABLE),
        ("25006", Fault.UNAVAILABLE),
        ("25P03", Fault.UNAVAILABLE),
        ("57014", Fault.UNAVAILABLE),
        ("40001", Fault.HELD),
        ("40P01", Fault.HELD),
        ("55P03", Fault.HELD),
        ("22003", Fault.ROW),
        ("23514", Fault.ROW),
        ("42501", Fault.FARM),
        ("42P01", Fault.FARM),
        ("XX000", Fault.FARM),
        ("25P02", Fault.FARM),
        ("0A000", Fault.FARM),
    ],
)
def test_an_error_is_somebodys_fault_by_its_sqlstate(sqlstate: str, fault: Fault) -> None:
    assert fault_of(answered(sqlstate)) is fault
    assert fault.passes == (fault in (Fault.UNREACHABLE, Fault.HELD, Fault.UNAVAILABLE))


def test_without_a_sqlstate_the_database_was_not_reached_or_the_client_refused_the_value() -> None:
    assert fault_of(OperationalError("", {}, psycopg.OperationalError("refused"))) is Fault.UNREACHABLE
    assert fault_of(InterfaceError("", {}, psycopg.InterfaceError("closed"))) is Fault.UNREACHABLE
    assert fault_of(DBAPIError("", {}, psycopg.Error("?"), connection_invalidated=True)) is Fault.UNREACHABLE
    assert fault_of(DataError("", {}, psycopg.DataError("NUL"))) is Fault.ROW
    assert fault_of(ProgrammingError("", {}, psycopg.ProgrammingError("cannot adapt"))) is Fault.FARM
    assert fault_of(ZeroDivisionError()) is Fault.FARM


def test_a_cause_is_logged_once_and_the_next_one_again(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger("test"))
    with caplog.at_level(logging.INFO, "test"):
        faults.works()
        for sqlstate in ("25006", "25006", "42501", "42501", "25006"):
            faults.fails(answered(sqlstate), "trying again", batch_id=1)
        faults.works()
        faults.works()
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING", "INFO"]
    assert "trying again" in caplog.messages[0]
    assert "No job is blamed" in caplog.messages[1]


def test_an_outage_is_remembered_for_as_long_as_leases_take_to_pass() -> None:
    now = 0.0
    outage = Outage(lambda: now)
    assert not outage.within(30)
    outage.seen()
    now = 29.0
    assert outage.within(30)
    now = 31.0
    assert not outage.within(30)
