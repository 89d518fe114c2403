"""What arrives at a worker: a number that is looked up. Everything else is refused, and harms nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery
from homes import eventually
from programs import FARM_WORKER, programs
from sqlalchemy import Engine, text
from test_batches import form

import farm
from farm.broker import MEASURE_BATCH, make_app, queue_of_device
from farm.campaign import Campaign, load
from farm.db.campaigns import Stored
from farm.services import ServiceUrls

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self._folder),)


@pytest.fixture
def app(farm_services: ServiceUrls) -> Iterator[Celery]:
    assert farm_services.broker_url is not None
    with make_app(farm_services.broker_url) as made:
        yield made


def test_a_worker_takes_the_number_of_a_batch_and_nothing_else(
    engine: Engine, submit: Callable[[Campaign], Stored], app: Celery, tmp_path: Path, database_url: str,
    farm_services: ServiceUrls,
) -> None:  # fmt: skip
    with programs(tmp_path, FARM_DATABASE_URL=database_url, FARM_BROKER_URL=str(farm_services.broker_url)) as start:
        worker = start(FARM_WORKER, "--devices", f"recorded:{RECORDING}")
        eventually(lambda: asked(engine, "SELECT uuid FROM devices WHERE last_seen_at > first_seen_at"))
        (before,) = eventually(worker.children_that_measure)
        submit(load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000))
        batch_id = form(engine, 10, kind=str(asked(engine, "SELECT type FROM devices")))
        queue = queue_of_device(str(asked(engine, "SELECT uuid FROM devices")))

        for arguments in ([str(batch_id)], [True], [batch_id + 0.5], [None], [[batch_id]], [], [batch_id, batch_id]):
            app.send_task(MEASURE_BATCH, args=arguments, queue=queue)
        for number in (0, -1, batch_id + 1000, 2**62, 10**30):
            app.send_task(MEASURE_BATCH, args=[number], queue=queue)
        app.send_task(MEASURE_BATCH, args=[batch_id], kwargs={"device_id": 1}, queue=queue)
        app.send_task("workers.no_such_task", args=[batch_id], queue=queue)
        evil = Evil(tmp_path / "evil")
        for arguments in ([batch_id], [evil]):
            app.send_task(MEASURE_BATCH, args=arguments, queue=queue, serializer="pickle")
        eventually(lambda: worker.log().count("ContentDisallowed") == 2)
        with app.connection_for_read() as connection:
            waiting = connection.default_channel.client
            eventually(lambda: waiting.llen(queue) == 0)
        assert not (tmp_path / "evil").exists()
        assert asked(engine, "SELECT state FROM batches") == "queued"
        assert asked(engine, "SELECT count(*) FROM failures") == 0

        app.send_task(MEASURE_BATCH, args=[batch_id], queue=queue)
        eventually(lambda: asked(engine, "SELECT state FROM batches") == "done")
        assert asked(engine, "SELECT count(*) FROM measurements") == 10
        assert asked(engine, "SELECT state FROM devices") == "active"
        assert [p.pid for p in worker.children_that_measure()] == [before.pid]


def asked(engine: Engine, statement: str) -> object:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one_or_none()
