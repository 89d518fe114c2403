"""`farm delete`, `restore`, `deleted` and `vacuum` as people use them, here and through the API."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import batches, campaigns
from farm.db.campaigns import Stored
from support.batch_steps import leased
from support.commands import NOWHERE, Command, farm_here, refused
from support.imported_rows import imported, land
from support.samples import document
from support.serving import served

Submit = Callable[[Campaign], Stored]


@pytest.fixture(params=["here", "through the API"])
def farm(request: pytest.FixtureRequest, engine: Engine, database_url: str, tmp_path: Path) -> Iterator[Command]:
    if request.param == "here":
        yield farm_here(tmp_path, database_url)
        return
    with served(engine, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db") as url:
        run = farm_here(tmp_path, NOWHERE)
        yield lambda *arguments: run(*arguments, FARM_API_URL=url)


@pytest.fixture
def measured(engine: Engine, device: int, small: Stored) -> Stored:
    land(engine, leased(engine, device))
    with engine.begin() as connection:
        batches.fold(connection)
        campaigns.finish(connection)
    return small


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return " ".join((done.stderr + done.stdout).split())


def test_a_campaign_is_deleted_listed_restored_and_vacuumed(farm: Command, measured: Stored) -> None:
    preview = said(farm("delete", "campaign", "small", "--dry-run"))
    assert "12 jobs, 12 rows" in preview
    assert "Nothing was deleted." in preview
    refused(farm("delete", "campaign", "small"), 2, "12 jobs, 12 rows", "--yes confirms it")
    assert "small" in farm("status").stdout
    done = said(farm("delete", "campaign", "small", "--yes"))
    assert "farm restore campaign small" in done
    refused(farm("status", "small"), 4, "no campaign 'small'")
    refused(farm("delete", "campaign", "small", "--yes"), 4, "no campaign 'small'")
    (line,) = json.loads(farm("deleted", "--json").stdout)
    assert (line["kind"], line["name"], line["jobs"], line["rows"]) == ("campaign", "small", 12, 12)
    assert line["bytes"] > 0
    assert "small" in said(farm("deleted"))
    assert "12 jobs, 12 rows" in said(farm("restore", "campaign", "small"))
    assert "12" in said(farm("status", "small"))
    refused(farm("restore", "campaign", "small"), 4, "No deleted campaign is named 'small'")
    gone = json.loads(farm("delete", "campaign", "small", "--yes", "--json").stdout)
    assert (gone["dry_run"], gone["rows"]) == (False, 12)
    assert "Nothing was deleted 7d ago" in said(farm("vacuum", "--yes"))
    refused(
        farm("vacuum", "--older-than", "0s"), 2, "Remove 1 deletions permanently? Without a terminal, --yes confirms it"
    )
    assert "Would remove" in said(farm("vacuum", "--older-than", "0s", "--dry-run"))
    assert "Removed the above permanently" in said(farm("vacuum", "--older-than", "0s", "--yes"))
    assert "There are no deletions to restore." in said(farm("deleted"))


def test_a_campaign_with_open_work_is_refused_unless_it_is_cancelled(farm: Command, small: Stored) -> None:
    refused(farm("delete", "campaign", "small", "--yes"), 2, "small has 12 open jobs", "farm cancel small", "--cancel")
    assert "is deleted" in said(farm("delete", "campaign", "small", "--yes", "--cancel"))


def test_submitting_the_file_again_says_that_it_is_restored(farm: Command, device: int, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(json.dumps(document()))
    said(farm("submit", str(tmp_path / "small.yaml")))
    said(farm("delete", "campaign", "small", "--yes", "--cancel"))
    assert "small was deleted and is restored" in said(farm("submit", str(tmp_path / "small.yaml")))


def test_an_import_is_deleted_and_restored(farm: Command, engine: Engine) -> None:
    imported(engine)
    assert "12 rows" in said(farm("delete", "import", "h200.parquet", "--yes"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM devices")).scalar_one() == 0
    assert "import h200.parquet is restored: 0 jobs, 12 rows" in said(farm("restore", "import", "3fa94c0e"))
    refused(farm("delete", "import", "nothing"), 4, "There is no import 'nothing'", "h200.parquet")


def test_the_database_stays_unasked_where_the_options_are_wrong(tmp_path: Path) -> None:
    farm = farm_here(tmp_path, NOWHERE)
    refused(farm("vacuum", "--older-than", "soon"), 2, "is not a length of time")
    refused(farm("vacuum", "--older-than", "999999w"), 2, "more than a hundred years")
