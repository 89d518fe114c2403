"""Why nothing moves: what keeps every coordinator from leading is named, with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db import obstacles
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from support.commands import Command, farm_here
from support.homes import eventually
from support.obstructing import foreign, read_only
from support.samples import cpu, document

Submit = Callable[[Campaign], Stored]


@pytest.fixture
def small(announce: Callable[[DeviceIdentity], int], submit: Submit) -> Stored:
    announce(cpu())
    return submit(Campaign.from_document(document()))


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    # No program speaks for the device of these tests.
    return partial(farm_here(tmp_path, database_url), FARM_SILENT_AFTER_SECONDS="600")


def doctor(command: Command) -> dict[str, Any]:
    return {one["check"]: one for one in json.loads(command("doctor", "--json").stdout)}


@pytest.mark.long
def test_a_database_that_takes_no_writes_is_named_wherever_nothing_moves(
    engine: Engine, small: Stored, command: Command
) -> None:
    assert doctor(command)["database"]["state"] == "ok"
    with read_only(engine):
        status = command("status").stderr
        why = "the database takes no writes: default_transaction_read_only is on (set by: database); turn it off"
        assert f"none can lead: {why}" in status
        assert "farm up starts one" not in status
        shown = json.loads(command("status", "small", "--json").stdout)
        assert shown["coordinator"]["read_only"].startswith(why)
        assert [why in one["why"] for one in shown["stuck"]] == [True]
        checks = doctor(command)
        assert checks["database"]["state"] == "missing"
        assert "takes no writes: default_transaction_read_only is on" in checks["database"]["what"]
        assert checks["database"]["fix"].startswith("turn it off there")
        assert why in checks["coordinator"]["what"]
        assert "see database" in checks["coordinator"]["fix"]
    assert "farm up starts one" in command("status").stderr
    assert doctor(command)["database"]["state"] == "ok"


def test_a_standby_is_named_whatever_its_settings_are() -> None:
    for refuses in (True, False):
        found = obstacles.why_read_only(standby=True, refuses=refuses, source="default")
        assert found is not None
        assert "standby" in found.why
        assert "primary" in found.how_to_end
    assert obstacles.why_read_only(standby=False, refuses=False, source="default") is None


@pytest.mark.long
def test_who_holds_the_row_of_the_leader_is_named_where_no_coordinator_can_lead(
    engine: Engine, small: Stored, command: Command
) -> None:
    with foreign(engine, "SELECT 1 FROM leadership FOR UPDATE") as pid:
        eventually(lambda: f"the leader's row is held by session {pid} (psql" in command("status").stderr, 30)
        ends = f"SELECT pg_terminate_backend({pid}) ends it"
        lines = command("status").stderr.splitlines()
        assert not any("farm up starts one" in line for line in lines)
        told = {line.split(":")[0] for line in lines if ends in line}
        assert told >= {"coordinator", "locks"}
        (stuck,) = json.loads(command("status", "small", "--json").stdout)["stuck"]
        assert stuck["cause"] == "no_coordinator"
        assert ends in stuck["why"]
        checks = doctor(command)
        assert f"held by session {pid}" in checks["coordinator"]["what"]
        assert "locks" in checks["coordinator"]["fix"]
        assert ends in checks["locks"]["what"]
    assert "farm up starts one" in command("status").stderr
