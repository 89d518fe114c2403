"""A farm that is served in this process: with devices, campaigns and rows, and a registry with a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from farm.api.access import Access
from farm.db.engine import ASKING, make_engine
from farm.db.states import Role
from support.api_farm import Asking, Served, access_to, fill
from support.cheap_training import cheap_trainings
from support.model_records import record_models
from support.training_tables import tiled_table
from trainer.forest import ForestSettings
from trainer.registry import train_and_register


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """As `farm serve` has it, on a migrated database."""
    made = make_engine(database_url, application="test", session=ASKING)
    yield made
    made.dispose()


@pytest.fixture(scope="session")
def api_registry(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> str:
    """A registry with one small model."""
    uri = new_registry(tmp_path_factory.mktemp("models"))
    with cheap_trainings():
        table = tiled_table((256, 512), tiles=(8, 16)).assign(device_type="nvidia-h200")
        train_and_register(
            table, "nvidia-h200", tracking_uri=uri, code_version="1.0", settings=ForestSettings(trees=10)
        )
    return uri


@pytest.fixture
def api_access(engine: Engine, database_url: str, tmp_path: Path, new_registry: Callable[[Path], str]) -> Access:
    """A farm with some of everything, and a registry without models."""
    fill(engine)
    return access_to(engine, database_url, new_registry(tmp_path))


@pytest.fixture
def api_access_with_model(engine: Engine, database_url: str, api_registry: str) -> Access:
    fill(engine)
    record_models(api_registry, engine)
    return access_to(engine, database_url, api_registry)


@pytest.fixture
def api(api_access: Access) -> Iterator[Asking]:
    """The API of a farm that asks nobody for a token."""
    with Served(api_access, tokens=False) as served:
        yield served.asking()


@pytest.fixture
def api_with_tokens(api_access: Access) -> Iterator[Served]:
    """The API of a farm that asks for tokens; there is one of each role, named for it."""
    with Served(api_access, tokens=True) as served:
        for role in Role:
            served.make(role.value, role)
        yield served
