"""`farm import gpperf` and `farm import aiconfigurator`: other people's tables come in as whole and as apart as recordings do.

What holds of every import is in test_import_command.py.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.db import measurements, trainings
from farm.errors import BadRecording, RowNotImported
from farm.importers import aiconfigurator, gpperf
from farm.importers.landing import Import, Outcome, Table, import_table
from support.commands import Command, farm_here, refused
from support.foreign_tables import LAYER, RAN, SGEMM, TILED, layers, sheet
from trainer.reading import read_training_table

SCALARS = [("1.0", "0.0"), ("1.0", "1.0"), ("0.5", "0.5")]
REPEATS = [SGEMM | {"block_m": str(block), "alpha": a, "beta": b} for block in (64, 128, 256) for a, b in SCALARS]
"""Three points, each asked for with three block sizes that never reached the kernel."""

LAYERS = [
    LAYER | {"gemm_dtype": "nvfp4", "power": 500.0, "power_limit": 1200.0},
    LAYER | {"latency": 0.01, "power": 200.0, "power_limit": 1200.0},
    LAYER | {"latency": 2.0, "m": 64, "power": 900.0, "power_limit": 1200.0},
]


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def load(engine: Engine, table: Table, **options: Any) -> Import:
    return import_table(engine, table, **{"dry_run": False, "progress": lambda _: None, **options})


def rows_here(engine: Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return measurements.read(connection)


def is_empty(engine: Engine) -> bool:
    with engine.connect() as connection:
        names = ("measurements", "configurations", "environments", "devices", "hosts")
        return not any(connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in names)


def test_repeats_of_a_point_are_rows_of_one_configuration(engine: Engine, tmp_path: Path) -> None:
    done = load(engine, gpperf.look(sheet(tmp_path / "sgemm.csv.gz", REPEATS)))
    assert (done.outcome, done.rows, done.configurations) == (Outcome.IMPORTED, 9, 3)
    rows = rows_here(engine)
    assert set(Counter(row["configuration_id"] for row in rows).values()) == {3}
    assert {(row["m"], row["n"], row["k"], row["layout"]) for row in rows} == {(1024, 512, 2048, "nt")}
    assert {(row["source"], row["host"], row["campaign"]) for row in rows} == {("imported", "imported:unknown", None)}
    assert {(row["power_w"], row["energy_mj"]) for row in rows} == {(None, None)}
    assert {row["details"]["kernel"] for row in rows} == {RAN}


def test_energy_is_power_times_latency_where_there_is_power(engine: Engine, tmp_path: Path) -> None:
    done = load(engine, aiconfigurator.look(layers(tmp_path / "gb200.parquet", LAYERS)))
    assert (done.table.rows, done.rows) == (3, 2)
    short, long = rows_here(engine)
    assert (short["power_w"], short["energy_mj"], short["power_limit_w"]) == (None, None, 1200.0)
    assert (long["power_w"], long["energy_mj"], long["power_source"]) == (
        900.0,
        pytest.approx(1800.0),
        "aiconfigurator",
    )
    assert long["environment"]["kernel_source"] == "torch.nn.functional.linear"


def test_models_learn_from_them_only_when_asked(engine: Engine, tmp_path: Path) -> None:
    load(engine, aiconfigurator.look(layers(tmp_path / "l40s.parquet", LAYERS)))
    load(engine, gpperf.look(sheet(tmp_path / "tiled.csv", [TILED])))
    with engine.connect() as connection:
        assert trainings.trainable_types(connection, campaign_id=None, any_source=False) == []
        assert trainings.trainable_types(connection, campaign_id=None, any_source=True) == [
            *("nvidia-geforce-rtx-4070", "nvidia-l40s"),
        ]
        table = read_training_table(engine, "nvidia-l40s", any_source=True)
    assert set(table["source"]) == {"imported"}
    assert sorted(table["power_w"].dropna()) == [900.0]


def test_a_row_that_the_database_refuses_has_the_number_that_it_has_in_the_file(engine: Engine, tmp_path: Path) -> None:
    path = layers(tmp_path / "bad.parquet", [*LAYERS, LAYERS[0], LAYER | {"version": "zero\0byte"}])
    with pytest.raises(RowNotImported, match="row 5 cannot be imported"):
        load(engine, aiconfigurator.look(path))
    assert is_empty(engine)


def test_a_file_of_which_nothing_can_be_imported_says_why(engine: Engine, tmp_path: Path) -> None:
    path = layers(tmp_path / "fp4.parquet", [LAYERS[0]] * 3)
    with pytest.raises(BadRecording, match=r"none of its rows can be imported \(gemm in nvfp4 by .*: the farm has no"):
        load(engine, aiconfigurator.look(path))
    assert is_empty(engine)


def test_the_command_says_what_came_and_what_was_left_out_and_imports_once(
    command: Command, engine: Engine, tmp_path: Path
) -> None:
    sheet(tmp_path / "sgemm.csv", REPEATS)
    sheet(tmp_path / "tiled.csv", [TILED])
    done = command("import", "gpperf", "sgemm.csv", "tiled.csv", "--device", "NVIDIA L4")
    assert done.returncode == 0
    assert "sgemm.csv: 9 rows of 3 configurations (0 known here) are imported." in done.stderr
    assert "Left out: power_w of 9 rows: it was read after the kernel had ended." in done.stderr
    assert {name: done.stdout.count(f"-{name} ") for name in ("nvidia-geforce-rtx-4070", "nvidia-l4")} == {
        **{"nvidia-geforce-rtx-4070": 1, "nvidia-l4": 1},
    }
    again = command("import", "gpperf", "sgemm.csv", "--json")
    (known,) = json.loads(again.stdout)
    assert (known["outcome"], known["left_out"], len(known["device_uuids"])) == ("known", [], 1)
    assert len(rows_here(engine)) == 10


def test_a_dry_run_says_what_would_come_and_stores_nothing(command: Command, engine: Engine, tmp_path: Path) -> None:
    layers(tmp_path / "gb200.parquet", LAYERS)
    done = command("import", "aiconfigurator", "gb200.parquet", "--dry-run", "--json")
    (said,) = json.loads(done.stdout)
    assert (said["outcome"], said["rows"], [device["rows"] for device in said["devices"]]) == ("importable", 3, [2])
    assert {(one["what"], one["whole"], one["rows"]) for one in said["left_out"]} == {
        ("gemm in nvfp4 by torch.nn.functional.linear", True, 1),
        ("power", False, 1),
    }
    assert "2 rows of 2 configurations (0 known here) would be imported" in done.stderr
    assert "Left out: 1 row, gemm in nvfp4 by torch.nn.functional.linear: the farm has no element type" in done.stderr
    assert is_empty(engine)


def test_a_table_of_another_kind_is_left_out_and_named(command: Command, engine: Engine, tmp_path: Path) -> None:
    sheet(tmp_path / "tiled.csv", [TILED])
    layers(tmp_path / "l40s.parquet", LAYERS)
    done = command("import", "gpperf", "l40s.parquet", "tiled.csv")
    assert done.returncode == 0, done.stderr
    assert "Left out: l40s.parquet is not a recording" in done.stderr
    assert not is_empty(engine)


def test_a_mistake_is_a_message_and_begins_no_file(command: Command, engine: Engine, tmp_path: Path) -> None:
    sheet(tmp_path / "tiled.csv", [TILED])
    layers(tmp_path / "l40s.parquet", LAYERS)
    refused(command("import", "gpperf", "l40s.parquet"), 2, "l40s.parquet is not a recording", "not CSV")
    refused(command("import", "gpperf", "tiled.csv", "none.csv"), 2, "none.csv", "there is no such file")
    refused(command("import", "aiconfigurator", "tiled.csv"), 2, "tiled.csv is not a recording")
    refused(
        command("import", "dataset", "l40s.parquet"), 2, "l40s.parquet lacks the columns family, parameters, ab, cd"
    )
    assert is_empty(engine)
