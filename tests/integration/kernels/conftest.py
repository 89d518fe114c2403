"""A GPU whose kernels are built ahead of time, a campaign that waits for two of them, and programs that build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db.campaigns import Stored
from farm.services import ServiceUrls
from support.invariants import faults
from support.kernel_builds import Announce, Submit
from support.programs import Start, programs
from support.samples import ahead, card
from support.toolkit import Toolkit


@pytest.fixture
def gpu(announce: Announce) -> int:
    return announce(card())


@pytest.fixture
def stored(gpu: int, submit: Submit) -> Stored:
    return submit(Campaign.from_document(ahead()))


@pytest.fixture(autouse=True)
def nothing_is_broken(engine: Engine) -> Iterator[None]:
    yield
    with engine.connect() as connection:
        assert faults(connection) == []


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path / "toolkit")


@pytest.fixture
def start_program(tmp_path: Path, database_url: str, farm_services: ServiceUrls, toolkit: Toolkit) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    quick = {"FARM_HEARTBEAT_SECONDS": "0.3", "FARM_RESEND_AFTER_SECONDS": "1", "FARM_BUILD_SLOTS": "2"}
    with programs(tmp_path, **urls, **quick, **toolkit.variables) as starting:
        yield starting
