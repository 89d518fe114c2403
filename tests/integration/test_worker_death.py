"""A worker's child process that is killed in the middle of a batch: nothing is lost, nothing has two results."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import load, plan
from farm.db import campaigns, devices
from farm.db.engine import make_engine
from farm.db.states import OPEN_JOB_STATES
from farm.services import prepare_database, services
from farm.services.stack import COORDINATOR, WORKERS, Stack
from support.folders import open_folder
from support.homes import embedded_settings
from support.programs import kill_in_a_batch, measuring

EXAMPLES = Path(farm.__file__).parent.parent / "examples"


def wait_for(condition: Callable[[], bool], stack: Stack, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        stack.check()
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def scalar(engine: Engine, statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one())


@pytest.mark.long
def test_a_killed_child_costs_its_job_one_attempt_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"
    monkeypatch.setenv("FARM_DEVICES", f"recorded:{recording}?scale=0.04")
    with open_folder() as folder:
        settings = embedded_settings(folder / ".farm")
        with services(settings, broker=True) as urls:
            prepare_database(settings, urls)
            engine = make_engine(urls.database_url, application="test")
            with Stack(urls, settings.home, programs=[COORDINATOR, WORKERS]) as stack:

                def live() -> bool:
                    with engine.connect() as connection:
                        return bool(devices.live(connection, silent_after=60))

                wait_for(live, stack)
                campaign = load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000)
                with engine.begin() as connection:
                    known = campaigns.known_devices(connection)
                    jobs = plan(campaign, known, allow_missing=False).jobs()
                    stored = campaigns.store(connection, campaign, jobs)
                kill_in_a_batch(engine, lambda: measuring(stack.pids()["workers"]))

                def ended() -> bool:
                    with engine.connect() as connection:
                        counts = campaigns.counts(connection, stored.campaign_id)
                    return not any(counts[state] for state in OPEN_JOB_STATES)

                wait_for(ended, stack)
            assert scalar(engine, "SELECT count(*) FROM jobs WHERE state = 'done'") == 270
            assert scalar(engine, "SELECT count(*) FROM measurements") == 270
            assert scalar(engine, "SELECT count(DISTINCT job_id) FROM measurements") == 270
            assert scalar(engine, "SELECT sum(attempts) FROM jobs") == 1
            assert scalar(engine, "SELECT count(*) FROM jobs WHERE solo AND attempts = 1") == 1
            assert (
                scalar(engine, "SELECT count(*) FROM batches WHERE end_reason LIKE '%killed by signal SIGKILL%'") == 1
            )
            engine.dispose()
