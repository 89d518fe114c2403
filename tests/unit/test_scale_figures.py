"""The arithmetic of docs/scale.md follows from the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import farm
from trainer.memory import CONFIGURATION_BYTES, MANY_CONFIGURATIONS, MORE_CONFIGURATION_BYTES, ROW_BYTES

ROOT = Path(farm.__file__).parent.parent
SCALE = " ".join((ROOT / "docs" / "scale.md").read_text().split())


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_disk_of_a_hundred_million_jobs_follow_from_what_ten_million_rows_take() -> None:
    sizes = result("ten_million_rows")["sizes"]
    small, largest = sizes["100000"], sizes["10000000"]
    per_job = largest["database_gb"] * 1e2
    assert f"Landing takes {100 * (largest['land_us'] / small['land_us'] - 1):.0f}% longer with ten million" in SCALE
    assert f"take {per_job:,.0f} bytes a job with their indexes" in SCALE
    assert f"10⁸ jobs take {per_job / 10:.0f} GB" in SCALE
    assert f"VACUUM reads 10⁷ rows in {largest['vacuum_s']:.1f} s" in SCALE


def test_the_memory_of_a_training_follows_from_what_millions_of_rows_take_and_is_estimated_above_it() -> None:
    table = result("training_tables")["sizes"][-1]
    assert f"Of {table['rows'] / 1e6} million rows, each takes {table['bytes_per_row']} bytes until" in SCALE
    assert f"so ten million rows of a type take {table['bytes_per_row'] / 100:.0f} GB" in SCALE
    assert f"It reads {table['rows'] / table['read_s']:,.0f} rows a second" in SCALE
    assert table["bytes_per_row"] < ROW_BYTES < 1.5 * table["bytes_per_row"]
    of_rows = {of["rows"]: 1e6 * of["peak_mb"] for of in result("training_scale")["sizes"]}
    estimates = {
        (1000, MANY_CONFIGURATIONS): CONFIGURATION_BYTES,
        (MANY_CONFIGURATIONS, 10**6): MORE_CONFIGURATION_BYTES,
    }
    for (few, many), estimate in estimates.items():
        measured = (of_rows[many] - of_rows[few]) / (many - few)
        assert measured < estimate < 1.5 * measured


def test_the_hours_of_a_large_backup_follow_from_the_rates_of_a_small_one() -> None:
    measured = result("backup")
    hours = {step: 1e8 / measured["rows"] * measured[step] / 3600 for step in ("create_s", "restore_s")}
    assert f"takes {hours['create_s']:.1f} hours and `farm backup restore` {hours['restore_s']:.1f} hours" in SCALE


def test_the_decision_against_partitions_names_what_was_measured() -> None:
    steps = result("partitions")["steps_ms"]
    ratio = {step: of["partitioned"] / of["plain"] for step, of in steps.items()}
    assert f"Landing takes {ratio['land 100 rows']:.2f} times as long" in SCALE
    assert f"the row of a job takes {ratio['row of a job']:.1f} times as long" in SCALE
    assert f"the rows of a configuration {ratio['rows of a configuration']:.1f} times" in SCALE
    assert min(ratio[step] for step in ("row of a job", "rows of a configuration")) > 1.1
    assert ratio["remove a month"] < 0.5
