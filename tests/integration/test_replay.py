"""`farm replay`: recordings through the whole farm, in a home of their own, with what was recorded of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

from farm import datasets
from farm.campaign import Campaign, load
from farm.cli.campaigns import store
from farm.cli.replay import _campaign
from farm.cli.run import _require_builder
from farm.db import campaigns, devices
from farm.devices import DeviceIdentity
from farm.errors import NoBuilder
from farm.kernels.toolchains import BUILT_WITH, TOOLCHAINS
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from support.commands import NOWHERE, called, farm_here, refused
from support.folders import open_folder
from support.homes import holder, let_go, need_embedded_services, processes_under, urls_of
from support.samples import ahead, card

SHIPPED = datasets.shipped()

REPLAYED = (
    "domain-kernels",
    "low-bit",
    "paper-tiled",
    "problem-kinds-test",
    *(pytest.param(name, marks=pytest.mark.release) for name in ("compare-cards", "domain", "learn-quickstart")),
    pytest.param("problem-kinds-groups", marks=pytest.mark.release),
)
"""Of each sort one: a test set of four families, jobs that are invalid, the paper's, and batches and groups. Of a release also several
cards, 9,942 rows, a learning campaign, and groups of three families. `tests/unit/test_datasets.py` holds the campaigns of all datasets to
the rows of their files."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a farm's home and, beside it, that of its replays, whose services go on between two commands."""
    need_embedded_services()
    with open_folder() as made:
        with holder(made / ".farm-replay") as held:
            urls_of(held)
            yield made
            let_go(held)
        assert processes_under(made) == []


def environment_of(folder: Path) -> dict[str, str]:
    """A user's whose own farm is elsewhere: no replay may ask it for anything."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "MLFLOW_"))}
    return {**kept, "FARM_HOME": str(folder / ".farm"), "FARM_DATABASE_URL": NOWHERE}


def replay(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "farm", "replay", *arguments],
        cwd=folder,
        env=environment_of(folder),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def ask(folder: Path, *arguments: str) -> Any:
    """What a command says, as JSON, of the home of the replays."""
    here = {k: v for k, v in environment_of(folder).items() if k != "FARM_DATABASE_URL"}
    done = called((*arguments, "--json"), folder, {**here, "FARM_HOME": str(folder / ".farm-replay")})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def follow_hints(folder: Path, said: str) -> list[str]:
    """Runs each command that a replay says is next, as it is printed, but for the server and the training."""
    lines = [line.split("   ")[0].strip() for line in said.splitlines() if line.startswith("  FARM_HOME=")]
    ran = []
    for line in lines:
        words = shlex.split(line)
        home, rest = (
            words[0].removeprefix("FARM_HOME="),
            words[words.index(next(w for w in words if w.endswith("farm"))) + 1 :],
        )
        if rest[0] in ("serve", "train"):
            continue
        environment = {k: v for k, v in environment_of(folder).items() if k != "FARM_DATABASE_URL"}
        done = called(rest, folder, {**environment, "FARM_HOME": home})
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        ran.append(rest[0])
    return ran


@pytest.mark.long
def test_an_export_of_ones_own_is_replayed_with_all_that_it_recorded(folder: Path) -> None:
    """Of two cards that measured the same, and a third of the campaign's rows: each card answers for itself."""
    whole = pq.read_table(SHIPPED["compare-cards"].parts[0].path)
    cards = sorted(set(whole["device_uuid"].to_pylist()))
    ids = sorted(set(whole["configuration_id"].to_pylist()))[:12]
    rows = [row for row in whole.to_pylist() if row["configuration_id"] in ids]
    pq.write_table(type(whole).from_pylist(rows, schema=whole.schema), folder / "Two cards.parquet")
    said = replay(folder, "Two cards.parquet", "--output", "two.html").stdout
    assert "24 configurations answered, 24 of them from a recording" in said
    assert "<html" in (folder / "two.html").read_text()[:2000]
    assert not (folder / ".farm" / "postgres").exists()
    assert set(follow_hints(folder, said)) >= {"results", "compare"}

    answered = ask(folder, "results", "--campaign", "two-cards")
    answering = {row["device_uuid"] for row in answered}  # other tests replay in this home too
    names = {d["uuid"]: d["facts"]["recorded_device"] for d in ask(folder, "devices") if d["uuid"] in answering}
    assert sorted(names.values()) == cards
    recorded = {(row["device_uuid"], row["configuration_id"]): row for row in rows}
    assert {(names[row["device_uuid"]], row["configuration_id"]) for row in answered} == recorded.keys()
    for row in answered:
        was = recorded[names[row["device_uuid"]], row["configuration_id"]]
        assert row["source"] == "recorded"
        for name in ("runtime_ms", "power_w", "cost_s", "window_s", "sm_clock_mhz", "verify_error"):
            assert row[name] == was[name], name
        assert row["details"] == json.loads(was["details"])
        assert row["environment"]["driver"] == json.loads(was["environment"])["driver"]
    status = ask(folder, "status", "two-cards")
    assert status["duty"] == []
    assert all(device.get("duty") is None for device in ask(folder, "devices"))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", REPLAYED)
