"""Faults on a real card through the real farm: an illegal address, a hang, too little memory, a wrong kernel."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from farm.campaign import Campaign, plan
from farm.db import campaigns, devices, jobs
from farm.db.engine import make_engine
from farm.db.states import JobState
from farm.services import prepare_database, services
from farm.services.stack import COORDINATOR, Program, Stack
from support.homes import embedded_settings, environment, eventually, need_embedded_services, processes_under
from workers.devices import cards

TESTS = Path(__file__).parents[1]
ILLEGAL_M, ENDLESS_M, LARGE_M, WRONG_M = 111, 222, 333, 444  # as in misbehaving_worker.py


CAMPAIGN = {
    "name": "poisonous",
    "targets": "any",
    "problems": {
        "m": [64, 96, ILLEGAL_M, 128, LARGE_M, 192, ENDLESS_M, 256, WRONG_M],
        "n": 64,
        "k": [32, 64],
        "types": ["f32"],
    },
    "kernels": [{"family": "tiled", "tile": 16}],
    "measure": {
        "job_seconds": 4,
        "max_attempts": 2,
        "timing": {"max_seconds": 0.05, "min_samples": 5},
    },
}


def test_jobs_that_are_at_fault_harm_only_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    need_embedded_services()
    folder = Path(tempfile.mkdtemp(prefix="farm-", dir="/tmp"))
    folder.chmod(0o755)
    settings = embedded_settings(folder / ".farm")
    monkeypatch.setenv("FARM_DEVICES", cards.find_cards()[0].uuid)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    for name, value in environment(settings.home, PYTHONPATH=path).items():
        monkeypatch.setenv(name, value)
    worker = Program("workers", (sys.executable, "-m", "support.misbehaving_worker"))
    try:
        with services(settings, broker=True) as urls:
            prepare_database(settings, urls)
            engine = make_engine(urls.database_url, application="test")
            with Stack(urls, settings.home, programs=[COORDINATOR, worker]) as stack:

                def live() -> list[tuple[int, str, str]]:
                    stack.check()
                    with engine.connect() as connection:
                        return devices.live(connection, silent_after=60)

                eventually(live, 120)
                with engine.begin() as connection:
                    known = campaigns.known_devices(connection)
                    planned = plan(Campaign.from_document(CAMPAIGN), known, allow_missing=False)
                    campaign_id = campaigns.store(connection, planned.campaign, planned.jobs()).campaign_id

                def over() -> bool:
                    stack.check()
                    with engine.connect() as connection:
                        return campaigns.open_jobs(campaigns.counts(connection, campaign_id)) == 0

                eventually(over, 200)
                assert live(), "the card takes work again"
            with engine.connect() as connection:
                ended = jobs.listed(connection, campaign_id)
                (card,) = devices.overview(connection, silent_after=60)
            engine.dispose()
    finally:
        print((settings.home / "logs" / "workers.log").read_text()[-8000:])  # noqa: T201 - shown where the test fails
        shutil.rmtree(folder)
    assert Counter(job["state"] for job in ended) == {JobState.DONE: 10, JobState.DEAD: 8}
    said = {
        ILLEGAL_M: ("killed", "context is unusable"),
        ENDLESS_M: ("killed", "outlived its time"),
        LARGE_M: ("failed", "memory"),
        WRONG_M: ("failed", "(5, 9)"),
    }
    for job in ended:
        if job["m"] in said:
            kind, words = said[job["m"]]
            assert (job["error_class"], job["attempts"]) == (kind, 2)
            assert words in job["error"], job["error"]
            assert job["solo"] or kind == "failed"
        else:
            assert (job["state"], job["attempts"]) == (JobState.DONE, 0)
    assert card["state"] == "active"
    assert card["measurements"] == 10
    assert processes_under(folder) == []
