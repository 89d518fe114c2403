"""One farm with rows, a model and a server, and a client of the Python API over each transport: the database and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, text

import farm
from farm.api.access import Access
from farm.api.connecting import Direct
from farm.campaign import Campaign, plan
from farm.db import campaigns, devices
from farm.db.engine import make_engine
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from farm.system_account import login_name
from support.cheap_training import cheap_trainings
from support.databases import database
from support.model_records import record_models
from support.samples import card, cpu, document, landed, row
from support.serving import served
from support.training_tables import tiled_table
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

SHAPES = [(m, k) for m in (64, 128, 256) for k in (32, 64)]
TYPE, OTHER, CARD = "cpu-test", "cpu-other", "nvidia-test"


@dataclass(frozen=True)
class TwoTransports:
    """Clients of one farm.

    Attributes:
        direct: On its database.
        remote: On its server.
        engine: Its database.
        url: Its server.
    """

    direct: farm.Client
    remote: farm.Client
    engine: Engine
    url: str

    @property
    def both(self) -> tuple[farm.Client, farm.Client]:
        return self.direct, self.remote


@contextmanager
def two_transports(services: ServiceUrls, registry_uri: str) -> Iterator[TwoTransports]:
    """A farm with two CPUs and a card, a campaign that is half done, rows to compare, and a model of the card."""
    with ExitStack() as stack:
        url = stack.enter_context(database(services, migrated=True))
        engine = make_engine(url, application="test")
        stack.callback(engine.dispose)
        _fill(engine)
        _train(registry_uri, engine)
        opened = Session(Settings(MLFLOW_TRACKING_URI=registry_uri), ServiceUrls(url, None, registry_uri), engine)
        access = Access(opened.settings, who=login_name() or "the tests", opened=opened)
        stack.callback(access.close)
        direct = stack.enter_context(farm.Client(Direct(access)))
        server = stack.enter_context(served(engine, tracking_uri=registry_uri))
        remote = stack.enter_context(farm.connect(server))
        yield TwoTransports(direct, remote, engine, server)


def _fill(engine: Engine) -> None:
    with engine.begin() as connection:
        one, other, _ = (
            devices.register(connection, host="here", host_facts={}, device=device)
            for device in (cpu(), cpu(2, kind=OTHER), card(kind=CARD))
        )
        campaign = Campaign.from_document(document(targets=[{"type": TYPE}]))
        jobs = plan(campaign, campaigns.known_devices(connection), allow_missing=False).jobs()
        stored = campaigns.store(connection, campaign, jobs)
    names = [f"blas(threads=1) {m}x64x{k} f32:f32:f32 nn alpha=1 beta=0" for m, k in SHAPES]
    landed(engine, one, [(name, row(2.0)) for name in names], campaign_id=stored.campaign_id)
    landed(engine, other, [(name, row(1.0)) for name in names])
    with engine.begin() as connection:
        lane = connection.execute(text("UPDATE jobs SET state = 'dead' WHERE id = 2 RETURNING lane_id")).scalar_one()
        connection.execute(text("UPDATE devices SET last_seen_at = now() - interval '1 day'"))
        connection.execute(text("UPDATE lanes SET dead = 1 WHERE id = :lane"), {"lane": lane})


def _train(registry_uri: str, engine: Engine) -> None:
    with cheap_trainings():
        rows = tiled_table((256, 512, 1024), tiles=(8, 16, 32)).assign(device_type=CARD)
        train_and_register(rows, CARD, tracking_uri=registry_uri, code_version="1.0", settings=ForestSettings(trees=5))
    record_models(registry_uri, engine)
