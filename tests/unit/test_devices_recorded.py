"""Recordings: written, found again, answered from, and refused with a clear message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import BadRecording, FarmError, InvalidOnDevice, MissingColumns
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, Source
from farm.provenance import Provenance
from workers.devices import recorded, recording
from workers.devices.recording import write_recording

H200 = Provenance(
    device_type="nvidia-h200",
    device_name="NVIDIA H200",
    traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**37, compute_capability=(9, 0), multiprocessors=132),
    provenance="measured for this test",
)
RULES = MeasuringRules()


def configurations(count: int) -> list[Configuration]:
    return [
        Configuration.parse(f"tiled(tile={1 + i % 32}) {i + 1}x64x64 f32 nt alpha=2 beta=0.5") for i in range(count)
    ]


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "configuration": configuration,
            "runtime_ms": 0.5 + i,
            "power_w": 300.0 + i if i % 2 else None,
            "runtime_settled_ms": 0.6 + i if i % 4 == 1 else None,
            "samples": 17,
            "cost_s": 0.25,
            "throttle_reasons": "sw_power_cap" if i % 3 else None,
        }
        for i, configuration in enumerate(configurations(count))
    ]


def opened(path: Path, scale: float = 0.0, **more: Any) -> recorded.RecordedDevice:
    device = recorded.RecordedDevice(recorded.identify(path, scale), **more)
    device.open()
    return device


@pytest.fixture(params=["rows.parquet", "rows.csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / str(request.param)
    assert write_recording(file, rows(40), H200) == 40
    return file


def test_what_was_recorded_is_answered(path: Path) -> None:
    device = opened(path)
    for i, configuration in enumerate(configurations(40)):
        row = device.measure(configuration, RULES)
        assert (row.source, row.stop_reason) == (Source.RECORDED, "recorded")
        assert (row.runtime_ms, row.samples) == (0.5 + i, 17)
        assert isinstance(row.samples, int)
        assert row.power_w == (300.0 + i if i % 2 else None)
        assert row.runtime_settled_ms == (0.6 + i if i % 4 == 1 else None)
        assert row.throttle_reasons == ("sw_power_cap" if i % 3 else None)
        assert row.runtime_q1_ms == row.runtime_q3_ms == row.runtime_min_ms == row.runtime_ms
        assert row.environment["provenance"] == "measured for this test"


def test_a_recording_from_before_a_column_has_none_of_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    write_recording(file, rows(2), H200)
    pq.write_table(pq.read_table(file).drop_columns(["runtime_settled_ms"]), file)
    row = opened(file).measure(configurations(2)[1], RULES)
    assert (row.power_w, row.runtime_settled_ms) == (301.0, None)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_batches_are_recorded_and_a_recording_without_them_is_read(tmp_path: Path, suffix: str) -> None:
    lines = [f"cublaslt() 64x64x64 f16{batch}" for batch in ("", " batch=8")]
    configured = [Configuration.parse(line) for line in lines]
    written = [{"configuration": one, "runtime_ms": float(i + 1)} for i, one in enumerate(configured)]
    both, older = tmp_path / f"both.{suffix}", tmp_path / "older.parquet"
    write_recording(both, written, H200)
    device = opened(both)
    assert [device.measure(one, RULES).runtime_ms for one in configured] == [1.0, 2.0]
    write_recording(older, written[:1], H200)
    pq.write_table(pq.read_table(older).drop_columns(["batch"]), older)
    assert opened(older).measure(configured[0], RULES).runtime_ms == 1.0
    with pytest.raises(InvalidOnDevice):
        opened(older).measure(configured[1], RULES)


def test_the_device_carries_its_origin(path: Path) -> None:
    identity = recorded.identify(path, 0.5)
    assert (identity.type, identity.backend) == ("recorded-nvidia-h200", Backend.RECORDED)
    assert identity.uuid.startswith("REC-")
    assert identity.traits == H200.traits
    assert json.loads(json.dumps(identity.facts)) == identity.facts
    assert (identity.facts["recording"], identity.facts["scale"]) == (str(path), 0.5)


def test_the_same_file_is_the_same_device_and_another_is_not(tmp_path: Path) -> None:
    first, copy, other = (tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet"))
    write_recording(first, rows(3), H200)
    copy.write_bytes(first.read_bytes())
    write_recording(other, rows(4), H200)
    uuids = [recorded.identify(p, 0).uuid for p in (first, copy, other)]
    assert uuids[0] == uuids[1] != uuids[2]


def test_a_configuration_that_was_not_recorded_is_invalid(path: Path) -> None:
    with pytest.raises(InvalidOnDevice, match="not in the recording"):
        opened(path).measure(Configuration.parse("tiled(tile=2) 1x64x64 f32 nt alpha=2 beta=0.5"), RULES)


@pytest.mark.parametrize(("scale", "slept"), [(0.0, []), (0.1, [0.025]), (2.0, [0.5])])
def test_the_recorded_cost_is_slept_at_scale(tmp_path: Path, scale: float, slept: list[float]) -> None:
    file, naps = tmp_path / "rows.parquet", list[float]()
    write_recording(file, rows(1), H200)
    opened(file, scale, sleep=naps.append).measure(configurations(1)[0], RULES)
    assert naps == pytest.approx(slept)


def test_the_last_of_equal_configurations_wins(tmp_path: Path) -> None:
    file, configuration = tmp_path / "rows.parquet", configurations(1)[0]
    write_recording(file, [{"configuration": configuration, "runtime_ms": t} for t in (1.0, 2.0, 3.0)], H200)
    assert opened(file).measure(configuration, RULES).runtime_ms == 3.0


def test_ids_of_another_version_are_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    write_recording(file, rows(10), H200)
    table = pq.read_table(file)
    stale = pa.array([bytes(16)] * 10, pa.binary(16))
    index = table.column_names.index(recording.ID_COLUMN)
    pq.write_table(table.set_column(index, recording.ID_COLUMN, stale), file)
    assert opened(file).measure(configurations(10)[7], RULES).runtime_ms == 7.5


def test_many_groups_of_rows_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BATCH_ROWS", 7)
    file = tmp_path / "rows.parquet"
    write_recording(file, rows(40), H200)
    device = opened(file)
    assert [device.measure(c, RULES).runtime_ms for c in configurations(40)] == [0.5 + i for i in range(40)]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    write_recording(file, rows(2), H200)
    pq.write_table(pq.read_table(file).drop_columns(["runtime_ms", "layout"]), file)
    with pytest.raises(MissingColumns, match="layout, runtime_ms"):
        recorded.identify(file, 0)
    table = tmp_path / "rows.csv"
    pa_csv.write_csv(pa.table({"m": [1]}), table)
    with pytest.raises(MissingColumns, match=r"n, k, ab.* It has: m\."):
        recorded.identify(table, 0)


def test_files_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="no such file"):
        recorded.identify(tmp_path / "nowhere.parquet", 0)
    garbage = tmp_path / "garbage.parquet"
    garbage.write_bytes(b"no parquet at all")
    with pytest.raises(BadRecording, match=r"garbage\.parquet"):
        recorded.identify(garbage, 0)
    anonymous = tmp_path / "anonymous.parquet"
    write_recording(anonymous, rows(2), H200)
    pq.write_table(pq.read_table(anonymous).replace_schema_metadata(None), anonymous)
    with pytest.raises(BadRecording, match="where it comes from"):
        recorded.identify(anonymous, 0)
    alone = tmp_path / "alone.csv"
    write_recording(alone, rows(2), H200)
    recording.sidecar_of(alone).write_text("{}")
    with pytest.raises(BadRecording, match="provenance"):
        recorded.identify(alone, 0)
    recording.sidecar_of(alone).unlink()
    with pytest.raises(BadRecording, match=r"alone\.csv\.json"):
        recorded.identify(alone, 0)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("runtime_ms", 0.0, "runtime_ms"),
        ("runtime_ms", None, "runtime_ms"),
        ("layout", "xy", "not a configuration"),
        ("m", 0, "not a configuration"),
        ("parameters", "{", "not a configuration"),
        ("family", "magic", "not a configuration"),
    ],
)
def test_a_row_that_cannot_be_is_refused(tmp_path: Path, column: str, value: Any, why: str) -> None:
    file = tmp_path / "rows.parquet"
    write_recording(file, rows(3), H200)
    table = pq.read_table(file)
    content = table.column(column).to_pylist()
    content[1] = value
    index = table.column_names.index(column)
    broken = table.set_column(index, table.schema.field(index), pa.array(content, table.schema.field(index).type))
    pq.write_table(broken.drop_columns([recording.ID_COLUMN]), file)
    with pytest.raises(BadRecording, match=why):
        opened(file)


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    write_recording(file, [], H200)
    with pytest.raises(BadRecording, match="no rows"):
        opened(file)


def test_a_column_that_recordings_lack_is_not_written_silently(tmp_path: Path) -> None:
    with pytest.raises(FarmError, match="watts"):
        write_recording(tmp_path / "rows.parquet", [{**rows(1)[0], "watts": 3.0}], H200)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """As `farm results` exports it: with details, versions and devices; of two cards, each with both configurations."""
    file, configuration = tmp_path / "exported.parquet", configurations(2)
    made = [
        {"configuration": c, "runtime_ms": card + i, "cost_s": 0.25, "window_s": 0.2}
        for card in (1.0, 2.0)
        for i, c in enumerate(configuration)
    ]
    write_recording(file, made, H200)
    table = pq.read_table(file)
    details = [json.dumps({"registers": 32 + i, "occupancy": 0.5}) for i in range(3)] + [None]
    for name, values in (
        ("details", details),
        ("environment", [json.dumps({"driver": "580"})] * 4),
        ("device_uuid", ["GPU-1", "GPU-1", "GPU-2", "GPU-2"]),
    ):
        table = table.append_column(name, [values])
    pq.write_table(table, file)
    return file


def test_a_row_carries_the_details_versions_and_device_seconds_that_were_recorded(exported: Path) -> None:
    device = recorded.RecordedDevice(recorded.identify(exported, 0, "GPU-1"))
    device.open()
    row = device.measure(configurations(2)[1], RULES)
    assert row.details == {"registers": 33, "occupancy": 0.5}
    assert (row.environment["driver"], row.environment["recording"]) == ("580", "exported.parquet")
    assert (row.cost_s, row.window_s) == (0.25, 0.2)
    assert opened(exported).measure(configurations(2)[1], RULES).details == {}


def test_one_device_of_a_recording_answers_with_its_own_rows(exported: Path) -> None:
    identities = [recorded.identify(exported, 0, name) for name in (None, "GPU-1", "GPU-2")]
    assert len({identity.uuid for identity in identities}) == 3
    assert [identity.facts["rows"] for identity in identities] == [4, 2, 2]
    answers = []
    for identity in identities:
        device = recorded.RecordedDevice(identity)
        device.open()
        answers.append([device.measure(c, RULES).runtime_ms for c in configurations(2)])
    assert answers == [[2.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
    with pytest.raises(BadRecording, match=r"no rows of GPU-3, but of GPU-1, GPU-2"):
        recorded.identify(exported, 0, "GPU-3")
