"""A migrated database for each test, and fixtures that put things into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign, KnownDevice, plan
from farm.db import campaigns, devices, measurements
from farm.db.engine import make_engine
from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import Measurement, Source
from support.cables import Cable, cable_to
from support.compared import CONFIGURATIONS, Put
from support.samples import cpu, document, landed, row


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """On a migrated database: `database_url` copies one for a test that has an engine."""
    made = make_engine(database_url, application="test")
    yield made
    made.dispose()


@pytest.fixture
def cable(database_url: str) -> Iterator[Cable]:
    """A link to the database that can be cut."""
    with cable_to(database_url) as made:
        yield made


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
            known: Sequence[KnownDevice] = campaigns.known_devices(connection)
            return campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())

    return submitted


@pytest.fixture
def measured_and_imported(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], campaigns.Stored]
) -> Engine:
    """Twelve configurations on one device: each measured, and the first one imported as well."""
    device_id = announce(cpu())
    stored = submit(Campaign.from_document(document()))
    with engine.begin() as connection:
        ids = connection.execute(text("SELECT id FROM configurations ORDER BY id")).scalars().all()
        rows = [(None, stored.campaign_id, UUID(str(i)), device_id, row(float(at + 1))) for at, i in enumerate(ids)]
        imported = row(99.0, source=Source.IMPORTED, power_w=42.0, runtime_settled_ms=100.0)
        measurements.insert(connection, [*rows, (None, None, UUID(str(ids[0])), device_id, imported)])
    return engine


@pytest.fixture
def device(announce: Callable[[DeviceIdentity], int]) -> int:
    """A device of the CPU, announced; its id."""
    return announce(cpu())


@pytest.fixture
def small(device: int, submit: Callable[[Campaign], campaigns.Stored]) -> campaigns.Stored:
    """A campaign of a few jobs, for that device too."""
    return submit(Campaign.from_document(document()))


@pytest.fixture
def put(engine: Engine) -> Put:
    """Lands a row of each configuration for a device, by `taken`; returns the id of the device."""

    def landed_by(
        device: DeviceIdentity,
        taken: Callable[[Configuration], Measurement],
        *,
        host: str = "here",
        configurations: Sequence[Configuration] = CONFIGURATIONS,
    ) -> int:
        with engine.begin() as connection:
            device_id = devices.register(connection, host=host, host_facts={}, device=device)
        landed(engine, device_id, [(one.canonical, taken(one)) for one in configurations])
        return device_id

    return landed_by
