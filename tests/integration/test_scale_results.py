"""Results of problems with scale factors or fused operations: tables, bests, reports and comparisons hold each apart."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import campaigns
from support.commands import Command, farm_here
from support.problem_kinds import kinds_measured

PROBLEMS = {"scale": ["none", "row"], "fused": ["none", "bias+gelu"]}
TIMES_MS = {"": (0.02, 0.01), " scale=row": (0.03, 0.04), " fused=bias+gelu": (0.04, 0.03), " scale=row fused=bias+gelu": (0.5, 0.6)}  # fmt: skip
"""With one thread and with two, by what follows the shape."""


@pytest.fixture
def added(engine: Engine, device: int, submit: Callable[[Campaign], campaigns.Stored]) -> campaigns.Stored:
    return kinds_measured(engine, device, submit, name="added", problems=PROBLEMS, times_ms=TIMES_MS)


@pytest.fixture
def command(tmp_path: Path, engine: Engine) -> Command:
    return farm_here(tmp_path, engine.url.render_as_string(hide_password=False))


def test_the_jobs_of_a_campaign_are_those_of_each(engine: Engine, added: campaigns.Stored) -> None:
    query = (
        "SELECT c.scale, c.fused, count(*) FROM jobs j JOIN configurations c ON c.id = j.configuration_id GROUP BY 1, 2"
    )
    with engine.connect() as connection:
        found = sorted(map(tuple, connection.execute(text(query))))
    assert found == [(scale, fused, 2) for scale in ("none", "row") for fused in ("bias+gelu", "none")]


@pytest.mark.usefixtures("added")
def test_each_has_a_best_kernel(command: Command) -> None:
    found = json.loads(command("best", "added", "--json").stdout)["found"]
    assert {(one["scale"], one["fused"]): one["best"]["kernel"] for one in found} == {
        ("none", "none"): "blas(threads=2)",
        ("row", "none"): "blas(threads=1)",
        ("none", "bias+gelu"): "blas(threads=2)",
        ("row", "bias+gelu"): "blas(threads=1)",
    }
    shown = command("best", "added", COLUMNS="200").stdout
    for rest in TIMES_MS:
        assert f"128x64x32 f32 nn{rest} " in shown


@pytest.mark.usefixtures("added")
def test_results_show_the_columns_in_which_a_row_is_not_as_usual(command: Command) -> None:
    heading = next(line for line in command("results", COLUMNS="200").stdout.splitlines() if "kernel" in line).split()
    assert {"scale", "fused"} < {*heading}
    assert "batch" not in heading
    scaled = command("results", "--where", "fused == 'none'", COLUMNS="200").stdout
    assert " scale " in scaled
    assert "fused" not in scaled
    alone = command("results", "--where", "scale == 'none' and fused == 'none'", COLUMNS="200").stdout
    assert "scale" not in alone
    assert "blas(threads=2)" in alone
    biased = json.loads(command("results", "--where", "fused in ('bias+gelu',)", "--json").stdout)
    assert [(one["scale"], one["fused"]) for one in biased].count(("row", "bias+gelu")) == 2
    assert len(biased) == 4


@pytest.mark.usefixtures("added")
def test_exports_have_both_columns(command: Command, tmp_path: Path) -> None:
    assert command("results", "--output", "added.csv").returncode == 0
    with (tmp_path / "added.csv").open(newline="", encoding="utf-8") as stream:
        found = [(one["scale"], one["fused"]) for one in csv.DictReader(stream)]
    assert sorted(found) == [
        (scale, fused) for scale in ("none", "row") for fused in ("bias+gelu", "none") for _thread in range(2)
    ]


@pytest.mark.usefixtures("added")
def test_a_report_holds_them_apart(command: Command, tmp_path: Path) -> None:
    done = command("report", "added")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "added.html").read_text(encoding="utf-8")
    for rest in TIMES_MS:
        assert f">128x64x32 f32 nn{rest}<" in written
