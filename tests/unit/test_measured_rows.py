"""Rows of the Python API: held as Arrow, and read as the farm returned them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pandas as pd
import pytest

import farm
from farm.api.results import Results
from farm.client import measured_rows
from farm.client.measured_rows import MeasuredRows
from farm.schema.arrow import arrow_table
from farm.schema.column import ColumnType
from farm.schema.results import COLUMNS, EXPORTED

BERLIN = timezone(timedelta(hours=1))
VALUES: dict[ColumnType, Any] = {
    ColumnType.BIGINT: 2**53 + 1,
    ColumnType.SMALLINT: 3,
    ColumnType.DOUBLE: 0.1,
    ColumnType.TEXT: "=größe",
    ColumnType.BOOLEAN: True,
    ColumnType.TIMESTAMPTZ: datetime(2026, 11, 29, 0, 30, 0, 123456, tzinfo=BERLIN),
    ColumnType.UUID: UUID(int=7),
    ColumnType.JSONB: {"tile": 8, "text": "ä", "share": 0.1, "none": None, "list": [1, 2]},
}


def row(number: int, *, empty: bool = False) -> dict[str, Any]:
    """A row with a value in every column; `empty`: without those that may lack one."""
    found = {name: None if empty and COLUMNS[name].nullable else VALUES[COLUMNS[name].type] for name in EXPORTED}
    return {**found, "measurement_id": number}


ROWS = [row(number, empty=number % 3 == 0) for number in range(1, 8)]


def page(*rows: dict[str, Any]) -> Results:
    return Results.model_construct(rows=list(rows), identity=None, commands=None, next=None)


def table() -> farm.Table:
    return farm.Table(MeasuredRows.of_pages([page(*ROWS[:3]), page(*ROWS[3:6]), page(*ROWS[6:])]))


def test_rows_are_read_as_they_were_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_rows, "ITERATED_ROWS", 2)
    found = table()
    assert list(found) == [found[place] for place in range(7)] == ROWS
    assert found[-1]["measurement_id"] == 7
    assert list(found[1:3]) == ROWS[1:3]
    assert list(found[::-2]) == ROWS[::-2]
    assert list(found[5:2]) == []
    assert ROWS[1] in found
    with pytest.raises(IndexError):
        found[7]
    assert found[0]["measured_at"].tzinfo is UTC
    assert repr(found) == "<Table of 7 rows>"


def test_changing_a_row_changes_no_other_one() -> None:
    found = table()
    found[0]["parameters"]["tile"] = 16
    first, second, *_ = found
    first["parameters"]["tile"] = 32
    assert second["parameters"] == found[0]["parameters"] == VALUES[ColumnType.JSONB]


def test_an_arrow_table_and_a_frame_of_pages_are_those_of_all_rows() -> None:
    found = table()
    assert found.to_arrow().equals(arrow_table(ROWS))
    expected = pd.DataFrame([{**one, "measured_at": one["measured_at"].astimezone(UTC)} for one in ROWS])
    pd.testing.assert_frame_equal(found.to_pandas(), expected[list(EXPORTED)])


def test_a_table_without_rows_has_the_columns() -> None:
    found = farm.Table(MeasuredRows.of_pages([page()]))
    assert (list(found), len(found)) == ([], 0)
    assert found.to_arrow().equals(arrow_table([]))
    pd.testing.assert_frame_equal(found.to_pandas(), pd.DataFrame([], columns=list(EXPORTED)))
