"""A device that flips bits, among others of its type: real workers, coordinator, Postgres and Redis."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import devices
from farm.db.campaigns import Stored
from farm.db.states import DeviceState
from farm.services import ServiceUrls
from support.commands import farm_here
from support.corrupting_worker import DEVICES, FAULT, FAULTY_K, uuids
from support.homes import eventually
from support.programs import COORDINATOR, programs
from workers.devices import cpu

TESTS = Path(__file__).parents[1]
Serving = Callable[[int, str], AbstractContextManager[list[str]]]
WORKER = (sys.executable, "-m", "support.corrupting_worker")


def campaign(targets: object) -> Campaign:
    return Campaign.from_document(
        {
            "name": "bits",
            "targets": targets,
            "problems": {"m": [64, 96, 128, 160], "n": 64, "k": FAULTY_K, "types": ["f32"]},
            "kernels": [{"family": "blas", "threads": 1}],
            "measure": {"max_attempts": 10, "timing": {"max_seconds": 0.02, "min_samples": 3, "warmup_seconds": 0.001}},
        }
    )


@pytest.fixture
def serving(engine: Engine, database_url: str, farm_services: ServiceUrls, tmp_path: Path) -> Serving:
    """A coordinator, and this machine's CPU as so many devices of which the first is faulty."""

    @contextmanager
    def served(count: int, fault: str) -> Iterator[list[str]]:
        urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
        with programs(tmp_path, FARM_RESEND_AFTER_SECONDS="1", FARM_BATCH_MAX_JOBS="2", **urls) as start:
            start(COORDINATOR)
            start(WORKER, "--devices", "cpu", PYTHONPATH=path, **{FAULT: fault, DEVICES: str(count)})
            eventually(lambda: len(live(engine)) == count)
            yield uuids(cpu.identify(), count)

    return served


def live(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [uuid for _, uuid, _ in devices.live(connection, silent_after=60)]


def set_state(engine: Engine, uuid: str, state: DeviceState) -> None:
    with engine.begin() as connection:
        ((device_id,),) = connection.execute(text("SELECT id FROM devices WHERE uuid = :uuid"), {"uuid": uuid})
        devices.set_state(connection, device_id, state, None)


def asked(engine: Engine, statement: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


@pytest.mark.long
def test_jobs_whose_result_a_device_changes_are_measured_on_another_one_and_it_is_quarantined(
    engine: Engine,
    submit: Callable[[Campaign], Stored],
    serving: Serving,
    tmp_path: Path,
    database_url: str,
) -> None:
    command = farm_here(tmp_path, database_url)
    with serving(2, "first") as (bad, good):
        set_state(engine, good, DeviceState.DRAINED)  # or it may be the faster one, and measure all
        submit(campaign("any"))
        eventually(lambda: len(asked(engine, "SELECT DISTINCT job_id FROM failures")) >= 2)
        set_state(engine, good, DeviceState.ACTIVE)
        eventually(lambda: asked(engine, "SELECT state FROM campaigns") == [("done",)], 300)
        eventually(lambda: asked(engine, f"SELECT state FROM devices WHERE uuid = '{bad}'") == [("quarantined",)])
        of_rows = "SELECT d.uuid, count(*) FROM measurements r JOIN devices d ON d.id = r.device_id WHERE source = 'measured' GROUP BY 1"
        assert asked(engine, of_rows) == [(good, 4)]
        of_failures = "SELECT DISTINCT d.uuid, f.kind FROM failures f JOIN devices d ON d.id = f.device_id"
        assert asked(engine, of_failures) == [(bad, "corrupted")]
        done = command("health", "--json")
        assert done.returncode == 7
        found = {one["uuid"]: one for one in json.loads(done.stdout)["devices"]}
        assert [one["verdict"] for one in found[bad]["findings"]] == ["quarantined", "corrupting"]
        assert (
            "changed between launches, the last: The result is corrupted: after the first launch"
            in found[bad]["findings"][1]["evidence"]
        )
        assert found[good]["verdict"] == "unknown"
        shown = {one["uuid"]: one for one in json.loads(command("devices", "--json").stdout)}
        assert "it corrupted results of" in shown[bad]["state_reason"]
        assert live(engine) == [good]


@pytest.mark.long
def test_a_device_whose_rows_differ_from_those_of_two_others_is_quarantined(
    engine: Engine, submit: Callable[[Campaign], Stored], serving: Serving
) -> None:
    with serving(3, "always") as (bad, *good):
        submit(campaign([{"each": cpu.identify().type}]))
        eventually(lambda: asked(engine, f"SELECT state FROM devices WHERE uuid = '{bad}'") == [("quarantined",)], 300)
        assert asked(engine, "SELECT count(*) FROM failures") == [(0,)]
        ((reason,),) = asked(engine, f"SELECT state_reason FROM devices WHERE uuid = '{bad}'")
        assert "rows have other bits than the same work on most devices of its type" in str(reason)
        assert sorted(live(engine)) == good
