"""What workers, datasets and servers call things does not steer the terminal, nor forge lines of tables and logs."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.text import Text

import farm
import workers.main
from farm.cli.hints import Hinting
from farm.cli.tables import ESSENTIAL, TABLES, Column, Table
from farm.errors import BadInput
from farm.logs import _Human, print_error

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"

ATTACKS = {
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31m",
    "bidi": "a\u202eb\u2066c",
    "carriage return": "failed\rdone",
    "separator": "a\u2028b",
}
OBEYED = "\x1b\x07\x9b\u202e\u2066\r\u2028"


def printed(renderable: object, **options: object) -> str:
    file = io.StringIO()
    Hinting(file=file, width=200, highlight=False).print(renderable, **options)
    return file.getvalue()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("kind", [str, Text])
def test_console_prints_no_control_characters(attack: str, kind: type) -> None:
    assert not set(OBEYED) & set(printed(kind(f"device {attack} ends")))


def test_console_prints_no_link_of_markup() -> None:
    file = io.StringIO()
    Hinting(file=file, force_terminal=True, width=200).print("[link=http://evil.example]name[/link]")
    assert "evil.example" not in file.getvalue()
    assert "name" in file.getvalue()


@pytest.mark.parametrize("attack", [*ATTACKS.values(), "a\nGPU-forged  healthy"], ids=[*ATTACKS, "row"])
def test_table_prints_one_line_for_a_row(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        Table("attacked", Column("name", priority=ESSENTIAL)).print([(attack,)])
    finally:
        TABLES.pop("attacked", None)
    out = capsys.readouterr().out
    assert not set(OBEYED) & set(out)
    assert len(out.splitlines()) == 3


def test_log_line_forges_no_other() -> None:
    record = logging.makeLogRecord(
        {"msg": "device %s", "args": ("x\n12:00:00 INFO farm: ok\x1b[2J",), "device": "a\nb"}
    )
    lines = _Human("%(message)s").format(record).split("\n")
    assert [line.startswith("  ") for line in lines] == [False, True]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_service_that_cannot_start_prints_no_control_characters(
    attack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BadInput(detail=f"{attack} postgresql://ann:secret@host/farm")
    assert print_error(error) == error.exit_code
    said = capsys.readouterr().err
    assert not set(OBEYED) & set(said)
    assert "secret" not in said


@pytest.mark.parametrize("attack", [*ATTACKS.values(), "a\nGPU-forged  nvidia-h200"], ids=[*ATTACKS, "line"])
def test_worker_lists_the_device_of_a_recording_on_one_line_without_control_characters(
    attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for of_process in ("set_up_logging", "set_on_signals"):
        monkeypatch.setattr(workers.main, of_process, lambda *_: None)
    table = pq.read_table(RECORDING).slice(0, 10)
    provenance = json.loads(table.schema.metadata[b"gemm-farm"])
    provenance["device_name"] = f"NVIDIA {attack} H200"
    planted = tmp_path / "planted.parquet"
    pq.write_table(table.replace_schema_metadata({b"gemm-farm": json.dumps(provenance)}), planted)
    workers.main._command(devices_to_serve=f"recorded:{planted}", list_only=True)
    out = capsys.readouterr().out
    assert "recording of NVIDIA" in out
    assert not set(OBEYED) & set(out)
    assert len(out.splitlines()) == 1
