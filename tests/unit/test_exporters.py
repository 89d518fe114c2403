"""Exported results: what each format holds of the same rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from farm.api.results import Identity, Results, all_rows, pages
from farm.cli.files import write_export
from farm.cli.results import TABLE, format_of
from farm.errors import BadInput, BadParameter
from farm.exporters import EXPORTERS, RowExporter, dataset, parquet_rows
from farm.exporters.csv_rows import csv_text
from farm.exporters.exporter import Export, contents
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY, Provenance
from farm.schema.arrow import arrow_table
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


# --- pages -------------------------------------------------------------------------------------------


class PagedFarm:
    """Has these rows in the order of their ids. `sizes` are those of the file `output` at each request for a page."""

    def __init__(self, days: Sequence[int], rows_at_once: int = 2, *, fails_after: int | None = None) -> None:
        self.rows = [{**row(8, day), "measurement_id": place} for place, day in enumerate(days, start=1)]
        self.rows_at_once, self.fails_after = rows_at_once, fails_after
        self.types = dict.fromkeys(range(1, len(days) + 1), "card")
        self.folder: Path | None = None
        self.sizes = list[int]()

    def ask(
        self,
        _: Any,
        *,
        after: int | None,
        limit: int,
        commands: bool = False,
        sort: str = "measurement_id",
        **query: Any,
    ) -> Any:
        if self.folder is not None:
            self.sizes.append(sum(one.stat().st_size for one in self.folder.rglob(".farm-*")))
        if self.fails_after is not None and (after or 0) >= self.fails_after:
            raise KeyboardInterrupt
        found = [one for one in self.rows if one["measurement_id"] > (after or 0)][:limit]
        types = {self.types[one["measurement_id"]] for one in found}
        return Results.model_construct(
            rows=found,
            identity=CARD.model_copy(update={"type": types.pop()}) if len(types) == 1 else None,
            commands=[f"farm measure {one['measurement_id']}" for one in found] if commands else None,
            next=found[-1]["measurement_id"] if len(found) == limit and sort == "measurement_id" else None,
        )

    def exported(self, name: str, limit: int | None = None) -> Export:
        return EXPORTERS[name].export(self, {"sort": "measurement_id"}, limit, one_file=True)

    def content(self, name: str, limit: int | None = None) -> bytes:
        (found,) = contents(self.exported(name, limit)).values()
        return found


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_a_file_of_several_pages_is_that_of_all_rows_at_once(count: int) -> None:
    farm = PagedFarm(range(1, count + 1))
    assert farm.content("csv") == csv_text(farm.rows, header=True).encode()
    assert farm.content("json") == json.dumps(farm.rows, indent=1, default=str).encode()
    lines = [json.dumps(one, default=str) for one in farm.rows]
    assert farm.content("jsonl").decode().splitlines() == lines
    assert farm.content("commands").decode().splitlines() == [f"farm measure {n}" for n in range(1, count + 1)]
    table = pq.read_table(io.BytesIO(farm.content("parquet")))
    assert table.equals(arrow_table(farm.rows))
    assert (METADATA_KEY in (table.schema.metadata or {})) == (count > 0)


def test_a_limit_ends_within_a_page_and_at_the_end_of_one() -> None:
    farm = PagedFarm(range(1, 6))
    for limit in (1, 2, 3, 4):
        assert farm.content("commands", limit).count(b"\n") == limit


def test_sorted_rows_that_need_pages_are_refused_before_any_is_written() -> None:
    for limit in (None, 3):
        with pytest.raises(BadParameter, match="at most 2 sorted rows"):
            next(pages(PagedFarm([1] * 3), limit, sort="-tflops"))
    assert [len(page.rows) for page in pages(PagedFarm([1] * 3), 2, sort="-tflops")] == [2]
    assert [len(page.rows) for page in pages(PagedFarm([1]), None, sort="-tflops")] == [1]


def test_parquet_is_written_in_row_groups_of_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "GROUP_ROWS", 3)
    farm = PagedFarm(range(1, 8))
    file = pq.ParquetFile(io.BytesIO(farm.content("parquet")))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [4, 3]
    assert file.read().equals(arrow_table(farm.rows))


def test_the_provenance_is_of_all_pages_and_there_is_none_of_several_device_types() -> None:
    farm = PagedFarm([9, 8, 7, 6])
    farm.rows[3]["host"] = "attic"
    metadata = pq.read_schema(io.BytesIO(farm.content("parquet"))).metadata
    provenance = Provenance.from_json(json.loads(metadata[METADATA_KEY]))
    assert provenance.provenance.endswith("on attic, box, 2026-11-06 to 2026-11-09, campaign small")
    farm.types[4] = "other"
    assert METADATA_KEY not in (pq.read_schema(io.BytesIO(farm.content("parquet"))).metadata or {})
    farm.types[3] = "other"  # each page is of one type
    assert METADATA_KEY not in (pq.read_schema(io.BytesIO(farm.content("parquet"))).metadata or {})


@pytest.mark.parametrize("name", ["csv", "json", "jsonl"])
def test_a_page_is_written_before_the_next_but_one_is_read(name: str, tmp_path: Path) -> None:
    farm = PagedFarm([1] * 400, rows_at_once=100)
    farm.folder = tmp_path
    write_export(farm.exported(name), tmp_path / f"rows.{name}", folder=False, force=False)
    assert len(farm.sizes) == 5
    assert 0 < farm.sizes[2] < farm.sizes[3] < farm.sizes[4]
    assert [one.name for one in tmp_path.iterdir()] == [f"rows.{name}"]


@pytest.mark.parametrize("name", ["csv", "json", "jsonl", "parquet", "commands"])
def test_an_export_that_is_interrupted_between_pages_leaves_the_old_file(name: str, tmp_path: Path) -> None:
    farm, file = PagedFarm([1] * 8, fails_after=4), tmp_path / f"rows.{name}"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_export(farm.exported(name), file, folder=False, force=True)
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]


def test_a_dataset_that_is_interrupted_between_pages_leaves_no_folder(tmp_path: Path) -> None:
    farm = PagedFarm([1] * 8, fails_after=4)
    query = {"type": "card"}
    export = dataset.export(farm, query, name="small", license_id="cc-by-4.0")
    with pytest.raises(KeyboardInterrupt):
        write_export(export, tmp_path / "new" / "folder", folder=True, force=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    farm.fails_after = None
    export = dataset.export(farm, query, name="small", license_id="cc-by-4.0")
    write_export(export, tmp_path / "kept", folder=True, force=False)
    assert pq.read_table(tmp_path / "kept" / "data" / "small.parquet").num_rows == 8
    assert "\n8 measurements of" in (tmp_path / "kept" / "README.md").read_text()


def test_rows_of_pages_are_those_of_all_at_once_with_their_identity() -> None:
    farm = PagedFarm([1] * 4)
    found = all_rows(farm, None, commands=True)
    assert (found.rows, found.identity) == (farm.rows, CARD)
    assert found.commands == [f"farm measure {n}" for n in range(1, 5)]
    assert all_rows(PagedFarm([]), None, commands=False).identity is None


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
    with pytest.raises(BadInput, match=r"rows\.txt: use the extension \.csv, \.parquet, \.json or \.jsonl"):
        format_of(None, Path("rows.txt"), as_json=False)
    with pytest.raises(BadInput, match=r"Parquet cannot be printed\. Add --output FILE\.parquet"):
        format_of("parquet", None, as_json=False)


def test_t4_takes_several_files_where_the_output_is_no_json_file() -> None:
    assert EXPORTERS["t4"].one_file(None)
    assert EXPORTERS["t4"].one_file(Path("space.json"))
    assert not EXPORTERS["t4"].one_file(Path("spaces"))
    assert EXPORTERS["csv"].one_file(Path("spaces"))
