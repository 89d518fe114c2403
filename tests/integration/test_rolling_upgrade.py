"""A farm is upgraded while it measures, program by program, and its coordinator goes back: no job is lost, and each is measured once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import Campaign
from farm.db import live_programs, migrate
from farm.db.campaigns import Stored
from farm.devices import DeviceKind, DeviceTraits
from farm.errors import UpgradeRefused
from farm.provenance import Provenance
from farm.services import ServiceUrls
from support.homes import eventually
from support.programs import COORDINATOR, FARM_WORKER, Program, programs
from workers.devices.recording import write_recording

NEXT = """
from alembic import op

revision = "9998"
down_revision = "{head}"


def upgrade():
    for table in ("jobs", "batches", "devices", "measurements", "failures", "programs"):
        op.execute(f"ALTER TABLE {{table}} ADD COLUMN mood text NOT NULL DEFAULT 'good'")
    op.execute("CREATE TABLE moods (id bigint PRIMARY KEY)")
"""
"""What the next version does to the database."""

CONTRACTS = """
revision = "9999"
down_revision = "9998"
workers_from = services_from = "9998"


def upgrade():
    raise AssertionError("the check comes before the first statement")
"""

IS_NEWER = """
import farm
farm.__version__ = "9.0.0"
from farm.db import migrate
migrate.head = lambda: "9998"
"""
"""As sitecustomize: the farm that belongs to the database of `NEXT`."""

JOBS = 40


def campaign(number: int) -> Campaign:
    """40 jobs of its own, of some 0.05 s each."""
    return Campaign.from_document(
        {
            "name": f"step-{number}", "owner": "ann", "targets": "any",
            "problems": {"m": "1..4", "n": number, "k": 64, "types": "f32"},
            "kernels": [{"family": "tiled", "tile": "4..13"}],
        }
    )  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """A device that answers ten such campaigns."""

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(1, 11):
            for configuration in campaign(number).expand():
                yield {"configuration": configuration, "runtime_ms": 1.0, "cost_s": 0.05}

    provenance = Provenance(
        device_type="recorded",
        device_name="Recorded",
        traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**36),
        provenance="made up for a test",
    )
    write_recording(tmp_path / "device.parquet", rows(), provenance)
    return f"recorded:{tmp_path / 'device.parquet'}?scale=1"


@pytest.fixture
def add_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Adds a revision to a copy of the migrations, which this process uses from then on."""
    copied = tmp_path / "migrations"
    shutil.copytree(migrate.MIGRATIONS, copied)

    def add(name: str, source: str) -> None:
        (copied / "versions" / name).write_text(source)
        monkeypatch.setattr(migrate, "MIGRATIONS", copied)

    return add


@pytest.mark.long
def test_a_farm_that_measures_is_upgraded_and_goes_back_without_losing_or_repeating_a_job(
    engine: Engine,
    submit: Callable[[Campaign], Stored],
    farm_services: ServiceUrls,
    database_url: str,
    tmp_path: Path,
    recording: str,
    add_revision: Callable[[str, str], None],
) -> None:
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "sitecustomize.py").write_text(IS_NEWER)
    root = Path(farm.__file__).parent.parent  # sitecustomize runs before the current folder is on the path
    newer = {"PYTHONPATH": f"{tmp_path / 'newer'}{os.pathsep}{root}"}
    old_version, new_version = (farm.__version__, migrate.head()), ("9.0.0", "9998")
    submitted = 0

    def scalar(statement: str) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text(statement)).scalar_one())

    def load() -> None:
        """Gives the farm work for the next step, and waits until it measures."""
        nonlocal submitted
        submitted += 1
        stored = submit(campaign(submitted))
        wanted = f"SELECT count(*) FROM measurements WHERE campaign_id = {stored.campaign_id}"
        eventually(lambda: scalar(wanted) > 0)

    def running() -> dict[str, set[tuple[str | None, str | None]]]:
        """Versions of the live programs, by kind."""
        with engine.connect() as connection:
            live = live_programs.live(connection)
        return {
            kind: {(one.version, one.revision) for one in live if one.program == kind}
            for kind in ("coordinator", "farm-worker")
        }

    def terms() -> int:
        return scalar("SELECT term FROM leadership")

    variables = {
        "FARM_DATABASE_URL": database_url,
        "FARM_BROKER_URL": str(farm_services.broker_url),
        "FARM_BATCH_SECONDS": "0.5",
        "FARM_RESEND_AFTER_SECONDS": "2",
    }
    with programs(tmp_path, **variables) as start:

        def replace_coordinator(former: Program, name: str, **more: str) -> Program:
            """The new one waits next to the old one, and leads when that ends."""
            following, term = start(COORDINATOR, name=name, **more), terms()
            eventually(lambda: len(running()["coordinator"]) == 2)
            assert former.stop() == 0
            eventually(lambda: terms() > term)
            return following

        def replace_worker(former: Program, name: str, **more: str) -> Program:
            assert former.stop() == 0
            return start(FARM_WORKER, "--devices", recording, name=name, **more)

        coordinator = start(COORDINATOR, name="coordinator-old")
        worker = start(FARM_WORKER, "--devices", recording, name="worker-old")
        eventually(lambda: scalar("SELECT count(*) FROM devices"))
        load()
        eventually(lambda: running() == {"coordinator": {old_version}, "farm-worker": {old_version}})

        add_revision("9998_next.py", NEXT.format(head=migrate.head()))
        migrate.upgrade(engine, check=live_programs.require_served_after)
        load()
        coordinator = replace_coordinator(coordinator, "coordinator-new", **newer)
        load()
        worker = replace_worker(worker, "worker-new", **newer)
        load()
        eventually(lambda: running() == {"coordinator": {new_version}, "farm-worker": {new_version}})

        # The way back: the database stays. What holds for the coordinator holds for workers: see test_live_programs.py.
        coordinator = replace_coordinator(coordinator, "coordinator-back")
        load()
        eventually(lambda: running() == {"coordinator": {old_version}, "farm-worker": {new_version}})

        # Now a coordinator of this version runs, which the revision after that does not serve.
        add_revision("9999_contracts.py", CONTRACTS)
        with pytest.raises(UpgradeRefused, match="serves workers from revision 9998 and services from revision 9998"):
            migrate.upgrade(engine, check=live_programs.require_served_after)
        assert migrate.current(engine) == "9998"

        jobs = submitted * JOBS
        eventually(lambda: scalar("SELECT count(*) FROM jobs WHERE state <> 'open'") == jobs)
        assert scalar("SELECT count(*) FROM jobs WHERE state = 'done'") == jobs
        assert scalar("SELECT count(DISTINCT job_id) FROM measurements WHERE job_id IS NOT NULL") == jobs
        assert scalar("SELECT count(*) FROM measurements WHERE job_id IS NOT NULL") == jobs
        assert scalar("SELECT count(*) FROM failures") == 0
        assert worker.stop() == 0
        assert coordinator.stop() == 0
    assert running() == {"coordinator": set(), "farm-worker": set()}
