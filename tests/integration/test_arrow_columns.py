"""Query results as Arrow record batches: in parts, by the settings of the engine, and with errors of the database."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from farm.db import arrow_columns
from farm.db.engine import make_engine


def test_a_large_result_comes_in_several_parts_in_its_order(engine: Engine) -> None:
    statement = "SELECT i, repeat('x', 1000) AS t FROM generate_series(1, 50000) i ORDER BY i DESC"
    parts = list(arrow_columns.parts(engine, statement))
    assert len(parts) > 1
    assert pa.Table.from_batches(parts) == arrow_columns.read(engine, statement)
    assert [i for part in parts for i in part["i"].to_pylist()] == list(range(50_000, 0, -1))


def test_a_result_without_rows_has_its_columns(engine: Engine) -> None:
    (part,) = arrow_columns.parts(engine, "SELECT 1 AS a, 'b' AS b WHERE false")
    assert part.num_rows == 0
    assert part.schema.names == ["a", "b"]


def test_parts_are_read_by_the_settings_of_the_engine(database_url: str) -> None:
    made = make_engine(database_url, application="farm trainer", session={"statement_timeout": "7s"})
    names = ("application_name", "statement_timeout", "TimeZone")
    (part,) = arrow_columns.parts(made, f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}")
    made.dispose()
    assert [column.to_pylist() for column in part.columns] == [["farm trainer"], ["7s"], ["UTC"]]


def test_a_database_that_ends_a_query_or_goes_away_is_an_error_of_the_database(database_url: str) -> None:
    made = make_engine(database_url, application="farm trainer", session={"statement_timeout": "1s"})
    with pytest.raises(OperationalError, match="statement timeout"):
        list(arrow_columns.parts(made, "SELECT pg_sleep(60)"))
    made.dispose()
    made = make_engine(database_url, application="farm trainer")
    parts = arrow_columns.parts(made, "SELECT repeat('x', 1000) AS t FROM generate_series(1, 200000)")
    next(parts)
    with made.begin() as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND pid <> pg_backend_pid()"
        assert connection.execute(text(others)).scalars().all() == [True]
    with pytest.raises(OperationalError):
        list(parts)
    made.dispose()


def test_a_query_that_postgres_does_not_take_is_an_error_of_the_query(engine: Engine) -> None:
    with pytest.raises(ProgrammingError, match="nowhere"):
        arrow_columns.read(engine, "SELECT * FROM nowhere")
