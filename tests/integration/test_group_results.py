"""Results of products in groups: tables, bests, reports and exports hold each apart, and describe many groups by their numbers."""

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

MANY = ",".join(str(size) for size in (*range(13), *[0] * 20, 50))
SUMMARY = "groups=34 (13 with rows, 1 to 50, median 7)"
PROBLEMS = {"groups": ["none", "64*2", "128,0*7", MANY]}
TIMES_MS = {
    "": (0.02, 0.01),
    " groups=64*2": (0.03, 0.04),
    " groups=128,0*7": (0.05, 0.04),
    f" groups={MANY}": (0.5, 0.6),
}
"""With one thread and with two, by what follows the shape."""


@pytest.fixture
def grouped(engine: Engine, device: int, submit: Callable[[Campaign], campaigns.Stored]) -> campaigns.Stored:
    return kinds_measured(engine, device, submit, name="grouped", problems=PROBLEMS, times_ms=TIMES_MS)


@pytest.fixture
def command(tmp_path: Path, engine: Engine) -> Command:
    return farm_here(tmp_path, engine.url.render_as_string(hide_password=False))


def stored_texts() -> list[str]:
    return sorted(rest.removeprefix(" groups=") or "none" for rest in TIMES_MS)


def test_the_jobs_of_a_campaign_are_those_of_each(engine: Engine, grouped: campaigns.Stored) -> None:
    query = "SELECT c.groups, count(*) FROM jobs j JOIN configurations c ON c.id = j.configuration_id GROUP BY 1"
    with engine.connect() as connection:
        found = sorted(map(tuple, connection.execute(text(query))))
    assert sorted(groups.replace("0*20", ",".join("0" * 20)) for groups, _ in found) == stored_texts()
    assert {count for _, count in found} == {2}


@pytest.mark.usefixtures("grouped")
def test_each_has_a_best_kernel(command: Command) -> None:
    found = json.loads(command("best", "grouped", "--json").stdout)["found"]
    assert [one["best"]["kernel"] for one in sorted(found, key=lambda one: float(one["best"]["runtime_ms"]))] == [
        "blas(threads=2)", "blas(threads=1)", "blas(threads=2)", "blas(threads=1)",
    ]  # fmt: skip
    assert {"none", "64*2", "128,0*7"} < {one["groups"] for one in found}
    for groups, batch, expected in (
        ("64*2", "1", ["64*2"]),
        ("64,64", "1", ["64*2"]),
        ("none", "1", ["none"]),
        ("64*2", "2", []),
    ):
        chosen = json.loads(command("best", "grouped", "--groups", groups, "--batch", batch, "--json").stdout)
        assert [one["groups"] for one in chosen["found"]] == expected
        assert chosen["summary"]["problems"] == len(expected)
    shown = command("best", "grouped", COLUMNS="200").stdout
    for rest in ("", " groups=64*2", " groups=128,0*7", f" {SUMMARY}"):
        assert f"128x64x32 f32 nn{rest} " in shown


@pytest.mark.usefixtures("grouped")
def test_results_show_groups_where_a_row_has_some_and_many_by_their_numbers(command: Command) -> None:
    shown = command("results", COLUMNS="200").stdout
    assert any("kernel" in line and " groups " in line for line in shown.splitlines())
    assert "34 (13 with rows, 1 to 50, median 7)" in shown
    assert "11,12" not in shown
    alone = command("results", "--where", "groups == 'none'", COLUMNS="200").stdout
    assert "groups" not in alone
    assert "blas(threads=2)" in alone
    two = json.loads(command("results", "--where", "groups == '64*2'", "--json").stdout)
    assert [one["groups"] for one in two] == ["64*2"] * 2


@pytest.mark.usefixtures("grouped")
def test_exports_have_all_sizes(command: Command, tmp_path: Path) -> None:
    assert command("results", "--output", "grouped.csv").returncode == 0
    with (tmp_path / "grouped.csv").open(newline="", encoding="utf-8") as stream:
        found = {one["groups"] for one in csv.DictReader(stream)}
    assert found == {"none", "64*2", "128,0*7", f"{','.join(map(str, range(13)))},0*20,50"}


@pytest.mark.usefixtures("grouped")
def test_a_report_holds_them_apart(command: Command, tmp_path: Path) -> None:
    done = command("report", "grouped")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "grouped.html").read_text(encoding="utf-8").replace("<wbr>", "")
    for rest in ("", " groups=64*2", " groups=128,0*7", f" {SUMMARY}"):
        assert f">128x64x32 f32 nn{rest}<" in written
