"""Files with the costs of operations that are no GEMMs."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.api.plans import OtherOfStep
from farm.cli.other_costs import read_others
from farm.errors import BadInput

ATTENTION = OtherOfStep(name="attention", ms=1.5, joules=0.8)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.csv", "\ufeffname,ms,joules,device_type\nattention,1.5,0.8,\n"),  # as spreadsheets write it
        ("other.json", '[{"name": "attention", "ms": 1.5, "joules": 0.8}]'),
        ("other.yaml", "- {name: attention, ms: 1.5, joules: 0.8}"),
    ],
)
def test_each_format_gives_the_same_costs(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_others(tmp_path / name) == [ATTENTION]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("other.csv", "name,ms\nattention,1,5\n", "row 1: there are more cells than columns"),
        ("other.csv", f"name,ms\n{'a' * 200_000},1\n", "cannot be read: field larger than field limit"),
        ("other.csv", "name,time\nattention,1\n", "row 1: there is no column 'time'"),
        ("other.csv", "name,ms\n", "has no rows"),
        ("other.yaml", "attention: 1.5", "write a list of mappings"),
        ("other.json", "[1]", "row 1: write a mapping"),
    ],
)
def test_a_file_that_is_not_understood_is_one_clear_error(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        read_others(tmp_path / name)
