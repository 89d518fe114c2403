"""Damaged files to import: each is refused with file, row and column, in words of the file and not of what reads it."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadRecording, RowNotImported
from farm.importers import aiconfigurator, dataset, gpperf
from farm.importers.landing import import_table
from farm.provenance import METADATA_KEY, Provenance
from support.foreign_tables import LAYER, SGEMM, TILED

PROVENANCE = Provenance(
    device_type="nvidia-l4",
    device_name="NVIDIA L4",
    traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34),
    provenance="measured by ann",
).to_json()

RECORDED: dict[str, Any] = {
    **{"m": 64, "n": 32, "k": 16, "ab": "f32", "cd": "f32", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0},
    **{"family": "tiled", "parameters": '{"tile": 16}', "runtime_ms": 2.0, "runtime_q1_ms": 1.9, "power_w": 80.0},
    **{"samples": 10, "temperature_c": 50, "power_disagrees": False, "measured_at": datetime(2026, 5, 1)},  # noqa: DTZ001
    **{
        "details": "{}",
        "environment": "{}",
        "kernel_hash": "x",
        "device_uuid": "GPU-1",
        "host": "a",
        "source": "measured",
    },
}

WORDS = (
    "",
    " ",
    "x",
    "-1",
    "0",
    "1e999",
    "nan",
    "9" * 5000,
    "zero\0byte",
    "ümläut ×",
    "'; DROP TABLE hosts",
    "y" * 9000,
)
JSONS = ("[]", "3", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\u0000"}', '{"a": "\\ud800"}', "[" * 9000, '{"tile": 0}', '{"":',
         '{"tile": [1]}', '{"tile": 1' + "0" * 5000 + "}", '{"family": 3}', '{"self": 3}')  # fmt: skip
NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, 2**64 - 1, 1.5, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
OTHERS = (None, True, b"\xff\xfe", [1, 2], {"a": 1}, Decimal("1e30"), datetime(1, 1, 1), datetime(9999, 12, 31))  # noqa: DTZ001
ODD = (*WORDS, *JSONS, *NUMBERS, *OTHERS)

ALL = "FARM_TEST_EXAMPLES" in os.environ
"""Every odd value in every column, which takes a minute."""

OF_THE_MACHINERY = re.compile(
    r"\bck_|\buq_|\bfk_|constraint|relation|violates|Traceback|psycopg|sqlalchemy|imported_rows|jsonb"
    r"|[A-Z]\w*(Error|Exception|Violation)\b|RecursionError|\b[A-Z][a-z]+[A-Z]\w+|int64|float64|\bobject at 0x"
    r"|<class|NoneType|Arrow"
)
"""Names of the database, of classes and of libraries, which say nothing to whoever has a file."""

NAMES_OF_DATA = re.compile(r"GeForce|GPPerf|AIConfigurator|NaN\b")


def check(said: str, path: Path, *, row: bool = True) -> None:
    assert str(path) in said
    assert len(said) < 900 + len(str(path))
    found = OF_THE_MACHINERY.search(NAMES_OF_DATA.sub("", said.replace(str(path), "")))
    assert found is None, said
    if row:
        assert ": row 2 cannot be imported: " in said


def parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path | None:
    """A Parquet file of these rows; None where no column can hold their values together."""
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            columns[name] = pa.array(values)
        except (ValueError, TypeError, OverflowError):
            try:
                columns[name] = pa.array([_text(value) for value in values], pa.string())
            except (ValueError, TypeError):
                return None
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(PROVENANCE).encode()})
    pq.write_table(table, path)
    return path


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z"
    return None if value is None else str(value)


def damaged(good: Mapping[str, Any], odd: Sequence[Any]) -> Iterator[tuple[str, Any, list[Mapping[str, Any]]]]:
    """Three rows each, of which the second has an odd value in one column. Always the same choice, or all where asked."""
    pairs = [(column, value) for column in good for value in odd]
    for column, value in pairs if ALL else random.Random(16).sample(pairs, len(pairs) // 6):
        yield column, value, [good, {**good, column: value}, good]


def refused(engine: Engine, table: Any) -> str | None:
    """What a file is refused with; None where it can be imported."""
    try:
        import_table(engine, table, dry_run=True, progress=lambda _: None)
    except (BadRecording, RowNotImported) as error:
        return str(error)
    return None


def test_a_damaged_recording_is_refused_by_row_and_column(engine: Engine, tmp_path: Path) -> None:
    seen = 0
    for column, value, rows in damaged(RECORDED, ODD):
        path = parquet(tmp_path / "bad.parquet", rows)
        if path is None or (said := refused(engine, dataset.look(path))) is None:
            continue
        seen += 1
        check(said, path)
        told = {"m": "shape", "n": "shape", "k": "shape", "device_uuid": "device", "host": "device"}
        assert column in said or told.get(column, "parameter") in said, (column, value, said)
    assert seen > 80


def test_a_damaged_table_of_layers_is_refused_by_row_and_column(engine: Engine, tmp_path: Path) -> None:
    seen = 0
    good = {**LAYER, "power": 300.0, "power_limit": 500.0}
    for _, _, rows in damaged(good, ODD):
        path = parquet(tmp_path / "bad.parquet", rows)
        if path is not None and (said := refused(engine, aiconfigurator.look(path))) is not None:
            seen += 1
            check(said, path)
    assert seen > 10


@pytest.mark.parametrize("good", [SGEMM, TILED], ids=["cutlass", "tiled"])
def test_a_damaged_sheet_is_refused_by_row_and_column(engine: Engine, tmp_path: Path, good: dict[str, str]) -> None:
    seen = 0
    path = tmp_path / "bad.csv"
    for _, _, rows in damaged(good, [*WORDS, *map(str, NUMBERS)]):
        pa.csv.write_csv(pa.table({name: [row[name] for row in rows] for name in good}), path)
        if (said := refused(engine, gpperf.look(path))) is not None:
            seen += 1
            check(said, path)
    assert seen > 10


@pytest.mark.parametrize("key", [*PROVENANCE, None])
def test_damaged_provenance_is_refused_with_the_file(engine: Engine, tmp_path: Path, key: str | None) -> None:
    path = tmp_path / "bad.parquet"
    table = pa.table({name: [value] for name, value in RECORDED.items()})
    changes: list[Any] = (
        [{**PROVENANCE, key: value} for value in (None, 3, [], {}, "zero\0byte", "\ud800", "x" * 300)] if key else []
    )
    changes += [{k: v for k, v in PROVENANCE.items() if k != key}] if key else ["[" * 9000, b"\xff", "{", "3", "null"]
    seen = 0
    for change in changes:
        content = json.dumps(change) if isinstance(change, dict) else change
        pq.write_table(table.replace_schema_metadata({METADATA_KEY: content}), path)
        try:
            import_table(engine, dataset.look(path), dry_run=False, progress=lambda _: None)
        except (BadRecording, RowNotImported) as error:
            seen += 1
            check(str(error), path, row=False)
    assert seen > 1


def test_a_file_that_is_cut_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole.parquet", [RECORDED])
    assert whole is not None
    content, path = whole.read_bytes(), tmp_path / "bad.parquet"
    for length in (0, 1, 4, 8, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        for look in (dataset.look, aiconfigurator.look):
            with pytest.raises(BadRecording) as refusal:
                look(path)
            assert str(path) in str(refusal.value)
