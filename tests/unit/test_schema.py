"""The columns of results: each is declared once, and everything that has columns takes them from there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from farm.db.tables import Base
from farm.gemm import ElementTypes, Problem, Shape
from farm.kernels import Configuration, Kernel
from farm.measurement import Measurement
from farm.schema.__main__ import markdown
from farm.schema.column import ColumnType
from farm.schema.results import COLUMNS, CONFIGURATION, DERIVED, EXPORTED, RESULTS, UNSTATED

ROOT = Path(__file__).parents[2]


def test_every_field_of_a_measurement_is_a_column_with_its_type() -> None:
    assert {field.name for field in fields(Measurement)} == {*RESULTS, "environment"}
    assert (RESULTS["runtime_ms"].type, RESULTS["runtime_ms"].nullable) == (ColumnType.DOUBLE, False)
    assert (RESULTS["sm_clock_mhz"].type, RESULTS["sm_clock_mhz"].nullable) == (ColumnType.BIGINT, True)
    assert (RESULTS["power_disagrees"].type, RESULTS["power_disagrees"].nullable) == (ColumnType.BOOLEAN, True)
    assert (RESULTS["source"].type, RESULTS["details"].type) == (ColumnType.TEXT, ColumnType.JSONB)


def test_the_table_of_results_has_their_columns() -> None:
    table = Base.metadata.tables["measurements"]
    assert {name: table.columns[name].nullable for name in RESULTS} == {c.name: c.nullable for c in RESULTS.values()}
    constraints = {str(constraint.name) for constraint in table.constraints}
    assert {
        f"ck_measurements_{name}_positive" for name in ("runtime", "runtime_settled", "power", "samples")
    } <= constraints


def test_an_export_has_what_a_row_says_and_nothing_twice() -> None:
    assert len(set(EXPORTED)) == len(EXPORTED)
    assert {*CONFIGURATION, *RESULTS, "environment"} <= set(EXPORTED)
    assert set(COLUMNS) - set(EXPORTED) == {"job_id", "campaign_id", "device_name", "backend", "flops", "bytes"}
    assert {column.name for column in DERIVED} <= set(COLUMNS)


def test_the_columns_of_a_configuration_are_those_that_it_has() -> None:
    problem = Problem(Shape(16, 16, 16), ElementTypes.parse("f32"))
    assert set(Configuration(problem, Kernel("tiled", (("tile", 16),))).columns()) == set(CONFIGURATION)


def test_a_column_that_farm_measure_shows_has_a_label_with_its_unit() -> None:
    for column in COLUMNS.values():
        assert (column.group is None) == (not column.label), column.name
        assert column.group is None or column.unit in column.label or column.name == "intensity", column.name


@pytest.mark.parametrize("name", UNSTATED)
def test_what_a_file_does_not_say_has_the_type_of_its_column(name: str) -> None:
    python = {ColumnType.DOUBLE: float, ColumnType.BIGINT: int, ColumnType.TEXT: str}
    assert type(RESULTS[name].unstated) is python[RESULTS[name].type]


def test_the_document_has_the_columns_as_they_are_declared() -> None:
    assert markdown() in (ROOT / "docs" / "sql.md").read_text()
