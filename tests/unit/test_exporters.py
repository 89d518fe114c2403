"""Exported results: what each format holds of the same rows."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from farm.api.results import Identity, Results
from farm.cli.results import TABLE, format_of
from farm.errors import BadInput
from farm.exporters import EXPORTERS, RowExporter
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY, Provenance
from farm.schema.results import EXPORTED


def row(tile: int, day: int) -> dict[str, Any]:
    columns = Configuration.parse(f"tiled(tile={tile}) 64x64x64 f32").columns()
    known = {"campaign": "small", "host": "box", "source": "measured", "runtime_ms": 0.5}
    return {**dict.fromkeys(EXPORTED), **columns, **known, "measured_at": datetime(2026, 11, day, tzinfo=UTC)}


CARD = Identity(uuid="GPU-1", type="card", name="Card", backend="cuda", traits={"kind": "cuda", "memory_bytes": 2**30})
RESULTS = Results.model_construct(
    rows=[row(8, 1), row(16, 3)], identity=CARD, commands=["farm measure one", "farm measure two"]
)


def content(name: str, results: Results = RESULTS) -> bytes:
    exporter = EXPORTERS[name]
    assert isinstance(exporter, RowExporter)
    return exporter.content(results)


def test_csv_and_json_have_every_column_of_every_row() -> None:
    lines = list(csv.DictReader(io.StringIO(content("csv").decode())))
    assert [list(line) for line in lines] == [list(EXPORTED)] * 2
    assert [line["parameters"] for line in lines] == ['{"tile": 8}', '{"tile": 16}']
    assert lines[0]["power_w"] == ""
    found = json.loads(content("json"))
    assert [(one["parameters"], one["measured_at"]) for one in found][1] == ({"tile": 16}, "2026-11-03 00:00:00+00:00")


def test_parquet_of_one_device_type_is_a_recording_with_its_provenance() -> None:
    table = pq.read_table(io.BytesIO(content("parquet")))
    provenance = Provenance.from_json(json.loads(table.schema.metadata[METADATA_KEY]))
    assert provenance.device_type == "card"
    assert provenance.provenance.endswith("on box, 2026-11-01 to 2026-11-03, campaign small")
    mixed = Results.model_construct(rows=RESULTS.rows, identity=None, commands=None)
    assert METADATA_KEY not in (pq.read_table(io.BytesIO(content("parquet", mixed))).schema.metadata or {})


def test_commands_are_a_line_for_each_row() -> None:
    assert content("commands") == b"farm measure one\nfarm measure two\n"


@pytest.mark.parametrize(
    ("given", "output", "as_json", "chosen"),
    [
        (None, None, False, TABLE),
        (None, None, True, "json"),
        (None, "rows.csv", False, "csv"),
        (None, "rows", True, "json"),
        ("commands", "rows.csv", False, "commands"),
    ],
)
def test_the_format_is_given_or_follows_from_the_name(
    given: str | None, output: str | None, as_json: bool, chosen: str
) -> None:
    assert format_of(given, None if output is None else Path(output), as_json=as_json) == chosen


def test_a_format_that_is_unknown_or_not_for_a_terminal_is_refused() -> None:
    with pytest.raises(BadInput, match=r"rows\.txt: use the extension \.csv, \.parquet or \.json"):
        format_of(None, Path("rows.txt"), as_json=False)
    with pytest.raises(BadInput, match=r"Parquet cannot be printed\. Add --output FILE\.parquet"):
        format_of("parquet", None, as_json=False)


def test_t4_takes_several_files_where_the_output_is_no_json_file() -> None:
    assert EXPORTERS["t4"].one_file(None)
    assert EXPORTERS["t4"].one_file(Path("space.json"))
    assert not EXPORTERS["t4"].one_file(Path("spaces"))
    assert EXPORTERS["csv"].one_file(Path("spaces"))