def test_a_dataset_of_each_sort_is_replayed_whole_and_what_is_printed_next_works(folder: Path, name: str) -> None:
    said = replay(folder, name).stdout
    status = ask(folder, "status", name)
    # Jobs that the card refused are invalid here too; tests/unit/test_datasets.py counts them.
    ended = {state: n for state, n in status["counts"].items() if n and state != "invalid"}
    assert ended == {"done": SHIPPED[name].rows}
    assert status["duty"] == []
    details = [row["details"] for row in ask(folder, "results", "--campaign", name, "--limit", "50")]
    assert all("waves" in one for one in details)
    assert "results" in follow_hints(folder, said)
    page = (folder / f"{name}.html").read_text()
    assert f"{SHIPPED[name].rows:,} of {SHIPPED[name].rows:,} rows were replayed" in page


def test_a_learning_campaign_is_replayed_row_by_row_and_others_from_their_file() -> None:
    learning, searching = SHIPPED["learn-quickstart"], SHIPPED["domain-kernels"]
    listed = _campaign(learning)
    assert (listed.name, listed.search) == ("learn-quickstart", None)
    held = {configuration for _, configuration in datasets.configurations(learning.parts[0].path)}
    assert set(listed.expand()) == held
    assert searching.campaign is not None
    assert _campaign(searching) == load(searching.campaign, limit=10**6)


def test_without_a_name_the_datasets_are_listed(tmp_path: Path) -> None:
    command = farm_here(tmp_path, NOWHERE)
    listed = {one["name"]: one for one in json.loads(command("replay", "--json").stdout)}
    assert {name: one["rows"] for name, one in listed.items()} == {name: d.rows for name, d in SHIPPED.items()}
    assert all(one["shows"] and one["device_types"] and one["files"] for one in listed.values())
    printed = command("replay").stdout
    assert all(name in printed for name in SHIPPED)
    assert re.search(r"farm replay [\w-]+ ", printed)


def test_a_mistake_is_a_message_and_starts_nothing(tmp_path: Path) -> None:
    command = farm_here(tmp_path, NOWHERE)
    refused(command("replay", "paper-tild"), 4, "Did you mean paper-tiled")
    refused(command("replay", "gone.parquet"), 2, "gone.parquet", "there is no such file")
    sentinels = next(SHIPPED["compare-cards"].parts[0].path.parent.glob("*sentinels*"))
    refused(command("replay", str(sentinels)), 2, "does not say what device was measured")
    refused(command("replay", "paper-tiled", "-o", "no/folder.html"), 2, "there is no folder no")
    (tmp_path / "a,b.parquet").write_bytes(SHIPPED["paper-tiled"].parts[0].path.read_bytes())
    refused(command("replay", "a,b.parquet"), 2, "a comma or a question mark")
    assert list(tmp_path.glob(".farm*")) == []


def test_a_campaign_that_is_refused_is_not_stored(
    engine: Engine, announce: Callable[[DeviceIdentity], int], database_url: str
) -> None:
    announce(card())
    opened = Session(Settings(), ServiceUrls(database_url=database_url, broker_url=None, tracking_uri=""), engine)
    campaign = Campaign.from_document(ahead())
    with pytest.raises(NoBuilder):
        store(opened, campaign, allow_missing=False, check=lambda c, i: _require_builder(opened, c, i, []))
    with engine.connect() as connection:
        for table in ("campaigns", "jobs", "kernels"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0
    built_here = [toolchain.text(BUILT_WITH) for toolchain in TOOLCHAINS]
    stored = store(opened, campaign, allow_missing=False, check=lambda c, i: _require_builder(opened, c, i, built_here))
    with engine.connect() as connection:
        assert campaigns.counts(connection, stored.campaign_id)["pending"] == 12
        assert devices.live_recordings(connection, silent_after=20) == {}
