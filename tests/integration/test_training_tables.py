"""Reading training tables: compact columns with the values of Postgres, and only if they fit into memory."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pytest
from sqlalchemy import Engine, text

from farm import host_memory
from farm.db import arrow_columns
from farm.errors import TooLittleMemory
from trainer import reading
from trainer.memory import needed_bytes
from trainer.reading import COLUMNS, read_test_table, read_training_table


def plain(value: Any) -> Any:
    return None if not isinstance(value, dict) and pd.isna(value) else str(value) if isinstance(value, UUID) else value


def test_a_table_has_the_values_that_postgres_has(measured_and_imported: Engine) -> None:
    table = read_training_table(measured_and_imported, "cpu-test", any_source=True)
    with measured_and_imported.connect() as connection:
        stored = connection.execute(text("SELECT * FROM v_measurements ORDER BY measurement_id")).mappings().all()
    assert len(table) == len(stored) == 13
    for name in COLUMNS:
        assert [plain(value) for value in table[name]] == [plain(of[name]) for of in stored], name


def test_equal_texts_and_parameters_of_a_table_are_stored_once(measured_and_imported: Engine) -> None:
    table = read_training_table(measured_and_imported, "cpu-test", any_source=True)
    assert isinstance(table["device_type"].dtype, pd.CategoricalDtype)
    assert len({id(each) for each in table["parameters"]}) == len({str(each) for each in table["parameters"]}) < 13


def test_a_column_is_the_same_however_many_parts_it_came_in() -> None:
    parts = (pa.array(["a", None]), pa.array(["b", "a"]), pa.array([], pa.string()), pa.array(["c"]))
    numbers = (pa.array([1.5, None]), pa.array([2.5, 3.5]))
    texts, mappings, figures = reading._Column(), reading._Column(), reading._Column()
    for part in parts:
        texts.add(part)
        mappings.add(
            pa.array([None if one is None else f'{{"tile": "{one}"}}' for one in part.to_pylist()], pa.string())
        )
    for part in numbers:
        figures.add(part)
    assert [plain(one) for one in texts.made(decoded=False)] == ["a", None, "b", "a", "c"]
    made = mappings.made(decoded=True)
    assert list(made) == [{"tile": "a"}, None, {"tile": "b"}, {"tile": "a"}, {"tile": "c"}]
    assert made[0] is made[3]
    assert [plain(one) for one in figures.made(decoded=False)] == [1.5, None, 2.5, 3.5]


HOSTILE = [
    "cpu-test' OR 'a' = 'a",
    "cpu-test'; DROP TABLE jobs; --",
    "back\\slash",
    "{source}",
    "%s %(source)s :source",
    "ünï",
]


@pytest.mark.parametrize("device_type", HOSTILE)
def test_a_device_type_is_never_a_part_of_the_query(measured_and_imported: Engine, device_type: str) -> None:
    for read in (read_training_table, read_test_table):
        assert read(measured_and_imported, device_type, any_source=True).empty
    with measured_and_imported.begin() as connection:
        connection.execute(text("UPDATE devices SET type = :type"), {"type": device_type})
    table = read_training_table(measured_and_imported, device_type)
    assert len(table) == 12
    assert set(table["device_type"]) == {device_type}


def test_a_table_that_does_not_fit_is_refused_before_it_is_read(
    measured_and_imported: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: needed_bytes(12, 12))
    assert len(read_training_table(measured_and_imported, "cpu-test")) == 12
    monkeypatch.setattr(host_memory, "available_bytes", lambda: needed_bytes(12, 12) - 1)
    monkeypatch.setattr(arrow_columns, "parts", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(
        TooLittleMemory, match=r"cpu-test is not trained: 12 rows of 12 configurations take about 0\.0 GiB"
    ):
        read_training_table(measured_and_imported, "cpu-test")
