"""Workers of several versions in one farm: what one cannot read waits for another, and nothing is sent for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

import farm
from farm.broker.queues import queue_of_device
from farm.campaign import Campaign
from farm.coordinator.dispatch import form_batches, read_schedule
from farm.coordinator.estimates import Cause, estimates, read_farm_state, skew_text
from farm.coordinator.job_costs import CostBook
from farm.db import batches, campaigns, devices, liveness, migrate, worker_versions
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.engine import make_engine
from farm.db.states import FailureKind
from farm.db.worker_versions import WorkerVersion
from farm.devices import DeviceIdentity
from farm.errors import DatabaseIsNewer
from farm.services import ServiceUrls
from farm.settings import Settings
from support.batch_steps import claim, counts, form, land, leased
from support.homes import eventually
from support.programs import COORDINATOR, FARM_WORKER, programs
from support.samples import cpu, document

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]


@pytest.fixture
def runs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Announces a version of the farm as that of a device's worker."""

    def announced(device_id: int, version: str) -> None:
        with monkeypatch.context() as patched, engine.begin() as connection:
            patched.setattr(worker_versions, "own", lambda: WorkerVersion(version, migrate.head()))
            worker_versions.announce(connection, device_id)

    return announced


def scalar(engine: Engine, statement: str) -> object:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one_or_none()


