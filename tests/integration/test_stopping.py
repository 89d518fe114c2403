"""What cancel and pause promise: no job is begun after they return, and what a device had in hand is stored."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import Campaign, load
from farm.db import batches
from farm.db.campaigns import Stored
from farm.services import ServiceUrls
from support.batch_steps import leased
from support.commands import Command, farm_here
from support.homes import environment, eventually
from support.programs import COORDINATOR, FARM_WORKER, programs

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"

NOTE_MARKS = """
CREATE TABLE marks (job_id bigint);
CREATE FUNCTION note_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO marks VALUES (new.current_job_id);
    RETURN new;
END $$;
CREATE TRIGGER note_mark BEFORE UPDATE OF current_job_id ON batches FOR EACH ROW
    WHEN (new.current_job_id IS NOT NULL) EXECUTE FUNCTION note_mark();
"""
_MARKED = """
SELECT count(*) FROM marks m JOIN jobs j ON j.id = m.job_id JOIN lanes l ON l.id = j.lane_id WHERE l.campaign_id = {}
"""
_HELD = (
    "SELECT count(*) FROM batches b JOIN lanes l ON l.id = b.lane_id WHERE b.state = 'leased' AND l.campaign_id = {}"
)
_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND application_name LIKE 'farm worker%' AND query NOT LIKE '%WITH held%'
"""
"""Workers that wait to mark a job or to land a batch; heartbeats apart."""


def number(engine: Engine, statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one() or 0)


@pytest.mark.long
def test_no_job_is_marked_after_a_campaign_is_stopped_and_what_was_in_hand_is_stored(
    engine: Engine, submit: Callable[[Campaign], Stored], farm_services: ServiceUrls, tmp_path: Path, database_url: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(NOTE_MARKS)
    campaign = load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000)
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    with programs(tmp_path, **urls) as start:
        start(COORDINATOR)
        start(FARM_WORKER, "--devices", f"recorded:{RECORDING}?scale=0.005")
        eventually(lambda: number(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
        for turn in range(6):
            stop = batches.cancel if turn % 2 else batches.pause
            stored = submit(Campaign.from_document({**campaign.document, "name": f"stopped-{turn}"}))
            marked, held = _MARKED.format(stored.campaign_id), _HELD.format(stored.campaign_id)
            eventually(lambda: number(engine, marked) > 5)  # noqa: B023
            with engine.connect() as connection, connection.begin() as stopping:
                assert stop(connection, stored.campaign_id)
                # A mark that waits now has a campaign in view that is still active.
                eventually(lambda: number(engine, _WAITING) or number(engine, held) == 0)  # noqa: B023
                at_the_commit = connection.execute(text(marked)).scalar_one()  # the batches are locked: it stays so
                stopping.commit()
            eventually(lambda: number(engine, held) == 0)  # noqa: B023
            assert number(engine, marked) == at_the_commit < 270
            done = f"SELECT count(*) FROM measurements WHERE campaign_id = {stored.campaign_id}"
            assert number(engine, done) == at_the_commit


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def test_a_cancel_says_what_is_in_hand_and_waits_until_it_is_stored(
    engine: Engine, device: int, small: Stored, command: Command
) -> None:
    lease = leased(engine, device)
    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
    done = command("cancel", "small")
    assert "small is cancelled; 0 jobs will not be measured" in done.stdout
    assert "Workers hold 12 more jobs. They finish the 1 in hand, at most one on each device" in done.stdout
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET last_seen_at = now() - interval '1 hour'"))

    def end() -> None:
        with engine.begin() as connection:
            batches.release(connection, lease.batch_id, device_id=device, reason="it ended", suspect=False)

    ending = threading.Timer(1.0, end)
    ending.start()
    waited = command("cancel", "small", "--wait", "--json")
    ending.join()
    assert waited.returncode == 0
    told = json.loads(waited.stdout)
    assert (told["in_hand"], told["counts"]["running"], told["counts"]["cancelled"]) == (0, 0, 12)
    assert "CPU-1 on here sends no heartbeats, its host may be down" in waited.stderr
    assert "no coordinator leads, so nothing releases its batch" in waited.stderr


CANCEL_WITH_LINES_AT_ONCE = """
import sys
from farm.cli import main, progress
progress.LINE_SECONDS = 0
sys.argv = ["farm", "cancel", "small", "--wait"]
main()
"""


def test_ctrl_c_ends_the_waiting_and_not_the_cancel(
    engine: Engine, device: int, small: Stored, tmp_path: Path, database_url: str
) -> None:
    leased(engine, device)
    process = subprocess.Popen(
        [sys.executable, "-c", CANCEL_WITH_LINES_AT_ONCE],
        env=environment(tmp_path / ".farm", FARM_DATABASE_URL=database_url),
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: number(engine, "SELECT count(*) FROM campaigns WHERE state = 'cancelled'"))
    assert process.stderr is not None
    assert "in hand" in process.stderr.readline()  # it waits now
    process.send_signal(signal.SIGINT)
    _, remarks = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted. small stays cancelled" in remarks
