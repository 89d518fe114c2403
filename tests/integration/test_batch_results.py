"""Results of batches: tables, bests and reports hold each batch apart, and their figures are those of all its products."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import campaigns
from support.commands import Command, farm_here
from support.problem_kinds import kinds_measured

PROBLEMS = {"batch": [1, 8, 64]}
TIMES_MS = {1: (0.02, 0.01), 8: (0.03, 0.04), 64: (0.5, 0.3)}
"""With one thread and with two, by batch."""


@pytest.fixture
def batched(engine: Engine, device: int, submit: Callable[[Campaign], campaigns.Stored]) -> campaigns.Stored:
    return kinds_measured(
        engine,
        device,
        submit,
        name="batched",
        problems=PROBLEMS,
        times_ms={f" batch={batch}": times for batch, times in TIMES_MS.items()},
    )


@pytest.fixture
def command(tmp_path: Path, engine: Engine) -> Command:
    return farm_here(tmp_path, engine.url.render_as_string(hide_password=False))


def test_the_jobs_of_a_campaign_are_those_of_its_batches(engine: Engine, batched: campaigns.Stored) -> None:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT c.batch, count(*) FROM jobs j JOIN configurations c ON c.id = j.configuration_id GROUP BY 1")
        )
        assert sorted(map(tuple, found)) == [(1, 2), (8, 2), (64, 2)]


@pytest.mark.usefixtures("batched")
def test_each_batch_has_a_best_kernel(command: Command) -> None:
    found = json.loads(command("best", "batched", "--json").stdout)["found"]
    bests = {one["batch"]: (one["best"]["kernel"], one["tried"], one["grid"]) for one in found}
    assert bests == {
        1: ("blas(threads=2)", 2, 2),
        8: ("blas(threads=1)", 2, 2),
        64: ("blas(threads=2)", 2, 2),
    }
    shown = command("best", "batched", COLUMNS="200").stdout
    for problem in ("128x64x32 f32 nn ", "128x64x32 f32 nn batch=8 ", "128x64x32 f32 nn batch=64 "):
        assert problem in shown


@pytest.mark.usefixtures("batched")
def test_results_show_the_batch_where_a_row_has_one(command: Command) -> None:
    heading = command("results", COLUMNS="200").stdout.splitlines()[0:3]
    assert any(" batch " in line for line in heading)
    alone = command("results", "--where", "batch == 1", COLUMNS="200").stdout
    assert "batch" not in alone
    assert "blas(threads=2)" in alone
    eight = json.loads(command("results", "--where", "batch == 8", "--json").stdout)
    assert {one["batch"] for one in eight} == {8}
    (one,) = [one for one in eight if one["parameters"] == {"threads": 1}]
    assert one["tflops"] == pytest.approx(8 * 2 * 128 * 64 * 32 / 0.03e-3 / 1e12)


@pytest.mark.usefixtures("batched")
def test_a_report_holds_batches_apart(command: Command, tmp_path: Path) -> None:
    done = command("report", "batched")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "batched.html").read_text(encoding="utf-8")
    for problem in ("128x64x32 f32 nn", "128x64x32 f32 nn batch=8", "128x64x32 f32 nn batch=64"):
        assert f">{problem}<" in written