def write(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def formed(engine: Engine) -> list[str]:
    """The queues of the batches that a coordinator forms now."""
    form_batches(engine, read_schedule(engine, Settings()), CostBook(), Settings(batch_max_jobs=500))
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT queue FROM batches WHERE state = 'queued' ORDER BY id")).scalars())


def stuck(engine: Engine, stored: Stored) -> list[tuple[Cause, int, str]]:
    with engine.connect() as connection:
        ahead = estimates(connection, read_farm_state(connection, Settings()), [stored.campaign_id])[stored.campaign_id]
    return [(one.cause, one.jobs, one.why) for one in ahead.stuck]


LED = "UPDATE leadership SET expires_at = now() + interval '1 hour', host = 'here', pid = 1"

UNREADABLE = {
    "UPDATE configurations SET family = 'tomorrow'": "does not know the kernel family 'tomorrow'",
    'UPDATE configurations SET parameters = \'{"threads": 1, "streams": 2}\'': "cannot read the kernel: blas has no parameter 'streams'",
    "UPDATE configurations SET ab = 'f6'": "cannot read the job: ValueError: 'f6' is not a valid ElementType",
    "UPDATE configurations SET layout = 'zz'": "cannot read the job: ValueError: 'zz' is not a valid Layout",
    "UPDATE campaigns SET rules = rules || '{\"cool\": true}'": "cannot read the measuring rules:",
}


@pytest.mark.parametrize("change", UNREADABLE)
def test_what_a_worker_cannot_read_is_refused_with_a_reason_and_waits(
    engine: Engine, device: int, small: Stored, runs: Callable[[int, str], None], change: str
) -> None:
    runs(device, "1.0")
    write(engine, change)
    lease = leased(engine, device)
    assert (len(lease.jobs), len(lease.refused)) == (0, 12)
    land(engine, lease)
    assert counts(engine, small.campaign_id) == {"pending": 12}
    assert scalar(engine, "SELECT sum(attempts) FROM jobs") == 0
    assert scalar(engine, "SELECT count(*) FROM failures WHERE kind = 'unsupported'") == 12
    message = str(scalar(engine, "SELECT min(message) FROM failures"))
    assert message.startswith(f"gemm-farm 0.1.0 (revision {migrate.head()}) of this worker {UNREADABLE[change]}")
    assert formed(engine) == []


def test_the_readable_jobs_of_a_batch_are_measured(engine: Engine, device: int, small: Stored) -> None:
    write(engine, "UPDATE configurations SET family = 'tomorrow' WHERE parameters = '{\"threads\": 2}'")
    land(engine, leased(engine, device))
    assert counts(engine, small.campaign_id) == {"done": 6, "pending": 6}
    assert formed(engine) == []  # the version of this worker is not known: the device itself is not asked again


def test_a_refusal_holds_for_every_worker_of_the_version_and_for_none_of_another(
    engine: Engine, device: int, announce: Announce, small: Stored, runs: Callable[[int, str], None]
) -> None:
    old, new = announce(cpu(2)), announce(cpu(3, threads=8))
    runs(device, "1.0"), runs(old, "1.0")
    write(engine, "UPDATE devices SET vanished_at = now() WHERE uuid = 'CPU-3'")
    write(engine, "UPDATE configurations SET family = 'tomorrow'")
    land(engine, leased(engine, device))
    assert formed(engine) == []
    with engine.begin() as connection:
        assert batches.give_up(connection) == 0
    write(engine, LED)
    ((cause, jobs, why),) = stuck(engine, small)
    assert (cause, jobs) == (Cause.WORKER_VERSION, 12)
    assert "does not know the kernel family 'tomorrow'" in why
    assert f"gemm-farm 1.0 (revision {migrate.head()}) runs on here" in why

    # One of another version comes, and gets them all.
    write(engine, "UPDATE devices SET vanished_at = NULL WHERE uuid = 'CPU-3'")
    runs(new, "2.0")
    assert set(formed(engine)) == {queue_of_device("CPU-3")}
    assert stuck(engine, small) == []
    with engine.connect() as connection:
        text_of = skew_text(liveness.devices(connection, silent_after=60))
    assert text_of is not None
    assert "gemm-farm 1.0" in text_of
    assert "gemm-farm 2.0" in text_of


def test_a_worker_that_is_upgraded_gets_what_it_refused(
    engine: Engine, device: int, submit: Submit, runs: Callable[[int, str], None]
) -> None:
    pinned = submit(Campaign.from_document(document(targets=[{"device": "CPU-1"}])))
    runs(device, "1.0")
    write(engine, "UPDATE configurations SET family = 'tomorrow'")
    land(engine, leased(engine, device))
    assert formed(engine) == []  # nor is the only device of its pool asked again
    write(engine, "UPDATE devices SET last_seen_at = '-infinity'")  # its worker is stopped, to be upgraded
    with engine.begin() as connection:
        assert batches.give_up(connection) == 0
    write(engine, "UPDATE devices SET last_seen_at = now()")
    write(engine, "UPDATE configurations SET family = 'blas'")
    runs(device, "2.0")
    assert set(formed(engine)) == {queue_of_device("CPU-1")}
    for batch_id in range(2, 2 + 12):
        lease = claim(engine, batch_id, device)
        if lease is None:
            break
        land(engine, lease)
    while (batch_id_or_none := form(engine)) is not None:
        lease = claim(engine, batch_id_or_none, device)
        assert lease is not None
        land(engine, lease)
    assert counts(engine, pinned.campaign_id) == {"done": 12}


def test_equal_devices_refuse_the_same_only_with_workers_of_one_version(
    engine: Engine, device: int, announce: Announce, small: Stored, runs: Callable[[int, str], None]
) -> None:
    equal = announce(cpu(2))
    runs(device, "1.0"), runs(equal, "2.0")
    lease = leased(engine, device)
    land(engine, lease, {job.id: Failure(FailureKind.INVALID, "no such thread") for job in lease.jobs})
    assert counts(engine, small.campaign_id) == {"pending": 12}
    runs(device, "2.0")
    lease = leased(engine, equal)
    land(engine, lease, {job.id: Failure(FailureKind.INVALID, "no such thread") for job in lease.jobs})
    assert counts(engine, small.campaign_id) == {"invalid": 12}


def test_an_unclaimed_batch_is_explained_by_what_its_worker_says(engine: Engine, device: int, small: Stored) -> None:
    assert form(engine) is not None
    write(engine, "UPDATE batches SET created_at = now() - interval '1 hour', sends = 19, sent_at = now()")
    write(engine, LED)
    ((cause, _, why),) = stuck(engine, small)
    assert cause is Cause.NOT_TAKEN
    assert "no worker claimed it or reported why not" in why
    with engine.begin() as connection:
        devices.note_claim_error(connection, device, "ProgrammingError: permission denied for table jobs")
    ((_, _, why),) = stuck(engine, small)
    assert "the worker of CPU-1 on here got one" in why
    assert "permission denied for table jobs" in why


# --- rolling upgrades ----------------------------------------------------------------------------------

NEXT = """\
ALTER TABLE jobs ADD COLUMN mood text DEFAULT 'good';
ALTER TABLE batches ADD COLUMN mood text NOT NULL DEFAULT 'good';
ALTER TABLE devices ADD COLUMN mood text NOT NULL DEFAULT 'good';
ALTER TABLE failures ADD COLUMN mood text;
ALTER TABLE measurements ADD COLUMN mood text;
CREATE TABLE moods (id bigint PRIMARY KEY);
UPDATE alembic_version SET version_num = '9999';
"""
"""What a newer version may do to the database, workers of this one going on: a statement a line, each a transaction of its own,
as one that holds the locks of several tables can deadlock with workers."""

KNOWS_LESS = """
import dataclasses
import farm.kernels.blas as blas
(threads,) = blas.BLAS.parameters
blas.BLAS = dataclasses.replace(blas.BLAS, parameters=(dataclasses.replace(threads, values=range(1, 2)),))
"""
"""As sitecustomize: the farm before the family blas could be asked for more than one thread."""


@pytest.mark.long
def test_what_an_older_worker_cannot_read_waits_for_one_of_this_version(
    engine: Engine, submit: Submit, farm_services: ServiceUrls, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "sitecustomize.py").write_text(KNOWS_LESS)
    # sitecustomize runs before the current folder is on the path.
    older = f"{tmp_path / 'older'}{os.pathsep}{Path(farm.__file__).parent.parent}"
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}

    def asked(name: str) -> Stored:
        return submit(Campaign.from_document(document(name=name, measure={"timing": {"max_seconds": 0.01}})))

    def done(stored: Stored) -> bool:
        with engine.connect() as connection:
            return campaigns.counts(connection, stored.campaign_id)["done"] == 12

    with programs(tmp_path, **urls, FARM_RESEND_AFTER_SECONDS="1") as start:
        coordinator = start(COORDINATOR, name="coordinator")
        old = start(FARM_WORKER, "--devices", "cpu", name="old", PYTHONPATH=older)
        eventually(lambda: scalar(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
        small = asked("small")
        eventually(lambda: scalar(engine, "SELECT count(*) FROM jobs WHERE state = 'done'") == 6)
        eventually(lambda: scalar(engine, "SELECT count(*) FROM failures WHERE kind = 'unsupported'") == 6)
        eventually(lambda: [cause for cause, _, _ in stuck(engine, small)] == [Cause.WORKER_VERSION])
        assert scalar(engine, "SELECT count(*) FROM batches WHERE state = 'queued'") == 0
        assert old.stop() == 0
        start(FARM_WORKER, "--devices", "cpu", name="same")
        eventually(lambda: done(small))

        assert coordinator.stop() == 0


@pytest.mark.long
def test_a_worker_waits_for_a_database_that_is_not_upgraded_and_refuses_one_that_is_too_new(
    farm_services: ServiceUrls, tmp_path: Path, database_url: str
) -> None:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    engine = make_engine(database_url, application="test")
    with programs(tmp_path, **urls) as start:
        waiting = [start(COORDINATOR, name="coordinator"), start(FARM_WORKER, "--devices", "cpu", name="worker")]
        needs = f"at revision none (it has no tables yet), and this version of the farm needs {migrate.head()}"
        eventually(lambda: all(needs in program.log() for program in waiting))
        migrate.upgrade(engine)
        assert migrate.served_from(engine, migrate.WORKERS) == "0035"
        eventually(lambda: scalar(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
        eventually(lambda: scalar(engine, "SELECT count(*) FROM leadership WHERE expires_at > now()"))
        assert all(program.stop() == 0 for program in waiting)
        for statement in NEXT.splitlines():
            write(engine, statement)
        migrate.require_for_worker(engine)
        write(engine, "UPDATE compatible_revisions SET oldest = '9999'")
        with pytest.raises(DatabaseIsNewer, match="It serves workers from revision 9999 on"):
            migrate.require_for_worker(engine)
        late = start(FARM_WORKER, "--devices", "cpu", name="late")
        assert late.wait() == 5
        assert "Install the newer version on this machine" in late.log()
    engine.dispose()
