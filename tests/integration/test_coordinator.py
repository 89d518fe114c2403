"""The coordinator's turns on real Postgres and real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine, text

from farm.broker.celery_app import make_app
from farm.broker.queues import queue_of_device, queue_of_type
from farm.campaign import Campaign
from farm.coordinator.loop import Coordinator
from farm.coordinator.quarantine import quarantine_refuted
from farm.db import devices
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import DeviceState, FailureKind
from farm.devices import DeviceIdentity
from farm.services import ServiceUrls
from farm.settings import Settings
from support.batch_steps import claim, counts, expire, form, land, leased
from support.homes import eventually
from support.programs import COORDINATOR, programs
from support.samples import cpu, document

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]


@pytest.fixture
def app(farm_services: ServiceUrls) -> Iterator[Celery]:
    assert farm_services.broker_url is not None
    with make_app(farm_services.broker_url) as made:
        yield made


@pytest.fixture
def waiting(app: Celery) -> Iterator[Callable[[str], int]]:
    """How many messages wait in a queue; the queues are emptied afterwards."""
    used = set()

    def length(queue: str) -> int:
        used.add(queue)
        with app.connection_for_read() as connection:
            client: redis.Redis = connection.default_channel.client
            return int(client.llen(queue))

    yield length
    with app.connection_for_write() as connection:
        for queue in used:
            connection.default_channel.client.delete(queue)


def test_a_turn_forms_and_sends_and_a_second_one_has_nothing_to_do(
    engine: Engine, app: Celery, announce: Announce, submit: Submit, waiting: Callable[[str], int]
) -> None:
    announce(cpu(kind="cpu-turn"))
    submit(Campaign.from_document(document()))
    settings = Settings(outstanding_batches=2)
    before = waiting(queue_of_type("cpu-turn"))
    assert Coordinator(engine, app, settings).turn() == 2
    assert Coordinator(engine, app, settings).turn() == 0
    assert waiting(queue_of_type("cpu-turn")) - before == 2


def test_a_job_for_one_device_goes_to_the_queue_of_that_device(
    engine: Engine, app: Celery, announce: Announce, submit: Submit, waiting: Callable[[str], int]
) -> None:
    announce(cpu(71, kind="cpu-pinned"))
    announce(cpu(72, kind="cpu-pinned"))
    submit(Campaign.from_document(document(targets=[{"device": "CPU-72"}])))
    Coordinator(engine, app, Settings(outstanding_batches=1)).turn()
    assert waiting(queue_of_device("CPU-71")) == 0
    assert waiting(queue_of_device("CPU-72")) == 1
    assert waiting(queue_of_type("cpu-pinned")) == 0


def test_a_broker_that_is_away_costs_nothing_but_time(
    engine: Engine, app: Celery, announce: Announce, submit: Submit, waiting: Callable[[str], int]
) -> None:
    announce(cpu(kind="cpu-away"))
    stored = submit(Campaign.from_document(document()))
    with make_app("redis://127.0.0.1:1/0") as nowhere:
        Coordinator(engine, nowhere, Settings(outstanding_batches=1)).turn()
    assert counts(engine, stored.campaign_id) == {"queued": 1, "pending": 11}
    assert waiting(queue_of_type("cpu-away")) == 0
    Coordinator(engine, app, Settings(outstanding_batches=1)).turn()
    assert waiting(queue_of_type("cpu-away")) == 1


def test_a_message_that_redis_lost_is_sent_again(
    engine: Engine, app: Celery, announce: Announce, submit: Submit, waiting: Callable[[str], int]
) -> None:
    device = announce(cpu(kind="cpu-lost"))
    submit(Campaign.from_document(document()))
    Coordinator(engine, app, Settings(outstanding_batches=1)).turn()
    with app.connection_for_write() as connection:
        connection.default_channel.client.delete(queue_of_type("cpu-lost"))
    Coordinator(engine, app, Settings(outstanding_batches=1, resend_after_seconds=0.001)).turn()
    assert waiting(queue_of_type("cpu-lost")) == 1
    with engine.connect() as connection:
        batch_id = connection.execute(text("SELECT id FROM batches")).scalar_one()
    assert claim(engine, batch_id, device) is not None


def test_a_lease_that_has_passed_is_taken_back_and_the_campaign_goes_on(
    engine: Engine, app: Celery, announce: Announce, submit: Submit
) -> None:
    device = announce(cpu())
    stored = submit(Campaign.from_document(document()))
    expire(engine, leased(engine, device))
    with make_app("redis://127.0.0.1:1/0") as nowhere:
        Coordinator(engine, nowhere, Settings(outstanding_batches=1)).turn()
    assert counts(engine, stored.campaign_id) == {"queued": 1, "pending": 11}


def test_a_device_that_fails_what_others_measure_is_quarantined_and_its_work_goes_elsewhere(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    bad, good = announce(cpu(1)), announce(cpu(2))
    stored = submit(Campaign.from_document(document()))
    first = leased(engine, bad, 6)
    land(engine, first, {job.id: Failure(FailureKind.FAILED, "an odd answer") for job in first.jobs[:5]})
    settings = Settings(quarantine_after_jobs=5)
    assert quarantine_refuted(engine, settings) == []  # as yet, the jobs may be to blame
    while (batch_id := form(engine)) is not None:
        lease = claim(engine, batch_id, good)
        assert lease is not None
        land(engine, lease)
    assert counts(engine, stored.campaign_id) == {"done": 12}
    assert quarantine_refuted(engine, settings) == [bad]
    with engine.connect() as connection:
        found = {row["device_id"]: row for row in devices.overview(connection, silent_after=60)}
        assert devices.live(connection, silent_after=60) == [(good, "CPU-2", "cpu-test")]
    assert found[bad]["state_reason"] == (
        "5 jobs failed here that other devices then measured; the last: an odd answer"
    )
    with engine.begin() as connection:  # what it failed before it was resumed is forgiven
        devices.set_state(connection, bad, DeviceState.ACTIVE, None)
    assert quarantine_refuted(engine, settings) == []


def test_a_rare_failure_of_a_busy_device_is_no_reason(engine: Engine, announce: Announce, submit: Submit) -> None:
    busy, other = announce(cpu(1)), announce(cpu(2))
    submit(Campaign.from_document(document()))
    lease = leased(engine, busy)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.FAILED, "a hiccup")})
    batch_id = form(engine)
    assert batch_id is not None
    again = claim(engine, batch_id, other)
    assert again is not None
    land(engine, again)
    assert quarantine_refuted(engine, Settings(quarantine_after_jobs=1)) == []


@pytest.mark.parametrize(
    ("variable", "url", "told"),
    [
        ("FARM_BROKER_URL", "redis://:geheim@127.0.0.1:1/0", "waiting for the broker at redis://:***@127.0.0.1:1/0"),
        ("FARM_DATABASE_URL", "postgresql://farm:geheim@127.0.0.1:1/farm", "waiting for the database at "),
    ],
)
def test_a_coordinator_waits_for_services_that_are_away_when_it_starts(
    engine: Engine, database_url: str, farm_services: ServiceUrls, tmp_path: Path, variable: str, url: str, told: str
) -> None:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url), variable: url}
    with programs(tmp_path, **urls) as start:
        coordinator = start(COORDINATOR)
        eventually(lambda: coordinator.log().count(told) >= 2)
        assert coordinator.stop() == 0
        assert "geheim" not in coordinator.log()
