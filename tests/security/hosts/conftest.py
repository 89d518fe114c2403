"""Two worker hosts of one farm: mine, which somebody took over, and theirs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign, plan
from farm.db import campaigns, roles, worker_logins
from farm.db.batches import Lease
from farm.db.engine import make_engine
from farm.db.service_roles import Service
from farm.services import ServiceUrls
from support.samples import document
from support.shared_server import urls_of_roles
from support.worker_hosts import MINE, PASSWORD, THEIRS, Hosts, announced, leased, under


@pytest.fixture(scope="session")
def farm_services(services_of_the_owner: ServiceUrls) -> ServiceUrls:
    return services_of_the_owner


@pytest.fixture
def hosts(engine: Engine) -> Iterator[Hosts]:
    """The database under the login of each of two hosts."""
    prefix = f"farm{uuid.uuid4().hex[:6]}"
    with engine.begin() as connection:
        logins = {
            host: worker_logins.add(connection, host, password=PASSWORD, prefix=prefix) for host in (MINE, THEIRS)
        }
    made = {host: under(engine, login) for host, login in logins.items()}
    yield made
    for host, one in made.items():
        one.dispose()
        with engine.begin() as connection:
            if roles.exists(connection, logins[host]):
                connection.execute(text("DELETE FROM worker_logins WHERE host = :host"), {"host": host})
                worker_logins.remove(connection, host, [logins[host]])


@pytest.fixture
def coordinator(engine: Engine, database_url: str) -> Iterator[Engine]:
    """The database under the coordinator's role."""
    made = make_engine(urls_of_roles(database_url)[Service.APPLICATION], application="test", pool_size=1)
    yield made
    made.dispose()


@pytest.fixture
def my_device(hosts: Hosts) -> int:
    return announced(hosts[MINE], 1)


@pytest.fixture
def their_device(hosts: Hosts, my_device: int) -> int:
    return announced(hosts[THEIRS], 2)


@pytest.fixture
def campaign(engine: Engine, their_device: int) -> int:
    with engine.begin() as connection:
        asked = Campaign.from_document(document())
        known = campaigns.known_devices(connection)
        return campaigns.store(connection, asked, plan(asked, known, allow_missing=False).jobs()).campaign_id


@pytest.fixture
def my_lease(engine: Engine, hosts: Hosts, my_device: int, campaign: int) -> Lease:
    return leased(engine, hosts[MINE], my_device)


@pytest.fixture
def their_lease(engine: Engine, hosts: Hosts, their_device: int, campaign: int) -> Lease:
    return leased(engine, hosts[THEIRS], their_device)
