"""A migrated database for each test, and fixtures that put things into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from samples import cpu, document
from sqlalchemy import Engine

from farm.campaign import Campaign, KnownDevice, plan
from farm.db import campaigns, devices
from farm.db.engine import make_engine
from farm.devices import DeviceIdentity


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """On a migrated database: `database_url` copies one for a test that has an engine."""
    made = make_engine(database_url, application="test")
    yield made
    made.dispose()


@pytest.fixture
def announce(engine: Engine) -> Callable[[DeviceIdentity], int]:
    def announced(identity: DeviceIdentity) -> int:
        with engine.begin() as connection:
            return devices.register(connection, host="here", host_facts={}, device=identity)

    return announced


@pytest.fixture
def submit(engine: Engine) -> Callable[[Campaign], campaigns.Stored]:
    def submitted(campaign: Campaign) -> campaigns.Stored:
        with engine.begin() as connection:
            known: Sequence[KnownDevice] = [KnownDevice(*row) for row in campaigns.known_devices(connection)]
            return campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())

    return submitted


@pytest.fixture
def device(announce: Callable[[DeviceIdentity], int]) -> int:
    """A device of the CPU, announced; its id."""
    return announce(cpu())


@pytest.fixture
def small(device: int, submit: Callable[[Campaign], campaigns.Stored]) -> campaigns.Stored:
    """A campaign of a few jobs, for that device too."""
    return submit(Campaign.from_document(document()))
