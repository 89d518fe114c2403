"""Text in exported CSV that a spreadsheet would run as a formula."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest

from farm.csv_cells import cell, cells
from farm.exporters.csv_rows import csv_text
from farm.schema.results import EXPORTED

FORMULAS = ['=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_begins_as_a_formula_is_quoted(text: str) -> None:
    assert cell(text) == f"'{text}"
    assert cells(pa.table({"x": [text, "a"]})).to_pylist() == [{"x": f"'{text}"}, {"x": "a"}]


def test_what_is_no_formula_stays(tmp_path: Path) -> None:
    for value in (-1.5, 3, None, True, "a=b", "", "cutlass", '{"tile": 16}'):
        assert cell(value) == value
    table = pa.table({
        "number": [-1.5, None], "text": pa.array(["a", None]), "known": pa.array(["=x", None]).dictionary_encode(),
    })  # fmt: skip
    assert cells(table).to_pylist() == [
        {"number": -1.5, "text": "a", "known": "'=x"},
        {"number": None, "text": None, "known": None},
    ]


def test_exported_results_hold_no_formula_of_a_worker() -> None:
    row = {**dict.fromkeys(EXPORTED), "host": "=1+1", "power_w": -1.5, "details": {"x": "=1"}, "environment": "=2"}
    (found,) = csv.DictReader(io.StringIO(csv_text([row], header=True)))
    assert (found["host"], found["power_w"], found["details"]) == ("'=1+1", "-1.5", '{"x": "=1"}')
    assert found["environment"] == "'=2", "a text in a column of objects"
