"""Reading a recording for import: what a file may leave out, what it may not say, and which devices it tells apart."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import farm
from farm.db.imports import ImportedRow
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import BadRecording, MissingColumns, RowNotImported
from farm.importers import files
from farm.importers.dataset import DatasetReader, look
from farm.kernels import Configuration
from farm.measurement import Source
from farm.provenance import METADATA_KEY, Provenance
from farm.recording import readable

PUBLISHED = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
CONFIGURATION = {
    **{"m": 64, "n": 32, "k": 16, "ab": "f32", "cd": "f32", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0},
    **{"family": "tiled", "parameters": '{"tile": 16}'},
}
BARE = {**CONFIGURATION, "runtime_ms": 2.0}
PROVENANCE = Provenance(
    device_type="nvidia-l4",
    device_name="NVIDIA L4",
    traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34),
    provenance="measured by ann",
)


def write(
    path: Path, rows: Sequence[Mapping[str, Any]], *, metadata: bytes | None = None, **kinds: pa.DataType
) -> Path:
    """A recording of these rows; `kinds` are the types of columns that should not have the usual one."""
    columns = {name: pa.array([row.get(name) for row in rows], kinds.get(name)) for name in rows[0]}
    said = json.dumps(PROVENANCE.to_json()).encode() if metadata is None else metadata
    pq.write_table(pa.table(columns).replace_schema_metadata({METADATA_KEY: said}), path)
    return path


def read(path: Path) -> tuple[list[ImportedRow], DatasetReader]:
    reader = DatasetReader(look(path))
    return list(reader.rows(lambda _: None)), reader


def test_a_file_of_configurations_and_times_alone_is_enough(tmp_path: Path) -> None:
    (row,), reader = read(write(tmp_path / "bare.parquet", [BARE]))
    assert row.configuration == Configuration.parse("tiled(tile=16) 64x32x16 f32:f32:f32 nn alpha=1 beta=0")
    assert row.measured_at is None
    measured = row.measurement
    assert measured.source is Source.IMPORTED
    assert {measured.runtime_ms, measured.runtime_q1_ms, measured.runtime_q3_ms, measured.runtime_min_ms} == {2.0}
    assert (measured.samples, measured.stop_reason, measured.power_w, measured.details) == (1, "recorded", None, {})
    (device,) = reader.devices()
    assert device.identity.uuid == f"IMP-{look(tmp_path / 'bare.parquet').content[:16]}-nvidia-l4"
    assert (device.host, device.rows) == ("imported:unknown", 1)
    assert (device.identity.type, device.identity.name) == ("nvidia-l4", "NVIDIA L4")
    assert (device.identity.backend, device.identity.traits) == (Backend.CUDA, PROVENANCE.traits)


def test_devices_are_told_apart_by_uuid_or_else_by_host(tmp_path: Path) -> None:
    said = [("GPU-1", "a"), ("GPU-2", "a"), (None, "a"), (None, "b"), ("GPU-1", "a"), (None, None)]
    rows = [{**BARE, "device_uuid": uuid, "host": host, "source": "measured"} for uuid, host in said]
    found, reader = read(write(tmp_path / "many.parquet", rows))
    assert [row.device for row in found] == ["GPU-1", "GPU-2", "a", "b", "GPU-1", "nvidia-l4"]
    assert [(d.key, d.host, d.rows) for d in reader.devices()] == [
        ("GPU-1", "imported:a", 2),
        ("GPU-2", "imported:a", 1),
        ("a", "imported:a", 1),
        ("b", "imported:b", 1),
        ("nvidia-l4", "imported:unknown", 1),
    ]
    assert reader.devices()[0].identity.facts["sources"] == {"measured": 2}


def test_columns_may_have_the_types_that_other_tools_give_them(tmp_path: Path) -> None:
    rows = [
        {**BARE, "power_w": 70.5, "temperature_c": 41.0, "measured_at": 1_700_000_000_000_000_123},
        {**BARE, "power_w": math.nan, "temperature_c": math.nan, "measured_at": None},
    ]
    kinds = {
        "measured_at": pa.timestamp("ns"),
        "power_w": pa.float32(),
        "family": pa.dictionary(pa.int8(), pa.string()),
    }
    (first, second), _ = read(write(tmp_path / "pandas.parquet", rows, **kinds))
    assert (first.measurement.power_w, first.measurement.temperature_c) == (70.5, 41)
    assert first.measured_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (second.measurement.power_w, second.measurement.temperature_c, second.measured_at) == (None, None, None)


def test_the_time_while_power_was_read_comes_in_where_it_is_known(tmp_path: Path) -> None:
    rows = [{**BARE, "power_w": 70.5, "runtime_settled_ms": ms} for ms in (2.1, math.nan)]
    found, _ = read(write(tmp_path / "sustained.parquet", rows))
    assert [row.measurement.runtime_settled_ms for row in found] == [2.1, None]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"runtime_ms": None}, "runtime_ms is missing"),
        ({"runtime_ms": math.nan}, "runtime_ms is missing"),
        ({"runtime_ms": math.inf}, "runtime_ms is infinite"),
        ({"power_w": -math.inf}, "power_w is infinite"),
        ({"m": None}, "m is missing"),
        ({"m": 0}, "not a shape"),
        ({"ab": "f12"}, "ab is 'f12', which is not an element type of A and B: use one of f64, f32"),
        ({"ab": "i4"}, "ab is 'i4', which is not an element type of A and B"),
        ({"cd": "f16i4"}, "cd is 'f16i4', which is not an element type of C and D"),
        ({"layout": "no"}, "layout is 'no', which is not a layout: use one of nn, nt, tn, tt"),
        ({"details": "[" * 100_000}, "details is nested too deeply: [[["),
        ({"parameters": '{"tile": "big"}'}, "parameters has tile='big': tile is a whole number"),
        ({"parameters": '{"family": 1}'}, "family"),
        ({"family": "magic"}, "no kernel family 'magic'"),
        ({"parameters": '{"tile": 16'}, "parameters is '{\"tile\": 16', which is not JSON"),
        ({"details": "[1]"}, "details is '[1]', which is not a JSON object"),
        ({"device_type": "nvidia-h200"}, "it is of nvidia-h200, and the file of nvidia-l4"),
        ({"device_uuid": "GPU\n1"}, "cannot be the name of a device"),
        ({"device_uuid": "G" * 201}, "cannot be the name of a device"),
        ({"host": "\0"}, "cannot be the name of a device"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 2)
    optional = dict.fromkeys(("power_w", "details", "device_type", "device_uuid", "host"))
    good: dict[str, Any] = {**BARE, **optional}
    path = write(tmp_path / "bad.parquet", [*[good] * 4, good | changes, good], power_w=pa.float64())
    with pytest.raises(RowNotImported) as refused:
        read(path)
    assert f"{path}: row 5 cannot be imported: " in str(refused.value)
    assert why in str(refused.value)


def test_a_column_of_another_kind_is_named_with_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "half.parquet", [{**BARE, "samples": 10.0}, {**BARE, "samples": 10.5}])
    with pytest.raises(
        RowNotImported, match=r"row 2 cannot be imported: samples is 10\.5, which is not a whole number"
    ):
        read(path)


def test_a_file_that_is_no_recording_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("m,n,k\n")
    cases: list[tuple[Path, str]] = [
        (tmp_path / "none.parquet", "there is no such file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "text.parquet", "Parquet"),
        (write(tmp_path / "words.parquet", [BARE], metadata=b"not JSON"), "its provenance cannot be read"),
        (write(tmp_path / "list.parquet", [BARE], metadata=b"[]"), "its provenance cannot be read"),
        (write(tmp_path / "half.parquet", [BARE], metadata=b'{"device_type": "x"}'), "its provenance cannot be read"),
    ]
    pq.write_table(pa.table({name: [value] for name, value in BARE.items()}), tmp_path / "mute.parquet")
    cases.append((tmp_path / "mute.parquet", "does not say what device was measured"))
    empty = pq.read_table(write(tmp_path / "one.parquet", [BARE])).slice(0, 0)
    pq.write_table(empty, tmp_path / "empty.parquet")
    cases.append((tmp_path / "empty.parquet", "it has no rows"))
    for path, why in cases:
        with pytest.raises(BadRecording) as refused:
            look(path)
        assert why in str(refused.value)
        assert str(path) in str(refused.value)
    with pytest.raises(MissingColumns, match="lacks the columns k, runtime_ms"):
        look(write(tmp_path / "less.parquet", [{n: v for n, v in BARE.items() if n not in ("k", "runtime_ms")}]))


def test_a_file_that_may_not_be_read_says_so() -> None:
    with (
        pytest.raises(BadRecording, match=r"a\.parquet is not a recording of measurements: you may not read it"),
        readable(Path("a.parquet")),
    ):
        raise PermissionError(13, "Permission denied")


def test_the_published_recording_is_read_whole() -> None:
    seen = list[int]()
    reader = DatasetReader(look(PUBLISHED))
    rows = list(reader.rows(seen.append))
    assert (len(rows), seen) == (270, [270])
    of_devices = Counter(pq.read_table(PUBLISHED)["device_uuid"].to_pylist())
    assert sorted(device.rows for device in reader.devices()) == sorted(of_devices.values())
