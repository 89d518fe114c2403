"""`farm results --format commands`: every stored row is printed as the command that measures it again."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.cli.measuring_options import rules_of
from farm.db import measurements
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.schema.arrow import ARROW_TYPES
from farm.schema.results import COLUMNS, EXPORTED
from support.batch_steps import land, leased
from support.commands import Command, farm_here
from support.samples import cpu, document, row

LOOSE = {"power": "fraction", "power_fraction": 0.25, "timing": {"target_rse": 0.02, "warm_l2": True}}
STRICT = {"operands": {"distribution": "normal", "seed": 7}}


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def stored(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> list[Stored]:
    """Two campaigns of one name and different rules, 12 rows each."""
    device = announce(cpu())
    found = []
    for rules in (LOOSE, STRICT):
        found.append(submit(Campaign.from_document(document(measure=rules))))
        land(engine, leased(engine, device))
    return found


def lines_of(command: Command, *arguments: str) -> list[str]:
    done = command("results", "--format", "commands", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def read_back(line: str) -> tuple[Configuration, str, MeasuringRules]:
    program, name, configuration, *rest = shlex.split(line)
    assert (program, name, rest[0]) == ("farm", "measure", "--device")
    return Configuration.parse(configuration), rest[1], rules_of(rest[3] if rest[2:] else "{}")


def test_every_row_is_a_command_of_the_same_configuration_device_and_rules(
    command: Command, engine: Engine, stored: list[Stored]
) -> None:
    with engine.connect() as connection:
        rows = measurements.read(connection)
    rules = [MeasuringRules.model_validate(of) for of in (LOOSE, STRICT) for _ in range(12)]
    assert [read_back(line) for line in lines_of(command)] == [
        (Configuration.from_columns(found), "CPU-1", under) for found, under in zip(rows, rules, strict=True)
    ]


def test_commands_are_chosen_and_written_as_other_results_are(
    command: Command, stored: list[Stored], tmp_path: Path
) -> None:
    whole = lines_of(command)
    assert lines_of(command, "--limit", "3") == whole[:3]
    assert lines_of(command, "--campaign", "small") == whole[12:]  # of one name, the newest
    done = command("results", "--format", "commands", "--limit", "3", "--output", "again.sh")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "again.sh").read_text().splitlines() == whole[:3]
    done = command("results", "--format", "commands", "--output", "no/again.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no/again.sh cannot be written" in done.stderr


def test_a_row_of_no_campaign_is_repeated_under_the_default_rules(
    command: Command, engine: Engine, stored: list[Stored]
) -> None:
    with engine.begin() as connection:
        first = measurements.read(connection, limit=1)[0]
        device_id = connection.execute(text("SELECT id FROM devices")).scalar_one()
        measurements.insert(connection, [(None, None, first["configuration_id"], device_id, row())])
    (line,) = lines_of(command, "--sort", "-measurement_id", "--limit", "1")
    assert read_back(line) == (Configuration.from_columns(first), "CPU-1", MeasuringRules())


def test_energy_is_that_of_the_time_while_power_was_read(
    command: Command, engine: Engine, stored: list[Stored]
) -> None:
    with engine.begin() as connection:
        first = measurements.read(connection, limit=1)[0]
        device_id = connection.execute(text("SELECT id FROM devices")).scalar_one()
        for sustained_ms in (2.5, None):
            measured = row(2.0, power_w=100.0, runtime_settled_ms=sustained_ms)
            measurements.insert(connection, [(None, None, first["configuration_id"], device_id, measured)])
    found = json.loads(command("results", "--sort", "-measurement_id", "--limit", "3", "--json").stdout)
    assert [(r["runtime_settled_ms"], r["energy_mj"]) for r in found] == [(None, 200.0), (2.5, 250.0), (None, None)]
    flops = 2 * first["m"] * first["n"] * first["k"]
    assert [r["gflops_per_w"] for r in found[:2]] == pytest.approx([flops / 200 / 1e6, flops / 250 / 1e6])
    assert found[0]["tflops"] == found[1]["tflops"] == pytest.approx(flops / 2 / 1e9)


def test_exports_have_no_column_for_it(command: Command, stored: list[Stored], tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.parquet", "rows.json"):
        done = command("results", "-o", name)
        assert (done.returncode, done.stdout) == (0, "")
    with (tmp_path / "rows.csv").open() as file:
        assert next(csv.reader(file)) == list(EXPORTED)
    schema = pq.read_schema(tmp_path / "rows.parquet")
    assert schema.names == list(EXPORTED)
    # A column without a single value has its type too, so that files of several farms go together.
    assert schema.types == [ARROW_TYPES[COLUMNS[name].type] for name in EXPORTED]
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert (len(rows), list(rows[0])) == (24, list(EXPORTED))
    assert command("results", "--format", "csv").stdout == (tmp_path / "rows.csv").read_text()


def test_nothing_measured_is_nothing_printed(command: Command, engine: Engine) -> None:
    assert lines_of(command) == []
